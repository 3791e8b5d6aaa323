#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "worker/model/hf/config.h"

namespace switchyard::data {
class SafetensorsFile;
struct TensorView;
}  // namespace switchyard::data

namespace switchyard::model {

class LanguageModel;

// Weights of a model folder: one safetensors file, or shards with an index. Immutable.
class HfCheckpoint {
 public:
  // Opens `folder`/config.json and the weights: `model.safetensors.index.json`,
  // `model.safetensors`, else the only index or the only safetensors file there. Shards must hold
  // exactly what the index says. kNotFound, kDataLoss (a malformed file), kInvalidArgument (config
  // or index refused), with the file's path.
  static Result<std::unique_ptr<HfCheckpoint>> Open(const std::string& folder);
  ~HfCheckpoint();

  const v1::ModelSpec& model() const { return *model_; }
  // kInvalidArgument when the files are far too small for the model that the configuration
  // describes: told before anything of its size is allocated.
  Status CheckSize() const;

  // Gives `model` the file's values, by full name: fused ([E, 2 F, D]) or one tensor per expert,
  // converted to the model's types. Every expected tensor must be there once with its shape, and no
  // other; rotary tables and layers beyond the configuration are left out, with a notice. Nothing
  // is copied unless all fits. Tensors of the model whose name one of the globs `fresh` matches
  // keep their values where the file lacks them or has another shape. kInvalidArgument with the
  // first fault of each kind and the number of others.
  Status CopyTo(const LanguageModel& model, const std::vector<std::string>& fresh,
                std::vector<std::string>* notices) const;

 private:
  HfCheckpoint();
  Status OpenWeights(const std::string& folder);
  Status OpenShards(const std::string& folder, const std::string& index_path);
  Status OpenFile(const std::string& path);
  const data::TensorView* Find(const std::string& name) const;

  std::string folder_;
  HfFamily family_ = HfFamily::kLlama;
  std::unique_ptr<v1::ModelSpec> model_;
  std::vector<std::unique_ptr<data::SafetensorsFile>> files_;
};

struct HfExportOptions {
  bool is_fused = false;  // experts stacked, as transformers 5 holds them in memory
  uint64_t shard_bytes = uint64_t{5} << 30;
  uint32_t context = 2048;  // longest sequence, for max_position_embeddings
};

// Writes config.json and the weights into `folder`, which must not exist: under a temporary name,
// renamed when whole. More than one shard come with an index. kAlreadyExists; kInvalidArgument when
// no family describes the model.
Status ExportHf(const std::string& folder, const v1::ModelSpec& spec, const LanguageModel& model,
                const HfExportOptions& options);

}  // namespace switchyard::model
