#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "common/base/file.h"
#include "common/base/strings.h"
#include "worker/data/safetensors.h"
#include "worker/model/hf/checkpoint.h"
#include "worker/model/hf/names.h"
#include "worker/model/model.h"

namespace switchyard::model {
namespace {

// Views of the file's tensors, and the memory they point into.
struct Content {
  std::vector<at::Tensor> owners;
  std::vector<data::TensorView> views;
};

Content ContentOf(HfFamily family, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                  bool is_fused) {
  Content content;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor host = tensor.detach().cpu().to(at::kFloat).contiguous();
    for (const HfPiece& piece : HfPiecesOf(family, name, host.sizes().vec(), is_fused)) {
      const at::Tensor part =
          piece.expert < 0 ? host : host[piece.expert].narrow(0, piece.begin, piece.shape[0]);
      // Rows of a contiguous tensor: contiguous too.
      content.views.push_back(
          {.name = piece.name,
           .dtype = data::DType::kF32,
           .shape = piece.shape,
           .data = {static_cast<const char*>(part.const_data_ptr()), part.nbytes()}});
    }
    content.owners.push_back(host);
  }
  std::ranges::sort(content.views, {}, &data::TensorView::name);
  return content;
}

// Consecutive runs of at most `limit` bytes; a larger tensor is a run of its own.
std::vector<std::vector<data::TensorView>> Shards(const std::vector<data::TensorView>& views,
                                                  uint64_t limit) {
  std::vector<std::vector<data::TensorView>> shards(1);
  uint64_t bytes = 0;
  for (const data::TensorView& view : views) {
    if (!shards.back().empty() && bytes + view.data.size() > limit) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(view);
    bytes += view.data.size();
  }
  return shards;
}

std::string ShardName(size_t index, size_t count) {
  char name[64];
  std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

Status WriteParts(const std::string& folder, const HfConfigText& config, const Content& content,
                  uint64_t shard_bytes) {
  SWITCHYARD_RETURN_IF_ERROR(WriteFileAtomically(StrCat(folder, "/config.json"), config.json));
  const std::map<std::string, std::string> metadata = {{"format", "pt"}};
  const auto shards = Shards(content.views, shard_bytes);
  if (shards.size() == 1) {
    return data::WriteSafetensors(StrCat(folder, "/model.safetensors"), shards[0], metadata,
                                  data::WriteMode::kInPlace);
  }
  uint64_t total = 0;
  nlohmann::ordered_json places = nlohmann::ordered_json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = ShardName(i, shards.size());
    SWITCHYARD_RETURN_IF_ERROR(data::WriteSafetensors(StrCat(folder, "/", name), shards[i],
                                                      metadata, data::WriteMode::kInPlace));
    for (const data::TensorView& view : shards[i]) {
      total += view.data.size();
      places[view.name] = name;
    }
  }
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total}}},
                                        {"weight_map", std::move(places)}};
  return WriteFileAtomically(StrCat(folder, "/model.safetensors.index.json"), index.dump(2) + "\n");
}

}  // namespace

Status ExportHf(const std::string& target, const v1::ModelSpec& spec, const LanguageModel& model,
                const HfExportOptions& options) {
  // "name/" is the folder `name`.
  const std::string folder = target.substr(0, target.find_last_not_of('/') + 1);
  SWITCHYARD_ASSIGN_OR_RETURN(const HfConfigText config, WriteHfConfig(spec, options.context));
  if (FileExists(folder)) return AlreadyExists(StrCat(folder, ": exists; choose a new folder"));
  std::vector<std::pair<std::string, at::Tensor>> tensors = model.NamedParameters();
  for (const auto& [name, tensor] : model.NamedBuffers()) {
    if (IsHfBuffer(name)) tensors.emplace_back(name, tensor);
  }
  const Content content = ContentOf(config.family, tensors, options.is_fused);
  const std::string aside = StrCat(folder, ".tmp-", getpid());
  SWITCHYARD_RETURN_IF_ERROR(MakeDirectories(aside));
  Status status = WriteParts(aside, config, content, options.shard_bytes);
  if (status.ok()) status = SyncDirectory(aside);
  if (status.ok() && std::rename(aside.c_str(), folder.c_str()) != 0) {
    status = ErrnoStatus("rename", aside, errno);
  }
  // Best effort: what stays is under a name that nobody reads.
  if (!status.ok()) {
    (void)RemoveTree(aside);
    return status;
  }
  const std::string parent = std::filesystem::path(folder).parent_path().string();
  return SyncDirectory(parent.empty() ? "." : parent);
}

}  // namespace switchyard::model
