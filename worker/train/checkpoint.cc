#include "worker/train/checkpoint.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "common/base/check.h"
#include "common/base/file.h"
#include "common/base/sha256.h"
#include "common/base/strings.h"
#include "worker/data/safetensors.h"
#include "worker/model/model.h"

namespace switchyard::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kStateFile = "state.safetensors";
constexpr const char* kProgressFile = "state.json";
constexpr const char* kManifestFile = "manifest.json";
constexpr uint64_t kJsonBytesMax = 1 << 20;

struct TypePair {
  at::ScalarType torch;
  data::DType file;
};
constexpr TypePair kTypes[] = {
    {at::kFloat, data::DType::kF32},     {at::kDouble, data::DType::kF64},
    {at::kBFloat16, data::DType::kBF16}, {at::kHalf, data::DType::kF16},
    {at::kLong, data::DType::kI64},      {at::kInt, data::DType::kI32},
    {at::kByte, data::DType::kU8},       {at::kBool, data::DType::kBool},
};

std::optional<data::DType> FileType(at::ScalarType type) {
  for (const TypePair& pair : kTypes) {
    if (pair.torch == type) return pair.file;
  }
  return std::nullopt;
}
std::optional<at::ScalarType> TorchType(data::DType type) {
  for (const TypePair& pair : kTypes) {
    if (pair.file == type) return pair.torch;
  }
  return std::nullopt;
}

std::string ShapeText(at::IntArrayRef shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += StrCat(i > 0 ? ", " : "", shape[i]);
  return out + "]";
}

// `tensor` must be contiguous and on the host.
Result<data::TensorView> ViewOf(const std::string& name, const at::Tensor& tensor) {
  const auto type = FileType(tensor.scalar_type());
  if (!type) return Internal(StrCat(name, " has a dtype that a checkpoint cannot hold"));
  SWITCHYARD_CHECK(tensor.is_cpu() && tensor.is_contiguous()) << name << " is not a host copy";
  return data::TensorView{
      .name = name,
      .dtype = *type,
      .shape = tensor.sizes().vec(),
      .data = {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()}};
}

Status WriteTensors(const std::string& path, const std::vector<const NamedTensors*>& groups) {
  std::vector<data::TensorView> views;
  for (const NamedTensors* group : groups) {
    for (const auto& [name, tensor] : *group) {
      SWITCHYARD_ASSIGN_OR_RETURN(data::TensorView view, ViewOf(name, tensor));
      views.push_back(std::move(view));
    }
  }
  return data::WriteSafetensors(path, views, {}, data::WriteMode::kInPlace);
}

// `path` is new and lies in a folder that is renamed as a whole.
Status WriteText(const std::string& path, std::string_view text) {
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd.is_valid()) return ErrnoStatus("create", path, errno);
  SWITCHYARD_RETURN_IF_ERROR(WriteAll(fd.get(), text, path));
  if (fsync(fd.get()) != 0) return ErrnoStatus("sync", path, errno);
  return OkStatus();
}

struct FileFacts {
  uint64_t bytes = 0;
  std::string sha256;
};

Result<FileFacts> InspectFile(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.is_valid()) return ErrnoStatus("open", path, errno);
  FileFacts facts;
  Sha256 hash;
  std::vector<char> buffer(1 << 20);
  while (true) {
    const ssize_t n = read(fd.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus("read", path, errno);
    if (n == 0) break;
    hash.Update({buffer.data(), static_cast<size_t>(n)});
    facts.bytes += static_cast<uint64_t>(n);
  }
  facts.sha256 = HexEncode(hash.Finish());
  return facts;
}

Json OptionalNumber(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? Json(*value) : Json(nullptr);
}

// A value that is not finite is one all the same: as a text, since JSON has no number for it.
Json NumberOrText(const std::optional<double>& value) {
  return value && !std::isfinite(*value) ? Json(FormatDouble(*value)) : OptionalNumber(value);
}

std::string ProgressJson(const TrainProgress& progress) {
  const Json json = {
      {"step", progress.step},
      {"cursor",
       {{"data_epoch", progress.cursor.data_epoch}, {"segment", progress.cursor.segment}}},
      {"tokens", progress.tokens},
      {"data_wait_seconds", progress.data_wait_seconds},
      {"nonfinite_steps", progress.nonfinite_steps},
      {"objective",
       {{"best", NumberOrText(progress.objective.best)},
        {"best_step", progress.objective.best_step},
        {"last", NumberOrText(progress.objective.last)},
        {"last_step", progress.objective.last_step}}},
      {"owes_evaluation", progress.owes_evaluation},
  };
  return json.dump(1) + "\n";
}

// Throws nlohmann's exceptions on a missing or ill-typed member.
TrainProgress ProgressFrom(const Json& json) {
  const auto number = [](const Json& value) -> std::optional<double> {
    if (value.is_string()) return ParseDouble(value.get_ref<const std::string&>());
    return value.is_null() ? std::nullopt : std::optional<double>(value.get<double>());
  };
  const Json& objective = json.at("objective");
  return {.step = json.at("step").get<uint64_t>(),
          .cursor = {.data_epoch = json.at("cursor").at("data_epoch").get<uint64_t>(),
                     .segment = json.at("cursor").at("segment").get<uint64_t>()},
          .tokens = json.at("tokens").get<uint64_t>(),
          .data_wait_seconds = json.at("data_wait_seconds").get<double>(),
          .nonfinite_steps = json.at("nonfinite_steps").get<uint64_t>(),
          .objective = {.best = number(objective.at("best")),
                        .best_step = objective.at("best_step").get<uint64_t>(),
                        .last = number(objective.at("last")),
                        .last_step = objective.at("last_step").get<uint64_t>()},
          .owes_evaluation = json.at("owes_evaluation").get<bool>()};
}

Status WriteParts(const std::string& folder, uint64_t epoch, const CheckpointContent& content,
                  CheckpointInfo* info) {
  SWITCHYARD_RETURN_IF_ERROR(WriteTensors(StrCat(folder, "/", kModelFile), {&content.model}));
  SWITCHYARD_RETURN_IF_ERROR(
      WriteTensors(StrCat(folder, "/", kStateFile), {&content.state, &content.memory}));
  SWITCHYARD_RETURN_IF_ERROR(
      WriteText(StrCat(folder, "/", kProgressFile), ProgressJson(content.progress)));
  Json manifest = {{"v", 1},
                   {"run_key", content.run_key},
                   {"epoch", std::to_string(epoch)},
                   {"step", content.progress.step},
                   {"objective", OptionalNumber(content.progress.objective.last)},
                   {"files", Json::object()}};
  for (const char* name : {kModelFile, kStateFile, kProgressFile}) {
    SWITCHYARD_ASSIGN_OR_RETURN(const FileFacts facts, InspectFile(StrCat(folder, "/", name)));
    manifest["files"][name] = {{"bytes", facts.bytes}, {"sha256", facts.sha256}};
    info->bytes += facts.bytes;
  }
  const std::string text = manifest.dump(1) + "\n";
  info->bytes += text.size();
  info->digest = StrCat("sha256:", Sha256Hex(text));
  SWITCHYARD_RETURN_IF_ERROR(WriteText(StrCat(folder, "/", kManifestFile), text));
  return SyncDirectory(folder);
}

struct Manifest {
  std::string run_key;
  uint64_t epoch = 0;
  uint64_t step = 0;
  std::optional<double> objective;
  std::map<std::string, FileFacts> files;
  std::string digest;
};

Result<Manifest> ReadManifest(const std::string& folder) {
  const std::string path = StrCat(folder, "/", kManifestFile);
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kJsonBytesMax));
  Manifest out;
  out.digest = StrCat("sha256:", Sha256Hex(text));
  try {
    const Json json = Json::parse(text);
    if (json.at("v").get<int>() != 1) {
      return DataLoss(StrCat(path, ": format ", json.at("v").dump(), ", known is 1"));
    }
    out.run_key = json.at("run_key").get<std::string>();
    const auto epoch = ParseUint64(json.at("epoch").get<std::string>());
    if (!epoch) return DataLoss(StrCat(path, ": epoch is not a number"));
    out.epoch = *epoch;
    out.step = json.at("step").get<uint64_t>();
    if (!json.at("objective").is_null()) out.objective = json.at("objective").get<double>();
    for (const auto& [name, facts] : json.at("files").items()) {
      out.files[name] = {.bytes = facts.at("bytes").get<uint64_t>(),
                         .sha256 = facts.at("sha256").get<std::string>()};
    }
  } catch (const nlohmann::json::exception& error) {
    return DataLoss(StrCat(path, ": ", error.what()));
  }
  return out;
}

Status CheckFiles(const std::string& folder, const Manifest& manifest, uint64_t* bytes) {
  for (const char* name : {kModelFile, kStateFile, kProgressFile}) {
    const auto it = manifest.files.find(name);
    if (it == manifest.files.end()) {
      return DataLoss(StrCat(folder, ": the manifest does not name ", name));
    }
    const auto facts = InspectFile(StrCat(folder, "/", name));
    if (!facts.ok()) return DataLoss(facts.status().message());
    if (facts->bytes != it->second.bytes || facts->sha256 != it->second.sha256) {
      return DataLoss(StrCat(folder, "/", name, ": ", facts->bytes, " bytes, sha256 ",
                             facts->sha256, "; the manifest says ", it->second.bytes,
                             " bytes, sha256 ", it->second.sha256));
    }
    *bytes += facts->bytes;
  }
  return OkStatus();
}

// Of a verified checkpoint.
at::Tensor HostTensor(const data::TensorView& stored) {
  const auto type = TorchType(stored.dtype);
  SWITCHYARD_CHECK(type.has_value()) << stored.name << " of a verified checkpoint";
  const at::Tensor host = at::empty(stored.shape, at::TensorOptions().dtype(*type));
  std::memcpy(host.mutable_data_ptr(), stored.data.data(), stored.data.size());
  return host;
}

}  // namespace

Checkpoint::~Checkpoint() = default;

Result<CheckpointInfo> WriteCheckpoint(const std::string& root, uint64_t epoch,
                                       const CheckpointContent& content,
                                       const std::function<void()>& before_publish) {
  SWITCHYARD_RETURN_IF_ERROR(MakeDirectories(root));
  const std::string name = StrCat(epoch, "-", content.progress.step);
  CheckpointInfo info{
      .path = StrCat(root, "/", name), .epoch = epoch, .step = content.progress.step};
  if (FileExists(info.path)) return AlreadyExists(StrCat(info.path, " exists"));
  const std::string aside = StrCat(root, "/.tmp-", name, "-", getpid());
  if (FileExists(aside)) SWITCHYARD_RETURN_IF_ERROR(RemoveTree(aside));
  if (mkdir(aside.c_str(), 0755) != 0) return ErrnoStatus("create", aside, errno);
  Status status = WriteParts(aside, epoch, content, &info);
  if (status.ok() && before_publish) before_publish();
  if (status.ok() && rename(aside.c_str(), info.path.c_str()) != 0) {
    status = ErrnoStatus("rename", aside, errno);
  }
  if (!status.ok()) {
    // Best effort: what stays is under a name that nobody reads.
    (void)RemoveTree(aside);
    return status;
  }
  SWITCHYARD_RETURN_IF_ERROR(SyncDirectory(root));
  return info;
}

Result<std::unique_ptr<Checkpoint>> ReadCheckpoint(const std::string& path,
                                                   const std::string& run_key) {
  SWITCHYARD_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(path));
  if (!run_key.empty() && manifest.run_key != run_key) {
    return FailedPrecondition(
        StrCat(path, " belongs to run ", manifest.run_key, ", this is ", run_key));
  }
  auto out = std::make_unique<Checkpoint>();
  out->info = {
      .path = path, .epoch = manifest.epoch, .step = manifest.step, .digest = manifest.digest};
  SWITCHYARD_RETURN_IF_ERROR(CheckFiles(path, manifest, &out->info.bytes));
  const std::string progress_path = StrCat(path, "/", kProgressFile);
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string text, ReadFile(progress_path, kJsonBytesMax));
  try {
    out->progress = ProgressFrom(Json::parse(text));
  } catch (const nlohmann::json::exception& error) {
    return DataLoss(StrCat(progress_path, ": ", error.what()));
  }
  if (out->progress.step != manifest.step) {
    return DataLoss(
        StrCat(path, ": state of step ", out->progress.step, ", manifest of step ", manifest.step));
  }
  SWITCHYARD_ASSIGN_OR_RETURN(out->model,
                              data::SafetensorsFile::Open(StrCat(path, "/", kModelFile)));
  SWITCHYARD_ASSIGN_OR_RETURN(out->state,
                              data::SafetensorsFile::Open(StrCat(path, "/", kStateFile)));
  return out;
}

Result<std::unique_ptr<Checkpoint>> FindCheckpoint(const std::string& folder, uint64_t step,
                                                   const std::string& digest) {
  const auto names = ListDirectory(folder);
  if (!names.ok()) return names.status();
  const std::string end = StrCat("-", step);
  for (const std::string& name : *names) {
    if (name.starts_with(".") || !name.ends_with(end)) continue;
    const std::string path = StrCat(folder, "/", name);
    SWITCHYARD_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(path));
    if (manifest.step == step && manifest.digest == digest) return ReadCheckpoint(path, "");
  }
  return NotFound(StrCat(folder, " has no checkpoint of step ", step, " with digest ", digest));
}

NamedTensors ModelTensors(const model::LanguageModel& model) {
  NamedTensors out = model.NamedParameters();
  const NamedTensors buffers = model.NamedBuffers();
  out.insert(out.end(), buffers.begin(), buffers.end());
  return out;
}

Status MatchTensors(const data::SafetensorsFile& file, const NamedTensors& live,
                    const std::string& ignored_prefix) {
  std::set<std::string_view> names;
  for (const auto& [name, tensor] : live) {
    names.insert(name);
    const data::TensorView* stored = file.Find(name);
    if (stored == nullptr) {
      return DataLoss(
          StrCat(file.path(), " has no ", name, ", expected ", ShapeText(tensor.sizes())));
    }
    if (stored->shape != tensor.sizes().vec()) {
      return DataLoss(StrCat(file.path(), ": ", name, " is ", ShapeText(stored->shape),
                             ", expected ", ShapeText(tensor.sizes())));
    }
    if (TorchType(stored->dtype) != tensor.scalar_type()) {
      return DataLoss(StrCat(file.path(), ": ", name, " is ", data::DTypeName(stored->dtype),
                             ", expected another dtype"));
    }
  }
  for (const data::TensorView& stored : file.tensors()) {
    if (!ignored_prefix.empty() && stored.name.starts_with(ignored_prefix)) continue;
    if (!names.contains(stored.name)) {
      return DataLoss(StrCat(file.path(), " holds ", stored.name, " ", ShapeText(stored.shape),
                             ", which this run does not have"));
    }
  }
  return OkStatus();
}

Status CopyWeights(const data::SafetensorsFile& file, const NamedTensors& live,
                   const std::vector<std::string>& fresh, std::vector<std::string>* notices) {
  NamedTensors copied;
  for (const auto& [name, tensor] : live) {
    const bool may_differ = std::ranges::any_of(fresh, [&name = name](const std::string& glob) {
      return ::fnmatch(glob.c_str(), name.c_str(), 0) == 0;
    });
    const data::TensorView* stored = file.Find(name);
    const bool is_there = stored != nullptr && stored->shape == tensor.sizes().vec() &&
                          TorchType(stored->dtype) == tensor.scalar_type();
    if (is_there) {
      copied.emplace_back(name, tensor);
    } else if (may_differ) {
      notices->push_back(StrCat(name, " ", ShapeText(tensor.sizes()),
                                " is not that of the checkpoint: drawn from the seed"));
    } else {
      return DataLoss(stored == nullptr
                          ? StrCat(file.path(), " has no ", name, ", expected ",
                                   ShapeText(tensor.sizes()), " (init.fresh may name it)")
                          : StrCat(file.path(), ": ", name, " is ", ShapeText(stored->shape),
                                   ", expected ", ShapeText(tensor.sizes())));
    }
  }
  CopyTensors(file, copied);
  return OkStatus();
}

void CopyTensors(const data::SafetensorsFile& file, const NamedTensors& live) {
  const c10::NoGradGuard no_grad;
  for (const auto& [name, tensor] : live) {
    const data::TensorView* stored = file.Find(name);
    SWITCHYARD_CHECK(stored != nullptr) << name << " was not matched";
    const at::Tensor host = at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
    std::memcpy(host.mutable_data_ptr(), stored->data.data(), stored->data.size());
    at::Tensor(tensor).copy_(host);
  }
}

std::vector<at::Tensor> ReadMemory(const data::SafetensorsFile& file) {
  std::vector<at::Tensor> out;
  while (const data::TensorView* stored = file.Find(StrCat("memory.", out.size()))) {
    out.push_back(HostTensor(*stored));
  }
  return out;
}

NamedTensors ReadTensors(const data::SafetensorsFile& file, const std::string& prefix) {
  NamedTensors out;
  for (const data::TensorView& stored : file.tensors()) {
    if (!stored.name.starts_with(prefix)) continue;
    out.emplace_back(stored.name.substr(prefix.size()), HostTensor(stored));
  }
  return out;
}

std::vector<StoredCheckpoint> ListCheckpoints(const std::string& root, const std::string& run_key) {
  std::vector<StoredCheckpoint> out;
  const auto names = ListDirectory(root);
  if (!names.ok()) return out;
  for (const std::string& name : *names) {
    const std::vector<std::string> parts = StrSplit(name, '-');
    if (parts.size() != 2 || !ParseUint64(parts[0]) || !ParseUint64(parts[1])) continue;
    const std::string path = StrCat(root, "/", name);
    const auto manifest = ReadManifest(path);
    if (!manifest.ok() || manifest->run_key != run_key) continue;
    out.push_back({.path = path,
                   .epoch = manifest->epoch,
                   .step = manifest->step,
                   .objective = manifest->objective});
  }
  std::sort(out.begin(), out.end(), [](const StoredCheckpoint& a, const StoredCheckpoint& b) {
    return std::pair(a.epoch, a.step) < std::pair(b.epoch, b.step);
  });
  return out;
}

}  // namespace switchyard::train
