#pragma once

#include <string>
#include <string_view>

#include "common/base/status.h"

namespace switchyard::v1 {
class ModelSpec;
}

// Model folders in the form of Hugging Face: config.json beside safetensors files (models.md 7).
namespace switchyard::model {

// A decoder family whose configuration and tensor names are known, by its `model_type`.
enum class HfFamily {
  kLlama,       // llama (dense)
  kMixtral,     // mixtral
  kOlmoe,       // olmoe
  kQwen3Moe,    // qwen3_moe
  kDeepseek,    // deepseek (DeepSeek-MoE)
  kDeepseekV2,  // deepseek_v2
  kDeepseekV3,  // deepseek_v3
};

// As in config.json.
std::string_view HfModelType(HfFamily family);

// Turns the text of a config.json into the model it describes, vocabulary included. Nothing is
// guessed: a family, an option or a value that the decoder does not have is refused by name, and so
// is a field that is not known to be without effect. kInvalidArgument with `label` and every fault,
// one a line.
Result<HfFamily> ReadHfConfig(std::string_view text, std::string_view label, v1::ModelSpec* model);

// The config.json of a decoder, in the family whose router it has (llama without experts).
// kInvalidArgument: no family describes this model; names the field.
struct HfConfigText {
  HfFamily family = HfFamily::kLlama;
  std::string json;
};
Result<HfConfigText> WriteHfConfig(const v1::ModelSpec& model, uint32_t context);

}  // namespace switchyard::model
