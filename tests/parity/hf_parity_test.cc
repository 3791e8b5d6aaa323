// Models in the form of Hugging Face against what they compute elsewhere: our own golden folders
// (make_hf_fixtures.py), and, where they are at hand, checkpoints with logits of transformers.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/base/check.h"
#include "common/base/strings.h"
#include "common/spec/accounting.h"
#include "common/spec/canonical.h"
#include "switchyard/v1/spec.pb.h"
#include "tests/unit/worker/model/testing.h"
#include "worker/data/safetensors.h"
#include "worker/model/hf/checkpoint.h"
#include "worker/model/model.h"

namespace switchyard::model {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const std::string kSource = SWITCHYARD_SOURCE_DIR;
const std::string kGolden = kSource + "/tests/golden/hf/";
const std::string kShared = kSource + "/../shared/data/moe-checkpoints/";

struct Loaded {
  v1::ModelSpec spec;
  std::unique_ptr<LanguageModel> model;
  std::vector<std::string> notices;
};

v1::RunSpec RunOf(const v1::ModelSpec& spec) {
  v1::RunSpec run;
  *run.mutable_model() = spec;
  run.mutable_train()->set_target_len(16);
  run.mutable_train()->set_batch(1);
  spec::FillDefaults(&run);
  return run;
}

Result<Loaded> Load(const std::string& folder) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto checkpoint, HfCheckpoint::Open(folder));
  SWITCHYARD_RETURN_IF_ERROR(checkpoint->CheckSize());
  Loaded out;
  out.spec = checkpoint->model();
  out.model = MakeModel(RunOf(out.spec), {.vocab_size = out.spec.vocab()});
  SWITCHYARD_RETURN_IF_ERROR(checkpoint->CopyTo(*out.model, {}, &out.notices));
  return out;
}

std::map<std::string, at::Tensor> Tensors(const std::string& path) {
  auto file = data::SafetensorsFile::Open(path);
  SWITCHYARD_CHECK(file.ok()) << file.status().ToString();
  std::map<std::string, at::Tensor> out;
  for (const data::TensorView& view : (*file)->tensors()) {
    const auto type = view.dtype == data::DType::kF64 ? at::kDouble : at::kLong;
    at::Tensor tensor = at::empty(view.shape, type);
    std::copy(view.data.begin(), view.data.end(), static_cast<char*>(tensor.data_ptr()));
    out.emplace(view.name, tensor);
  }
  return out;
}

// A folder of this test's own.
fs::path Scratch(const std::string& name) {
  const fs::path path = fs::path(testing::TempDir()) / ("hf_parity_" + name);
  fs::remove_all(path);
  fs::create_directories(path);
  return path;
}

fs::path CopyOf(const std::string& folder, const std::string& name) {
  const fs::path path = Scratch(name);
  fs::copy(folder, path, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  return path;
}

void Edit(const fs::path& folder, const std::function<void(nlohmann::json&)>& change) {
  nlohmann::json json = nlohmann::json::parse(std::ifstream(folder / "config.json"));
  change(json);
  std::ofstream(folder / "config.json") << json.dump();
}

std::string RefusalOf(const std::string& folder) {
  const auto loaded = Load(folder);
  return loaded.ok() ? "loaded" : std::string(loaded.status().message());
}

const char* const kFamilies[] = {"llama",    "mixtral",     "olmoe",      "qwen3_moe",
                                 "deepseek", "deepseek_v2", "deepseek_v3"};

class Family : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, Family, testing::ValuesIn(kFamilies),
                         [](const auto& info) { return std::string(info.param); });

// FL-1: logits to 1e-4 in float32 and 1e-10 in float64, the same experts in the same order, and as
// many parameters as the accounting says.
TEST_P(Family, ComputesWhatItComputesElsewhere) {
  const auto expected = Tensors(kGolden + GetParam() + ".safetensors");
  auto loaded = Load(kGolden + GetParam());
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  uint64_t count = 0;
  for (const auto& [name, tensor] : loaded->model->NamedParameters()) count += tensor.numel();
  EXPECT_EQ(count, spec::Account(RunOf(loaded->spec), loaded->spec.vocab()).params_total);

  const c10::NoGradGuard no_grad;
  const at::Tensor& tokens = expected.at("tokens");
  for (const auto& [type, limit] : {std::pair{at::kFloat, 1e-4}, std::pair{at::kDouble, 1e-10}}) {
    for (const auto& [name, tensor] : loaded->model->NamedParameters()) {
      tensor.set_data(tensor.detach().to(type));
    }
    const at::Tensor logits = loaded->model->Logits(tokens, {}, nullptr, 0);
    EXPECT_LT(Distance(logits.to(at::kDouble), expected.at("logits")), limit);
    const ForwardResult result =
        loaded->model->Forward(tokens, tokens, {.wants_routing = true}, nullptr, 0);
    for (const LayerRouting& routing : result.routing) {
      const auto& experts = expected.at(StrCat("experts.", routing.layer));
      EXPECT_TRUE(routing.expert_ids.equal(experts)) << "layer " << routing.layer;
    }
    EXPECT_EQ(result.routing.size(), expected.size() - 2);
  }
}

// Export and import again, one tensor per expert, stacked, and in shards: the same bits under the
// same names (FL-3, LT3).
TEST_P(Family, ComesBackFromItsExport) {
  auto loaded = Load(kGolden + GetParam());
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  for (const bool is_fused : {false, true}) {
    for (const uint64_t shard_bytes : {uint64_t{1} << 40, uint64_t{2000}}) {
      const fs::path folder = Scratch(StrCat("export_", GetParam())) / "out";
      const Status written =
          ExportHf(folder, loaded->spec, *loaded->model,
                   {.is_fused = is_fused, .shard_bytes = shard_bytes, .context = 64});
      ASSERT_TRUE(written.ok()) << written.message();
      EXPECT_EQ(fs::exists(folder / "model.safetensors.index.json"), shard_bytes == 2000);
      auto again = Load(folder);
      ASSERT_TRUE(again.ok()) << again.status().message();
      EXPECT_THAT(again->notices, testing::IsEmpty());
      for (const auto& [name, tensor] : loaded->model->NamedParameters()) {
        EXPECT_TRUE(TensorOf(*again->model, name).equal(tensor)) << name;
      }
      for (const auto& [name, tensor] : loaded->model->NamedBuffers()) {
        EXPECT_TRUE(TensorOf(*again->model, name).equal(tensor)) << name;
      }
      EXPECT_FALSE(ExportHf(folder, loaded->spec, *loaded->model, {}).ok()) << "over an old one";
    }
  }
}

// The per-expert files of an export are the files it was read from.
TEST_P(Family, ExportsTheTensorsItRead) {
  auto loaded = Load(kGolden + GetParam());
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const fs::path folder = Scratch(StrCat("same_", GetParam())) / "out";
  ASSERT_TRUE(ExportHf(folder, loaded->spec, *loaded->model, {.context = 64}).ok());
  auto before = data::SafetensorsFile::Open(kGolden + GetParam() + "/model.safetensors");
  auto after = data::SafetensorsFile::Open(folder / "model.safetensors");
  ASSERT_TRUE(before.ok() && after.ok());
  ASSERT_EQ((*before)->tensors().size(), (*after)->tensors().size());
  for (const data::TensorView& tensor : (*before)->tensors()) {
    const data::TensorView* found = (*after)->Find(tensor.name);
    ASSERT_NE(found, nullptr) << tensor.name;
    EXPECT_EQ(found->shape, tensor.shape) << tensor.name;
    EXPECT_EQ(found->data, tensor.data) << tensor.name;
  }
}

struct SharedCase {
  const char* name;
  const char* prefix;  // of the files' names
  bool lacks_score_factor;
};

class SharedCheckpoint : public testing::TestWithParam<SharedCase> {};
INSTANTIATE_TEST_SUITE_P(
    All, SharedCheckpoint,
    testing::Values(SharedCase{"mixtral", "", false}, SharedCase{"olmoe", "", false},
                    SharedCase{"qwen3_moe", "", false}, SharedCase{"qwen3_moe_mixed", "", false},
                    SharedCase{"deepseek_v2", "", false}, SharedCase{"deepseek_v2_yarn", "", true},
                    SharedCase{"llama_dense_sharded", "tiny_llama_", false}),
    [](const auto& info) { return std::string(info.param.name); });

// FL-1b: logits of transformers to 1e-4.
TEST_P(SharedCheckpoint, HasTheStoredLogits) {
  const fs::path source = kShared + GetParam().name;
  if (!fs::exists(source)) GTEST_SKIP() << "no sample checkpoints at " << source;
  const fs::path folder = CopyOf(source, StrCat("shared_", GetParam().name));
  const std::string prefix = GetParam().prefix;
  if (!prefix.empty()) fs::rename(folder / (prefix + "config.json"), folder / "config.json");
  auto checkpoint = HfCheckpoint::Open(folder);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  v1::ModelSpec spec = (*checkpoint)->model();
  // The releases that made these logits left the factor out.
  if (GetParam().lacks_score_factor) {
    spec.mutable_decoder()->mutable_yarn()->set_score_factor(false);
  }
  const auto model = MakeModel(RunOf(spec), {.vocab_size = spec.vocab()});
  std::vector<std::string> notices;
  const Status copied = (*checkpoint)->CopyTo(*model, {}, &notices);
  ASSERT_TRUE(copied.ok()) << copied.message();
  EXPECT_EQ(notices.empty(), prefix.empty()) << "only the Llama files hold rotary tables";

  const auto json = nlohmann::json::parse(std::ifstream(folder / (prefix + "logits.json")));
  const auto all_experts = nlohmann::json::parse(std::ifstream(kGolden + "shared_experts.json"));
  const auto experts = all_experts.value(GetParam().name, nlohmann::json::object());
  const c10::NoGradGuard no_grad;
  for (size_t s = 0; s < json.at("sequences").size(); ++s) {
    const auto ids = json.at("sequences")[s].get<std::vector<int64_t>>();
    const at::Tensor tokens = at::tensor(ids, at::kLong).unsqueeze(0);
    // The same experts as transformers, in the same order
    // (tests/parity/make_shared_expert_fixtures.py).
    for (const LayerRouting& routing :
         model->Forward(tokens, tokens, {.wants_routing = true}, nullptr, 0).routing) {
      if (experts.empty()) continue;
      const auto chosen =
          experts.at(std::to_string(routing.layer))[s].get<std::vector<std::vector<int64_t>>>();
      for (size_t t = 0; t < chosen.size(); ++t) {
        EXPECT_TRUE(routing.expert_ids[static_cast<int64_t>(t)].equal(at::tensor(chosen[t])))
            << "layer " << routing.layer << ", sequence " << s << ", position " << t;
      }
    }
    const at::Tensor logits = model->Logits(tokens, {}, nullptr, 0)[0];
    const auto rows = json.at("logits")[s].get<std::vector<std::vector<double>>>();
    for (size_t t = 0; t < rows.size(); ++t) {
      const at::Tensor row = at::tensor(rows[t], at::kDouble);
      EXPECT_LT(Distance(logits[static_cast<int64_t>(t)].to(at::kDouble), row), 1e-4)
          << "sequence " << s << ", position " << t;
    }
  }
}

TEST(SharedCheckpoint, OfOtherFamiliesIsRefusedByName) {
  if (!fs::exists(kShared)) GTEST_SKIP() << "no sample checkpoints at " << kShared;
  for (const auto& [folder, type] :
       {std::pair{"qwen3_5_moe", "qwen3_5_moe"}, std::pair{"granitemoe", "granitemoe"},
        std::pair{"granitemoeshared", "granitemoe"}, std::pair{"gpt_oss", "gpt_oss"}}) {
    EXPECT_THAT(RefusalOf(kShared + folder), HasSubstr(StrCat("model_type '", type, "'")));
  }
}

// Malformed weights and configurations, each with its reason.
TEST(Refusal, OfOddFiles) {
  const fs::path odd = kSource + "/../shared/data/odd";
  if (!fs::exists(odd)) GTEST_SKIP() << "no odd files at " << odd;
  for (const auto& entry : fs::directory_iterator(odd / "safetensors")) {
    const fs::path folder = CopyOf(kGolden + "mixtral", "odd");
    fs::copy_file(entry.path(), folder / "model.safetensors", fs::copy_options::overwrite_existing);
    const std::string reason = RefusalOf(folder);
    const bool is_valid = entry.path().filename().string().starts_with("ok_");
    EXPECT_THAT(reason, HasSubstr(is_valid ? "the tensors are not those of a mixtral model"
                                           : "not a valid safetensors file"))
        << entry.path();
  }
  for (const auto& entry : fs::directory_iterator(odd / "config")) {
    const fs::path folder = CopyOf(kGolden + "mixtral", "odd_config");
    fs::copy_file(entry.path(), folder / "config.json", fs::copy_options::overwrite_existing);
    EXPECT_THAT(RefusalOf(folder),
                testing::AnyOf(HasSubstr("model_type is missing"), HasSubstr("not valid JSON")))
        << entry.path();
  }
}

struct ConfigFault {
  const char* family;
  const char* field;  // null: the field is removed
  const char* value;
  const char* message;
};

class ConfigRefusal : public testing::TestWithParam<ConfigFault> {};
INSTANTIATE_TEST_SUITE_P(
    Fields, ConfigRefusal,
    testing::Values(
        ConfigFault{"mixtral", "model_type", "\"gpt_oss\"", "model_type 'gpt_oss' is not known"},
        ConfigFault{"mixtral", "hidden_size", "\"8\"", "hidden_size is \"8\", expected a whole"},
        ConfigFault{"mixtral", "hidden_size", "99999999999999999999", "expected a whole number"},
        ConfigFault{"mixtral", "num_hidden_layers", "2147483648", "from 1 to 1000"},
        ConfigFault{"mixtral", "num_local_experts", "4.5", "num_local_experts is 4.5"},
        ConfigFault{"mixtral", "num_local_experts", "1000000000", "from 1 to 65536"},
        ConfigFault{"mixtral", "num_experts_per_tok", "-1", "num_experts_per_tok is -1"},
        ConfigFault{"mixtral", "num_experts_per_tok", "5", "more than num_local_experts 4"},
        ConfigFault{"mixtral", "num_key_value_heads", "3", "3 does not divide num_attention_heads"},
        ConfigFault{"mixtral", "head_dim", "3", "head_dim 3 is odd"},
        ConfigFault{"mixtral", "vocab_size", "null", "vocab_size is null"},
        ConfigFault{"mixtral", "rms_norm_eps", "\"1e-5\"", "rms_norm_eps is \"1e-5\""},
        ConfigFault{"mixtral", "hidden_act", "\"gelu\"", "hidden_act is 'gelu'; only silu"},
        ConfigFault{"mixtral", "sliding_window", "16", "shorter than the context of 64"},
        ConfigFault{"mixtral", "router_jitter_noise", "0.1", "router_jitter_noise is not 0"},
        ConfigFault{"mixtral", "quantization_config", "{}", "quantization_config is set"},
        ConfigFault{"mixtral", "logits_scaling", "2", "logits_scaling is 2, which this importer"},
        ConfigFault{"mixtral", "rope_scaling", "{\"type\": \"linear\", \"factor\": 2}",
                    "rope_type is 'linear'; known: default, yarn"},
        ConfigFault{"mixtral", "rope_parameters", "{\"rope_theta\": 5}", "rope_theta is 5, and"},
        ConfigFault{"llama", "mlp_bias", "true", "mlp_bias is true"},
        ConfigFault{"llama", "attention_dropout", "0.1", "attention_dropout is not 0"},
        ConfigFault{"llama", "layer_types", "[\"sliding_attention\"]", "'sliding_attention'"},
        ConfigFault{"qwen3_moe", "mlp_only_layers", "[\"x\"]", "expected a list of whole numbers"},
        ConfigFault{"deepseek", "scoring_func", "\"sigmoid\"", "scoring_func is 'sigmoid'"},
        ConfigFault{"deepseek_v2", "attention_bias", "true", "attention_bias is true"},
        ConfigFault{"deepseek_v2", "moe_layer_freq", "2", "moe_layer_freq is 2"},
        ConfigFault{"deepseek_v2", "num_key_value_heads", "2", "one key per head"},
        ConfigFault{"deepseek_v2", "norm_topk_prob", "true", "norm_topk_prob is true"},
        ConfigFault{"deepseek_v2", "topk_method", "\"noaux_tc\"", "topk_method is 'noaux_tc'"},
        ConfigFault{"deepseek_v2", "n_group", "3", "n_group is 3"},
        ConfigFault{"deepseek_v3", "topk_method", "\"greedy\"", "topk_method is 'greedy'"}));

// One wrong field in a folder that is right otherwise.
TEST_P(ConfigRefusal, NamesTheField) {
  const fs::path folder = CopyOf(kGolden + GetParam().family, "config");
  Edit(folder, [](nlohmann::json& json) {
    json[GetParam().field] = nlohmann::json::parse(GetParam().value);
  });
  EXPECT_THAT(RefusalOf(folder), HasSubstr(GetParam().message));
}

TEST(Refusal, OfAKeyThatStandsTwice) {
  const fs::path folder = CopyOf(kGolden + "mixtral", "twice");
  std::ofstream(folder / "config.json") << R"({"model_type": "mixtral", "model_type": "olmoe"})";
  EXPECT_THAT(RefusalOf(folder), HasSubstr("the key 'model_type' appears twice"));
}

// Changes the tensors of a copy of the Mixtral folder.
std::string RefusalWith(
    const std::function<void(std::vector<data::TensorView>&, std::string& storage)>& change) {
  const fs::path folder = CopyOf(kGolden + "mixtral", "tensors");
  auto file = data::SafetensorsFile::Open(kGolden + "mixtral/model.safetensors");
  SWITCHYARD_CHECK(file.ok());
  std::vector<data::TensorView> tensors = (*file)->tensors();
  std::string storage;
  change(tensors, storage);
  SWITCHYARD_CHECK(
      data::WriteSafetensors(folder / "model.safetensors", tensors, {{"format", "pt"}}).ok());
  return RefusalOf(folder);
}

// LT3: a gap, a surplus, another shape or type: refused whole, with the first name and both shapes.
TEST(Refusal, OfTensorsThatDoNotMatch) {
  EXPECT_THAT(RefusalWith([](auto& tensors, auto&) {
                std::erase_if(tensors, [](const auto& t) {
                  return t.name.find("experts.3.") != std::string::npos;
                });
              }),
              HasSubstr("missing: model.layers.0.block_sparse_moe.experts.3.w1.weight [10, 12] "
                        "(and 5 more like it)"));
  EXPECT_THAT(RefusalWith([](auto& tensors, auto& storage) {
                storage.assign(4, '\0');
                tensors.push_back({.name = "model.layers.0.extra.weight",
                                   .dtype = data::DType::kF32,
                                   .shape = {1},
                                   .data = storage});
              }),
              HasSubstr("not part of this model: model.layers.0.extra.weight [1]"));
  EXPECT_THAT(RefusalWith([](auto& tensors, auto&) {
                for (auto& t : tensors) {
                  if (t.name == "lm_head.weight") std::swap(t.shape[0], t.shape[1]);
                }
              }),
              HasSubstr("lm_head.weight is [12, 13], expected [13, 12]"));
  EXPECT_THAT(RefusalWith([](auto& tensors, auto&) {
                for (auto& t : tensors) {
                  if (t.name == "lm_head.weight") t.dtype = data::DType::kI32;
                }
              }),
              HasSubstr("lm_head.weight is of type I32, expected a floating one"));
}

// An 8-expert configuration on a 4-expert file: the first missing name and both shapes (LT3).
TEST(Refusal, OfMoreExpertsThanTheFileHas) {
  const fs::path folder = CopyOf(kGolden + "mixtral", "experts");
  Edit(folder, [](nlohmann::json& json) { json["num_local_experts"] = 8; });
  const std::string reason = RefusalOf(folder);
  EXPECT_THAT(reason, HasSubstr("missing: model.layers.0.block_sparse_moe.experts.4.w1.weight"));
  EXPECT_THAT(reason, HasSubstr("block_sparse_moe.gate.weight is [4, 12], expected [8, 12]"));
}

// What `fresh` names may be missing; it keeps its value.
TEST(Fresh, KeepsWhatTheFileLacks) {
  const fs::path folder = CopyOf(kGolden + "mixtral", "fresh");
  auto file = data::SafetensorsFile::Open(kGolden + "mixtral/model.safetensors");
  ASSERT_TRUE(file.ok());
  std::vector<data::TensorView> tensors = (*file)->tensors();
  std::erase_if(tensors, [](const auto& t) { return t.name == "lm_head.weight"; });
  ASSERT_TRUE(data::WriteSafetensors(folder / "model.safetensors", tensors, {}).ok());
  EXPECT_THAT(RefusalOf(folder), HasSubstr("missing: lm_head.weight [13, 12]"));
  auto checkpoint = HfCheckpoint::Open(folder);
  ASSERT_TRUE(checkpoint.ok());
  const auto model = MakeModel(RunOf((*checkpoint)->model()), {.vocab_size = 13});
  const at::Tensor head = TensorOf(*model, "lm_head.weight").detach().clone();
  std::vector<std::string> notices;
  const Status copied = (*checkpoint)->CopyTo(*model, {"lm_*"}, &notices);
  ASSERT_TRUE(copied.ok()) << copied.message();
  EXPECT_TRUE(TensorOf(*model, "lm_head.weight").equal(head));
  EXPECT_THAT(notices, testing::ElementsAre(HasSubstr("lm_head.weight is not there")));
}

TEST(Refusal, OfAModelFarAboveTheFiles) {
  const fs::path folder = CopyOf(kGolden + "mixtral", "large");
  Edit(folder, [](nlohmann::json& json) {
    json["hidden_size"] = 65536;
    json["num_hidden_layers"] = 1000;
  });
  EXPECT_THAT(RefusalOf(folder), HasSubstr("parameters, the files hold"));
}

TEST(Refusal, OfAnIndexThatDoesNotMatchItsShards) {
  auto loaded = Load(kGolden + "mixtral");
  ASSERT_TRUE(loaded.ok());
  const fs::path folder = Scratch("index") / "out";
  ASSERT_TRUE(ExportHf(folder, loaded->spec, *loaded->model, {.shard_bytes = 4000}).ok());
  const fs::path index = folder / "model.safetensors.index.json";
  const auto good = nlohmann::json::parse(std::ifstream(index));
  const auto refusal = [&](const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json json = good;
    change(json);
    std::ofstream(index) << json.dump();
    return RefusalOf(folder);
  };
  EXPECT_THAT(refusal([](auto& json) { json["weight_map"].erase("lm_head.weight"); }),
              HasSubstr("holds lm_head.weight, which the index does not place there"));
  EXPECT_THAT(refusal([](auto& json) {
                json["weight_map"]["model.more.weight"] = json["weight_map"]["lm_head.weight"];
              }),
              HasSubstr("model.more.weight is said to be in"));
  EXPECT_THAT(refusal([](auto& json) { json["weight_map"]["lm_head.weight"] = "../x"; }),
              HasSubstr("is not the name of a file in the same folder"));
  EXPECT_THAT(refusal([](auto& json) { json["weight_map"] = nlohmann::json::object(); }),
              HasSubstr("weight_map is empty"));
  EXPECT_THAT(refusal([](auto& json) { json.erase("weight_map"); }), HasSubstr("weight_map"));
  std::ofstream(index) << good.dump();
  EXPECT_EQ(RefusalOf(folder), "loaded");
  fs::remove(folder / good["weight_map"]["lm_head.weight"].get<std::string>());
  EXPECT_THAT(RefusalOf(folder), HasSubstr("No such file"));
}

// What a family cannot say is not exported as if it could.
TEST(Refusal, OfAnExportThatNoFamilyDescribes) {
  auto loaded = Load(kGolden + "mixtral");
  ASSERT_TRUE(loaded.ok());
  const auto refusal = [&](const std::function<void(v1::ModelSpec&)>& change) {
    v1::ModelSpec spec = loaded->spec;
    change(spec);
    return std::string(ExportHf(Scratch("none") / "out", spec, *loaded->model, {}).message());
  };
  EXPECT_THAT(refusal([](v1::ModelSpec& spec) {
                spec.mutable_moe()->mutable_router()->set_gate_norm(v1::GATE_NORM_SOFTMAX_TOPK);
              }),
              HasSubstr("gate_norm"));
  EXPECT_THAT(refusal([](v1::ModelSpec& spec) {
                spec.mutable_decoder()->set_norm(v1::NORM_KIND_LAYERNORM);
              }),
              HasSubstr("norm"));
  EXPECT_THAT(
      refusal([](v1::ModelSpec& spec) { spec.mutable_moe()->mutable_router()->mutable_smoe(); }),
      HasSubstr("no Hugging Face family has it"));
}

// MR2: the same scores give other weights where the configuration says so, and the flag stands in
// the model's spec.
TEST(GateNorm, IsTheConfigurationsAndVisible) {
  const fs::path folder = CopyOf(kGolden + "olmoe", "mr2");
  auto plain = Load(folder);
  Edit(folder, [](nlohmann::json& json) { json["norm_topk_prob"] = true; });
  auto renormalised = Load(folder);
  ASSERT_TRUE(plain.ok() && renormalised.ok());
  EXPECT_EQ(plain->spec.moe().router().gate_norm(), v1::GATE_NORM_SOFTMAX_FULL);
  EXPECT_EQ(renormalised->spec.moe().router().gate_norm(), v1::GATE_NORM_SOFTMAX_FULL_RENORM);
  const at::Tensor tokens = Tensors(kGolden + "olmoe.safetensors").at("tokens");
  const auto sums = [&](LanguageModel& model) {
    return model.Forward(tokens, tokens, {.wants_routing = true}, nullptr, 0)
        .routing[0]
        .weights.sum(1);
  };
  EXPECT_LT(sums(*plain->model).max().item<double>(), 0.9999);
  EXPECT_LT(Distance(sums(*renormalised->model), at::ones({24})), 1e-6);
}

}  // namespace
}  // namespace switchyard::model
