#include <algorithm>
#include <cmath>
#include <string_view>

#include "common/base/strings.h"
#include "common/spec/accounting.h"
#include "common/spec/canonical.h"
#include "common/spec/policy.h"
#include "common/spec/quantity.h"
#include "common/spec/router_defaults.h"
#include "switchyard/v1/spec.pb.h"

// Defaults as the comments of spec.proto state them. Only what a run's kinds use is written out.
namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;

// Sets field NAME of MESSAGE where it is absent (proto presence).
#define SWITCHYARD_DEFAULT(message, name, value) \
  if (!(message)->has_##name()) (message)->set_##name(value)
// The same for an enum, whose 0 is "unspecified".
#define SWITCHYARD_DEFAULT_ENUM(message, name, value) \
  if ((message)->name() == 0) (message)->set_##name(value)

void FillFiles(pb::FilesData* files) {
  SWITCHYARD_DEFAULT_ENUM(files, tokens, pb::TOKENS_BYTES256);
  SWITCHYARD_DEFAULT_ENUM(files, format, pb::TEXT_FORMAT_TEXT);
  SWITCHYARD_DEFAULT(files, max_bytes_per_domain, 0);
  if (files->format() == pb::TEXT_FORMAT_JSONL) SWITCHYARD_DEFAULT(files, max_bad_rows, 100);
  pb::FilesSplit* split = files->mutable_split();
  SWITCHYARD_DEFAULT_ENUM(split, by, pb::SPLIT_BY_RECORD_ORDER);
  SWITCHYARD_DEFAULT(split, seed, 0);
  if (split->shares().empty()) {
    for (const double share : {0.9, 0.1, 0.0}) split->add_shares(share);
  }
  for (pb::Domain& domain : *files->mutable_domains()) SWITCHYARD_DEFAULT(&domain, weight, 1.0);
  std::stable_sort(
      files->mutable_domains()->begin(), files->mutable_domains()->end(),
      [](const pb::Domain& left, const pb::Domain& right) { return left.id() < right.id(); });
}

void FillData(pb::DataSpec* data) {
  switch (data->kind_case()) {
    case pb::DataSpec::kFiles:
      FillFiles(data->mutable_files());
      break;
    case pb::DataSpec::kEnwik8:
      SWITCHYARD_DEFAULT_ENUM(data->mutable_enwik8(), tokens, pb::TOKENS_BYTES256);
      break;
    case pb::DataSpec::kWikitext:
      SWITCHYARD_DEFAULT_ENUM(data->mutable_wikitext(), variant, pb::WIKITEXT_VARIANT_WT103);
      SWITCHYARD_DEFAULT_ENUM(data->mutable_wikitext(), tokens, pb::TOKENS_WORD);
      break;
    case pb::DataSpec::KIND_NOT_SET:
      break;
  }
}

void FillTransformerXl(pb::TransformerXlSpec* backbone) {
  SWITCHYARD_DEFAULT(backbone, dropout, 0.1);
  SWITCHYARD_DEFAULT(backbone, attn_dropout, 0.0);
  SWITCHYARD_DEFAULT(backbone, pre_norm, false);
  SWITCHYARD_DEFAULT(backbone, clamp_len, 0);
  SWITCHYARD_DEFAULT(backbone, same_length, false);
  SWITCHYARD_DEFAULT(backbone, init_std, 0.02);
  if (!backbone->softmax_cutoffs().empty()) SWITCHYARD_DEFAULT(backbone, div_val, 1);
}

void FillAttention(pb::DecoderSpec* backbone) {
  if (backbone->has_mla()) {
    SWITCHYARD_DEFAULT(backbone->mutable_mla(), q_rank, 0);
  } else {
    SWITCHYARD_DEFAULT(backbone, kv_heads, backbone->heads());
    if (!backbone->has_head_dim() && backbone->heads() > 0 &&
        backbone->d_model() % backbone->heads() == 0) {
      backbone->set_head_dim(backbone->d_model() / backbone->heads());
    }
    SWITCHYARD_DEFAULT_ENUM(backbone, qk_norm, pb::QK_NORM_NONE);
    SWITCHYARD_DEFAULT(backbone, qkv_clip, 0.0);
    SWITCHYARD_DEFAULT(backbone, attn_bias, false);
  }
  if (backbone->position() != pb::POSITION_KIND_ROPE) return;
  SWITCHYARD_DEFAULT(backbone, rope_theta, 10000.0);
  SWITCHYARD_DEFAULT(backbone, rope_interleaved, backbone->has_mla());
  if (!backbone->has_yarn()) return;
  pb::YarnSpec* yarn = backbone->mutable_yarn();
  SWITCHYARD_DEFAULT(yarn, beta_fast, 32.0);
  SWITCHYARD_DEFAULT(yarn, beta_slow, 1.0);
  SWITCHYARD_DEFAULT(yarn, truncate, true);
  if (backbone->has_mla()) SWITCHYARD_DEFAULT(yarn, score_factor, true);
}

void FillDecoder(pb::DecoderSpec* backbone, uint32_t longest_target) {
  SWITCHYARD_DEFAULT_ENUM(backbone, norm, pb::NORM_KIND_RMSNORM);
  SWITCHYARD_DEFAULT_ENUM(backbone, position, pb::POSITION_KIND_ROPE);
  if (backbone->position() == pb::POSITION_KIND_LEARNED) {
    SWITCHYARD_DEFAULT(backbone, context, longest_target);
  }
  FillAttention(backbone);
  SWITCHYARD_DEFAULT_ENUM(backbone, mlp, pb::MLP_KIND_SWIGLU);
  SWITCHYARD_DEFAULT(backbone, tied, false);
  SWITCHYARD_DEFAULT(backbone, norm_eps, 1e-5);
  SWITCHYARD_DEFAULT(backbone, dropout, 0.0);
  SWITCHYARD_DEFAULT(backbone, init_std, 0.02);
}

pb::ExpertKind ExpertKindOf(const pb::ModelSpec& model) {
  if (!model.has_decoder()) return pb::EXPERT_KIND_RELU;
  switch (model.decoder().mlp()) {
    case pb::MLP_KIND_GELU:
      return pb::EXPERT_KIND_GELU;
    case pb::MLP_KIND_RELU:
      return pb::EXPERT_KIND_RELU;
    default:
      return pb::EXPERT_KIND_SWIGLU;
  }
}

void FillLoss(pb::LossSpec* loss) {
  const std::string_view id = loss->id();
  const bool is_sequence = id == "megatron_seq" || id == "deepseek_seq";
  SWITCHYARD_DEFAULT_ENUM(loss, scope,
                          is_sequence               ? pb::LOSS_SCOPE_SEQUENCE
                          : id == "megatron_global" ? pb::LOSS_SCOPE_GLOBAL
                                                    : pb::LOSS_SCOPE_MICRO);
  SWITCHYARD_DEFAULT_ENUM(loss, layer_reduce,
                          id == "hf_mixtral"   ? pb::LAYER_REDUCE_POOLED
                          : id == "megablocks" ? pb::LAYER_REDUCE_MEAN
                                               : pb::LAYER_REDUCE_SUM);
}

void FillMoe(uint64_t steps, pb::ModelSpec* model) {
  pb::MoeSpec* moe = model->mutable_moe();
  const uint32_t d_inner =
      model->has_decoder() ? model->decoder().d_inner() : model->transformer_xl().d_inner();
  if (moe->router().has_dense()) {
    // Experts serve only to say the width here; the canonical form is the width.
    pb::DenseRouter* dense = moe->mutable_router()->mutable_dense();
    if (!dense->has_d_ff()) {
      const uint64_t width = moe->expert().has_width() ? moe->expert().width() : d_inner;
      const uint64_t d_ff = moe->experts() > 0 ? moe->experts() * width : d_inner;
      // Beyond 32 bits: validation refuses the largest value.
      dense->set_d_ff(static_cast<uint32_t>(std::min<uint64_t>(d_ff, UINT32_MAX)));
      moe->clear_experts();
      moe->mutable_expert()->clear_width();
      if (moe->expert().kind() == pb::EXPERT_KIND_UNSPECIFIED) moe->clear_expert();
    }
    return;
  }
  SWITCHYARD_DEFAULT_ENUM(moe->mutable_expert(), kind, ExpertKindOf(*model));
  const bool is_rank1 = moe->expert().kind() == pb::EXPERT_KIND_RANK1;
  if (moe->expert().kind() != pb::EXPERT_KIND_STATIC) {
    SWITCHYARD_DEFAULT(moe->mutable_expert(), width, is_rank1 ? 1 : d_inner);
  }
  if (is_rank1) SWITCHYARD_DEFAULT_ENUM(moe->mutable_expert(), act, pb::ACTIVATION_GELU);
  SWITCHYARD_DEFAULT_ENUM(moe, dispatch, pb::DISPATCH_AUTO);
  SWITCHYARD_DEFAULT(moe, combine_dropout, false);
  FillRouterDefaults(steps, moe);
  for (pb::LossSpec& loss : *moe->mutable_losses()) FillLoss(&loss);
  std::stable_sort(
      moe->mutable_losses()->begin(), moe->mutable_losses()->end(),
      [](const pb::LossSpec& left, const pb::LossSpec& right) { return left.id() < right.id(); });
}

template <typename AdamMessage>
void FillAdam(AdamMessage* adam) {
  SWITCHYARD_DEFAULT(adam, beta1, 0.9);
  SWITCHYARD_DEFAULT(adam, beta2, 0.999);
  SWITCHYARD_DEFAULT(adam, eps, 1e-8);
}

void FillTrain(pb::TrainSpec* train, bool has_memory) {
  const uint64_t tokens_per_step = uint64_t{train->batch()} * train->target_len();
  if (train->has_tokens() && !train->has_steps() && !train->has_data_epochs() &&
      train->tokens() > 0 && tokens_per_step > 0) {
    train->set_steps((train->tokens() - 1) / tokens_per_step + 1);
    train->clear_tokens();
  }
  // What says no more than leaving it out has one form: absent, as in runs from before the field.
  if (train->parallel().data() == 1) train->mutable_parallel()->clear_data();
  if (train->parallel().expert() == 1) train->mutable_parallel()->clear_expert();
  if (!train->parallel().has_data() && !train->parallel().has_expert()) train->clear_parallel();
  if (train->task() == pb::TRAIN_TASK_NEXT_TOKEN) train->clear_task();
  if (train->trainable_size() == 1 && train->trainable(0) == "*") train->clear_trainable();
  std::sort(train->mutable_keep_steps()->begin(), train->mutable_keep_steps()->end());
  SWITCHYARD_DEFAULT(train, micro_batch, train->batch());
  if (has_memory) SWITCHYARD_DEFAULT(train, memory_len, 0);
  SWITCHYARD_DEFAULT(train, warmup_steps, 0);
  SWITCHYARD_DEFAULT_ENUM(train, schedule, pb::SCHEDULE_CONSTANT);
  SWITCHYARD_DEFAULT_ENUM(train, precision, pb::PRECISION_FP32);
  SWITCHYARD_DEFAULT(train, txl_schedule_compat, false);
  switch (train->optimizer().kind_case()) {
    case pb::OptimizerSpec::kAdam:
      FillAdam(train->mutable_optimizer()->mutable_adam());
      break;
    case pb::OptimizerSpec::kAdamw:
      FillAdam(train->mutable_optimizer()->mutable_adamw());
      SWITCHYARD_DEFAULT(train->mutable_optimizer()->mutable_adamw(), weight_decay, 0.01);
      break;
    case pb::OptimizerSpec::KIND_NOT_SET:
      break;
  }
}

void FillEval(const pb::TrainSpec& train, pb::EvalSpec* eval, bool has_memory, bool is_trained) {
  if (is_trained) SWITCHYARD_DEFAULT(eval, every_steps, 0);
  if (eval->has_final()) {
    SWITCHYARD_DEFAULT_ENUM(eval->mutable_final(), checkpoint, pb::CHECKPOINT_CHOICE_BEST);
    if (eval->final().splits().empty()) eval->mutable_final()->add_splits(pb::SPLIT_TEST);
    std::sort(eval->mutable_final()->mutable_splits()->begin(),
              eval->mutable_final()->mutable_splits()->end());
  }
  if (!eval->allow_noncausal()) eval->clear_allow_noncausal();
  if (eval->splits().empty()) eval->add_splits(pb::SPLIT_VALID);
  std::sort(eval->mutable_splits()->begin(), eval->mutable_splits()->end());
  SWITCHYARD_DEFAULT(eval, target_len, train.target_len());
  if (has_memory) SWITCHYARD_DEFAULT(eval, memory_len, train.memory_len());
  SWITCHYARD_DEFAULT(eval, batch, train.batch());
  SWITCHYARD_DEFAULT(eval, max_tokens, 0);
}

// `best` is the default only where a run is named, and has no digest of its own.
void FillInit(pb::InitSpec* init) {
  SWITCHYARD_DEFAULT_ENUM(init, restore, pb::RESTORE_WEIGHTS);
  if (!init->run().empty() && init->digest().empty() && init->checkpoint().empty()) {
    init->set_checkpoint("best");
  }
}

// Options are texts to us; a number has one form all the same.
void NormalizeValue(pb::Value* value) {
  switch (value->kind_case()) {
    case pb::Value::kScalar:
      if (const std::optional<double> number = ParseDouble(value->scalar());
          number && std::isfinite(*number)) {
        value->set_scalar(FormatDouble(*number == 0 ? 0.0 : *number));
      }
      return;
    case pb::Value::kList:
      for (pb::Value& item : *value->mutable_list()->mutable_items()) NormalizeValue(&item);
      return;
    case pb::Value::kMap:
      for (pb::ValueEntry& entry : *value->mutable_map()->mutable_entries()) {
        NormalizeValue(entry.mutable_value());
      }
      return;
    case pb::Value::KIND_NOT_SET:
      return;
  }
}

// Jobs keep their order, which is that of the results; options have none.
template <typename Spec>
void FillJobs(Spec* spec) {
  for (pb::JobSpec& job : *spec->mutable_jobs()) {
    std::stable_sort(job.mutable_options()->begin(), job.mutable_options()->end(),
                     [](const pb::ValueEntry& left, const pb::ValueEntry& right) {
                       return left.key() < right.key();
                     });
    for (pb::ValueEntry& option : *job.mutable_options()) NormalizeValue(option.mutable_value());
  }
  std::sort(spec->mutable_layers()->begin(), spec->mutable_layers()->end());
}

void FillGuards(pb::GuardSpec* guards) {
  SWITCHYARD_DEFAULT(guards, non_finite, true);
  if (guards->has_divergence()) {
    SWITCHYARD_DEFAULT(guards->mutable_divergence(), factor, 2.0);
    SWITCHYARD_DEFAULT(guards->mutable_divergence(), window_steps, 100);
  }
  if (guards->has_router_collapse()) {
    SWITCHYARD_DEFAULT(guards->mutable_router_collapse(), min_usage_entropy, 0.3);
    SWITCHYARD_DEFAULT(guards->mutable_router_collapse(), steps, 500);
  }
  if (guards->has_dead_expert()) SWITCHYARD_DEFAULT(guards->mutable_dead_expert(), steps, 500);
}

// Whole updates that the FLOPs pay for, where the vocabulary is known; none are left as they are.
void ConvertActiveFlops(pb::RunSpec* run) {
  pb::TrainSpec* train = run->mutable_train();
  if (train->has_steps() || train->has_tokens() || train->has_data_epochs()) return;
  const double per_step = FlopsPerStep(*run);
  if (!Account(*run).vocab_known || !(per_step > 0)) return;
  const double steps = std::floor(train->active_flops() / per_step);
  constexpr double kStepsMax = 1e15;  // beyond what validation takes, and exact
  if (!(steps >= 1) || steps > kStepsMax) return;
  train->set_steps(static_cast<uint64_t>(steps));
  train->clear_active_flops();
}

}  // namespace

bool IsTrained(pb::RunKind kind) {
  return kind == pb::RUN_KIND_TRAIN || kind == pb::RUN_KIND_FINETUNE;
}

void FillDefaults(pb::RunSpec* run) {
  if (run->has_data()) FillData(run->mutable_data());
  const bool has_memory = !run->model().has_decoder();
  if (run->has_train()) {
    FillTrain(run->mutable_train(), has_memory);
    FillEval(run->train(), run->mutable_eval(), has_memory, IsTrained(run->kind()));
  } else if (run->has_eval()) {
    FillEval(run->train(), run->mutable_eval(), has_memory, false);
  }
  if (run->has_init()) FillInit(run->mutable_init());
  if (run->has_analyze()) FillJobs(run->mutable_analyze());
  if (run->has_benchmark()) FillJobs(run->mutable_benchmark());
  // With `init.hf` the model is the folder's, and what stands here are changes to it.
  if (run->has_model() && !run->init().has_hf()) {
    pb::ModelSpec* model = run->mutable_model();
    if (model->has_transformer_xl()) FillTransformerXl(model->mutable_transformer_xl());
    if (model->has_decoder()) {
      FillDecoder(model->mutable_decoder(),
                  std::max(run->train().target_len(), run->eval().target_len()));
    }
    if (model->has_moe()) FillMoe(run->train().steps(), model);
    const auto vocab = static_cast<uint32_t>(VocabFromData(*run));
    if (model->vocab() == 0 && vocab != 0) model->set_vocab(vocab);
  }
  if (run->train().has_active_flops()) ConvertActiveFlops(run);
  if (IsTrained(run->kind()) || run->kind() == pb::RUN_KIND_UNSPECIFIED) {
    FillGuards(run->mutable_guards());
  }
  run->set_numerics_class(kNumericsClass);
}

void FillPolicyDefaults(pb::PolicySpec* policy) {
  SWITCHYARD_DEFAULT(policy->mutable_resources(), gpus, 0);
  SWITCHYARD_DEFAULT(policy->mutable_resources(), cpu_slots,
                     policy->resources().gpus() > 0 ? 0 : 1);
  SWITCHYARD_DEFAULT(policy->mutable_resources(), memory_bytes, 0);
  SWITCHYARD_DEFAULT(policy->mutable_resources(), exclusive, false);
  SWITCHYARD_DEFAULT_ENUM(policy, on_disconnect, pb::ON_DISCONNECT_RESILIENT);
  if (policy->has_retry()) SWITCHYARD_DEFAULT(policy->mutable_retry(), max, 2);
  SWITCHYARD_DEFAULT(policy, priority, 0);
  SWITCHYARD_DEFAULT(policy, max_parallel, 0);
  SWITCHYARD_DEFAULT(policy, timeout_ms, 0);
  SWITCHYARD_DEFAULT(policy->mutable_telemetry(), every_steps, 20);
  SWITCHYARD_DEFAULT(policy->mutable_checkpoint(), every_ms, 600'000);
  SWITCHYARD_DEFAULT(policy->mutable_checkpoint(), keep_last, 2);
  SWITCHYARD_DEFAULT(policy->mutable_checkpoint(), keep_best, 1);
}

#undef SWITCHYARD_DEFAULT
#undef SWITCHYARD_DEFAULT_ENUM

}  // namespace switchyard::spec
