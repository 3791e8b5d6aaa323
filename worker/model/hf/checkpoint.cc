#include "worker/model/hf/checkpoint.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <nlohmann/json.hpp>

#include "common/base/file.h"
#include "common/base/strings.h"
#include "common/spec/accounting.h"
#include "common/spec/canonical.h"
#include "switchyard/v1/spec.pb.h"
#include "worker/data/safetensors.h"
#include "worker/model/hf/names.h"
#include "worker/model/model.h"

namespace switchyard::model {
namespace {

constexpr uint64_t kJsonBytesMax = 64 << 20;
constexpr std::string_view kIndexEnd = ".safetensors.index.json";
constexpr std::string_view kWeightsEnd = ".safetensors";

// Types that weights are stored in.
std::optional<at::ScalarType> FloatType(data::DType dtype) {
  switch (dtype) {
    case data::DType::kF32:
      return at::kFloat;
    case data::DType::kF64:
      return at::kDouble;
    case data::DType::kF16:
      return at::kHalf;
    case data::DType::kBF16:
      return at::kBFloat16;
    case data::DType::kF8E4M3:
      return at::kFloat8_e4m3fn;
    case data::DType::kF8E5M2:
      return at::kFloat8_e5m2;
    default:
      return std::nullopt;
  }
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::vector<std::string> parts;
  for (const int64_t n : shape) parts.push_back(StrCat(n));
  return StrCat("[", StrJoin(parts, ", "), "]");
}

// The first fault of one kind and how many there are.
struct Faults {
  std::string first;
  size_t count = 0;

  void Add(std::string text) {
    if (count++ == 0) first = std::move(text);
  }
  void AppendTo(std::string* out) const {
    if (count == 0) return;
    *out += StrCat("\n  ", first, count > 1 ? StrCat(" (and ", count - 1, " more like it)") : "");
  }
};

// The number N of a name "model.layers.N.…".
std::optional<uint64_t> LayerOf(std::string_view name) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return std::nullopt;
  name.remove_prefix(kLayers.size());
  return ParseUint64(name.substr(0, name.find('.')));
}

// The only name with that end; an error text when there are several.
Result<std::string> OnlyWith(const std::vector<std::string>& names, std::string_view end,
                             const std::string& folder) {
  std::string found;
  for (const std::string& name : names) {
    if (!name.ends_with(end)) continue;
    if (!found.empty()) {
      return InvalidArgument(
          StrCat(folder, ": holds both ", found, " and ", name, "; name the one meant model", end));
    }
    found = name;
  }
  return found;
}

}  // namespace

HfCheckpoint::HfCheckpoint() : model_(std::make_unique<v1::ModelSpec>()) {}
HfCheckpoint::~HfCheckpoint() = default;

Result<std::unique_ptr<HfCheckpoint>> HfCheckpoint::Open(const std::string& folder) {
  std::unique_ptr<HfCheckpoint> out(new HfCheckpoint);
  out->folder_ = folder;
  const std::string config = StrCat(folder, "/config.json");
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string text, ReadFile(config, kJsonBytesMax));
  SWITCHYARD_ASSIGN_OR_RETURN(out->family_, ReadHfConfig(text, config, out->model_.get()));
  SWITCHYARD_RETURN_IF_ERROR(out->OpenWeights(folder));
  return out;
}

Status HfCheckpoint::OpenWeights(const std::string& folder) {
  const std::string index = StrCat(folder, "/model", kIndexEnd);
  if (FileExists(index)) return OpenShards(folder, index);
  const std::string single = StrCat(folder, "/model", kWeightsEnd);
  if (FileExists(single)) return OpenFile(single);
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(folder));
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string other_index, OnlyWith(names, kIndexEnd, folder));
  if (!other_index.empty()) return OpenShards(folder, StrCat(folder, "/", other_index));
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string other, OnlyWith(names, kWeightsEnd, folder));
  if (other.empty()) {
    return NotFound(StrCat(folder, ": no model", kWeightsEnd, " and no model", kIndexEnd));
  }
  return OpenFile(StrCat(folder, "/", other));
}

Status HfCheckpoint::OpenFile(const std::string& path) {
  SWITCHYARD_ASSIGN_OR_RETURN(auto file, data::SafetensorsFile::Open(path));
  files_.push_back(std::move(file));
  return OkStatus();
}

Status HfCheckpoint::OpenShards(const std::string& folder, const std::string& index_path) {
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string text, ReadFile(index_path, kJsonBytesMax));
  std::map<std::string, std::set<std::string>> wanted;  // file -> tensors
  try {
    const auto json = nlohmann::json::parse(text);
    for (const auto& [name, file] : json.at("weight_map").items()) {
      wanted[file.get<std::string>()].insert(name);
    }
  } catch (const nlohmann::json::exception& error) {
    return InvalidArgument(StrCat(index_path, ": expected {\"weight_map\": {tensor: file}}: ",
                                  EscapeForTerminal(error.what())));
  }
  if (wanted.empty()) return InvalidArgument(StrCat(index_path, ": weight_map is empty"));
  for (const auto& [name, tensors] : wanted) {
    if (name.empty() || name.find('/') != std::string::npos || name.front() == '.') {
      return InvalidArgument(StrCat(index_path, ": '", EscapeForTerminal(name),
                                    "' is not the name of a file in the same folder"));
    }
    SWITCHYARD_RETURN_IF_ERROR(OpenFile(StrCat(folder, "/", name)));
    const data::SafetensorsFile& file = *files_.back();
    for (const std::string& tensor : tensors) {
      if (file.Find(tensor) == nullptr) {
        return InvalidArgument(StrCat(index_path, ": ", EscapeForTerminal(tensor),
                                      " is said to be in ", name, ", which does not hold it"));
      }
    }
    for (const data::TensorView& tensor : file.tensors()) {
      if (!tensors.contains(tensor.name)) {
        return InvalidArgument(StrCat(index_path, ": ", name, " holds ",
                                      EscapeForTerminal(tensor.name),
                                      ", which the index does not place there"));
      }
    }
  }
  return OkStatus();
}

const data::TensorView* HfCheckpoint::Find(const std::string& name) const {
  for (const auto& file : files_) {
    if (const data::TensorView* found = file->Find(name)) return found;
  }
  return nullptr;
}

Status HfCheckpoint::CheckSize() const {
  uint64_t held = 0;
  for (const auto& file : files_) {
    for (const data::TensorView& tensor : file->tensors()) {
      held += tensor.data.size() / data::DTypeBytes(tensor.dtype);
    }
  }
  v1::RunSpec run;
  *run.mutable_model() = *model_;
  spec::FillDefaults(&run);
  const uint64_t wanted = spec::Account(run, model_->vocab()).params_total;
  // Names tell more where the files come near.
  constexpr uint64_t kSmall = 1 << 24;
  if (wanted / 2 <= held || wanted <= kSmall) return OkStatus();
  return InvalidArgument(StrCat(folder_, ": config.json describes a model of ", wanted,
                                " parameters, the files hold ", held));
}

Status HfCheckpoint::CopyTo(const LanguageModel& model, const std::vector<std::string>& fresh,
                            std::vector<std::string>* notices) const {
  struct Copy {
    const data::TensorView* from;
    at::Tensor to;
  };
  std::vector<Copy> copies;
  std::set<std::string_view> used;
  Faults missing, misshapen, mistyped, surplus;
  bool is_fused = false;
  for (const auto& file : files_) {
    for (const data::TensorView& tensor : file->tensors()) {
      is_fused = is_fused || tensor.name.ends_with(".mlp.experts.gate_up_proj");
    }
  }
  const auto match = [&](const std::string& name, const at::Tensor& live) {
    const bool may_differ = std::ranges::any_of(fresh, [&](const std::string& glob) {
      return ::fnmatch(glob.c_str(), name.c_str(), 0) == 0;
    });
    std::vector<Copy> parts;
    bool is_whole = true;
    for (const HfPiece& piece : HfPiecesOf(family_, name, live.sizes().vec(), is_fused)) {
      const data::TensorView* found = Find(piece.name);
      if (found != nullptr) used.insert(found->name);
      if (found == nullptr || found->shape != piece.shape) {
        is_whole = false;
        if (may_differ) continue;
        if (found == nullptr) {
          missing.Add(StrCat("missing: ", piece.name, " ", ShapeText(piece.shape)));
        } else {
          misshapen.Add(StrCat(piece.name, " is ", ShapeText(found->shape), ", expected ",
                               ShapeText(piece.shape)));
        }
        continue;
      }
      if (!FloatType(found->dtype)) {
        mistyped.Add(StrCat(piece.name, " is of type ", data::DTypeName(found->dtype),
                            ", expected a floating one"));
        continue;
      }
      at::Tensor part = live;
      if (piece.expert >= 0) part = live[piece.expert].narrow(0, piece.begin, piece.shape[0]);
      parts.push_back({found, part});
    }
    if (is_whole) {
      copies.insert(copies.end(), parts.begin(), parts.end());
    } else if (may_differ) {
      notices->push_back(
          StrCat(folder_, ": ", name, " is not there in this shape and starts fresh"));
    }
  };
  const c10::NoGradGuard no_grad;
  for (const auto& [name, tensor] : model.NamedParameters()) match(name, tensor);
  for (const auto& [name, tensor] : model.NamedBuffers()) {
    if (IsHfBuffer(name)) match(name, tensor);
  }
  size_t ignored = 0;
  std::string first_ignored;
  const data::TensorView* embedding = Find("model.embed_tokens.weight");
  for (const auto& file : files_) {
    for (const data::TensorView& tensor : file->tensors()) {
      if (used.contains(tensor.name)) continue;
      const std::optional<uint64_t> layer = LayerOf(tensor.name);
      const bool is_tied_copy = tensor.name == "lm_head.weight" && model_->decoder().tied() &&
                                embedding != nullptr && embedding->dtype == tensor.dtype &&
                                embedding->data == tensor.data;
      if (tensor.name.ends_with(".rotary_emb.inv_freq") || is_tied_copy ||
          (layer && *layer >= model_->decoder().layers())) {
        if (ignored++ == 0) first_ignored = tensor.name;
        continue;
      }
      surplus.Add(StrCat("not part of this model: ", EscapeForTerminal(tensor.name), " ",
                         ShapeText(tensor.shape)));
    }
  }
  std::string text;
  for (const Faults* faults : {&missing, &misshapen, &mistyped, &surplus}) faults->AppendTo(&text);
  if (!text.empty()) {
    return InvalidArgument(StrCat(folder_, ": the tensors are not those of a ",
                                  HfModelType(family_), " model of this configuration:", text));
  }
  if (ignored > 0) {
    notices->push_back(StrCat(folder_, ": left out ", ignored,
                              " tensors that the model does not "
                              "use, the first is ",
                              first_ignored));
  }
  for (const Copy& copy : copies) {
    // Its bytes need not be aligned in the file.
    at::Tensor host =
        at::empty(copy.from->shape, at::TensorOptions().dtype(*FloatType(copy.from->dtype)));
    std::memcpy(host.mutable_data_ptr(), copy.from->data.data(), copy.from->data.size());
    at::Tensor(copy.to).copy_(host);
  }
  return OkStatus();
}

}  // namespace switchyard::model
