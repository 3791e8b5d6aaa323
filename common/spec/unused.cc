#include "common/spec/unused.h"

#include <string>
#include <utility>

#include "common/base/strings.h"
#include "common/spec/canonical.h"
#include "common/spec/router_properties.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;

class Dropper {
 public:
  explicit Dropper(pb::RunSpec* run) : run_(run) {}

  std::vector<UnusedField> Run() {
    DropOfKind();
    if (run_->data().has_files()) DropOfFiles(run_->mutable_data()->mutable_files());
    DropOfGuards();
    if (run_->model().has_decoder()) DropOfDecoder(run_->mutable_model()->mutable_decoder());
    if (run_->model().has_moe()) {
      pb::MoeSpec* moe = run_->mutable_model()->mutable_moe();
      if (moe->router().has_dense()) DropOfDense(moe);
      if (!moe->router().has_dense() && moe->router().kind_case() != pb::RouterSpec::KIND_NOT_SET) {
        DropOfRouter(moe);
      }
    }
    return std::move(dropped_);
  }

 private:
  // True, and noted, when `is_set`.
  bool Drop(bool is_set, std::string path, std::string reason) {
    if (is_set) dropped_.push_back({std::move(path), std::move(reason)});
    return is_set;
  }

  void DropOfKind() {
    const pb::RunKind kind = run_->kind();
    if (kind == pb::RUN_KIND_UNSPECIFIED) return;
    static constexpr char kNotTrained[] = "a run of this kind trains nothing";
    const bool is_trained = IsTrained(kind);
    if (!is_trained && kind != pb::RUN_KIND_BENCHMARK &&
        Drop(run_->has_train(), "train", kNotTrained)) {
      run_->clear_train();
    }
    if (!is_trained) {
      if (Drop(run_->has_guards(), "guards", kNotTrained)) run_->clear_guards();
      if (Drop(run_->eval().has_every_steps(), "eval.every_steps", kNotTrained)) {
        run_->mutable_eval()->clear_every_steps();
      }
      if (Drop(run_->eval().has_final(), "eval.final", kNotTrained)) {
        run_->mutable_eval()->clear_final();
      }
    }
    if (kind != pb::RUN_KIND_ANALYZE &&
        Drop(run_->has_analyze(), "analyze", "only a run of kind analyze has jobs of it")) {
      run_->clear_analyze();
    }
    if (kind != pb::RUN_KIND_BENCHMARK &&
        Drop(run_->has_benchmark(), "benchmark", "only a run of kind benchmark has jobs of it")) {
      run_->clear_benchmark();
    }
    if (run_->init().restore() == pb::RESTORE_NONE &&
        Drop(!run_->init().fresh().empty(), "init.fresh",
             "with restore none every tensor is drawn anew")) {
      run_->mutable_init()->clear_fresh();
    }
  }

  void DropOfGuards() {
    const bool has_router = run_->model().has_moe() && !run_->model().moe().router().has_dense();
    if (has_router || !run_->has_guards()) return;
    static constexpr char kNoRouter[] = "a model without experts has no router to watch";
    if (Drop(run_->guards().has_router_collapse(), "guards.router_collapse", kNoRouter)) {
      run_->mutable_guards()->clear_router_collapse();
    }
    if (Drop(run_->guards().has_dead_expert(), "guards.dead_expert", kNoRouter)) {
      run_->mutable_guards()->clear_dead_expert();
    }
  }

  void DropOfFiles(pb::FilesData* files) {
    if (files->format() != pb::TEXT_FORMAT_JSONL &&
        Drop(files->has_max_bad_rows(), "data.files.max_bad_rows", "only jsonl has rows")) {
      files->clear_max_bad_rows();
    }
  }

  void DropOfDecoder(pb::DecoderSpec* decoder) {
    static constexpr char kNoMemory[] = "a decoder has no memory of earlier segments";
    if (Drop(run_->train().has_memory_len(), "train.memory_len", kNoMemory)) {
      run_->mutable_train()->clear_memory_len();
    }
    if (Drop(run_->eval().has_memory_len(), "eval.memory_len", kNoMemory)) {
      run_->mutable_eval()->clear_memory_len();
    }
    const pb::PositionKind position = decoder->position();
    if (position != pb::POSITION_KIND_LEARNED &&
        Drop(decoder->has_context(), "model.decoder.context", "only learned positions have one")) {
      decoder->clear_context();
    }
    if (position != pb::POSITION_KIND_ROPE && position != pb::POSITION_KIND_UNSPECIFIED &&
        Drop(decoder->has_rope_theta(), "model.decoder.rope_theta", "only rope has one")) {
      decoder->clear_rope_theta();
    }
    if (position != pb::POSITION_KIND_ROPE && position != pb::POSITION_KIND_UNSPECIFIED) {
      static constexpr char kNoRope[] = "only rope turns pairs";
      if (Drop(decoder->has_yarn(), "model.decoder.yarn", kNoRope)) decoder->clear_yarn();
      if (Drop(decoder->has_rope_interleaved(), "model.decoder.rope_interleaved", kNoRope)) {
        decoder->clear_rope_interleaved();
      }
    }
    if (decoder->has_mla()) {
      DropOfMla(decoder);
    } else if (Drop(decoder->yarn().has_score_factor(), "model.decoder.yarn.score_factor",
                    "only the scores of mla have one")) {
      decoder->mutable_yarn()->clear_score_factor();
    }
    if (decoder->yarn().has_attention_factor()) {
      static constexpr char kReplaced[] = "attention_factor replaces it";
      if (Drop(decoder->yarn().has_mscale(), "model.decoder.yarn.mscale", kReplaced)) {
        decoder->mutable_yarn()->clear_mscale();
      }
      // Still part of the score's factor.
      if (!decoder->has_mla() && Drop(decoder->yarn().has_mscale_all_dim(),
                                      "model.decoder.yarn.mscale_all_dim", kReplaced)) {
        decoder->mutable_yarn()->clear_mscale_all_dim();
      }
    }
  }

  void DropOfMla(pb::DecoderSpec* decoder) {
    static constexpr char kOwnShape[] = "mla has its own widths of heads";
    static constexpr char kNone[] = "mla has none";
    if (Drop(decoder->has_kv_heads(), "model.decoder.kv_heads", kOwnShape)) {
      decoder->clear_kv_heads();
    }
    if (Drop(decoder->has_head_dim(), "model.decoder.head_dim", kOwnShape)) {
      decoder->clear_head_dim();
    }
    if (Drop(decoder->qk_norm() != 0, "model.decoder.qk_norm", kNone)) decoder->clear_qk_norm();
    if (Drop(decoder->has_qkv_clip(), "model.decoder.qkv_clip", kNone)) decoder->clear_qkv_clip();
    if (Drop(decoder->has_attn_bias(), "model.decoder.attn_bias", kNone)) {
      decoder->clear_attn_bias();
    }
  }

  void DropOfDense(pb::MoeSpec* moe) {
    static constexpr char kNoExperts[] = "the router dense has no experts";
    if (Drop(moe->has_top_k(), "model.moe.top_k", kNoExperts)) moe->clear_top_k();
    if (Drop(!moe->losses().empty(), "model.moe.losses", kNoExperts)) moe->clear_losses();
    if (Drop(moe->dispatch() != 0, "model.moe.dispatch", kNoExperts)) moe->clear_dispatch();
    if (Drop(moe->has_allow_constant_gate(), "model.moe.allow_constant_gate", kNoExperts)) {
      moe->clear_allow_constant_gate();
    }
    if (Drop(moe->has_combine_dropout(), "model.moe.combine_dropout", kNoExperts)) {
      moe->clear_combine_dropout();
    }
    pb::RouterSpec* router = moe->mutable_router();
    if (Drop(router->gate_norm() != 0, "model.moe.router.gate_norm", kNoExperts)) {
      router->clear_gate_norm();
    }
    if (Drop(router->has_noise(), "model.moe.router.noise", kNoExperts)) router->clear_noise();
    if (Drop(router->router_dtype() != 0, "model.moe.router.router_dtype", kNoExperts)) {
      router->clear_router_dtype();
    }
    if (Drop(moe->has_shared_experts(), "model.moe.shared_experts", kNoExperts)) {
      moe->clear_shared_experts();
    }
    if (Drop(moe->has_routed_scaling_factor(), "model.moe.routed_scaling_factor", kNoExperts)) {
      moe->clear_routed_scaling_factor();
    }
    if (Drop(moe->has_capacity(), "model.moe.capacity", kNoExperts)) moe->clear_capacity();
    if (Drop(moe->expert().kind() != 0, "model.moe.expert.kind",
             "the layers of the router dense are the backbone's own feed-forward parts")) {
      moe->mutable_expert()->clear_kind();
    }
    // Experts times their width is the default of d_ff.
    static constexpr char kHasWidth[] = "the router dense has its width from d_ff";
    if (moe->router().dense().has_d_ff()) {
      if (Drop(moe->experts() != 0, "model.moe.experts", kHasWidth)) moe->clear_experts();
      if (Drop(moe->expert().has_width(), "model.moe.expert.width", kHasWidth)) {
        moe->mutable_expert()->clear_width();
      }
    } else if (moe->experts() == 0 &&
               Drop(moe->expert().has_width(), "model.moe.expert.width",
                    "without experts the router dense has its width from d_inner")) {
      moe->mutable_expert()->clear_width();
    }
    if (moe->expert().kind() == 0 && !moe->expert().has_width()) moe->clear_expert();
  }

  void DropOfExpert(pb::ExpertSpec* expert) {
    if (expert->kind() == pb::EXPERT_KIND_STATIC &&
        Drop(expert->has_width(), "model.moe.expert.width", "static experts are one vector")) {
      expert->clear_width();
    }
    if (expert->kind() != pb::EXPERT_KIND_RANK1 &&
        Drop(expert->act() != 0, "model.moe.expert.act", "only rank1 experts have one to choose")) {
      expert->clear_act();
    }
  }

  void DropOfRouter(pb::MoeSpec* moe) {
    if (moe->has_expert()) DropOfExpert(moe->mutable_expert());
    pb::RouterSpec* router = moe->mutable_router();
    const std::string kind = RouterKindName(*router);
    const RouterProperties properties = PropertiesOf(*moe);
    if (!properties.has_scores) {
      const std::string no_scores = StrCat("the router ", kind, " has no scores");
      if (Drop(!moe->losses().empty(), "model.moe.losses", no_scores)) moe->clear_losses();
      if (Drop(router->has_noise(), "model.moe.router.noise", no_scores)) router->clear_noise();
    }
    if (router->has_hash() && router->gate_norm() != pb::GATE_NORM_UNIFORM &&
        Drop(router->gate_norm() != 0, "model.moe.router.gate_norm",
             "the router hash has no scores")) {
      router->clear_gate_norm();
    }
    if (!properties.is_trainable &&
        Drop(moe->has_allow_constant_gate(), "model.moe.allow_constant_gate",
             StrCat("a constant weight is nothing to refuse: no gradient is wanted by the router ",
                    kind))) {
      moe->clear_allow_constant_gate();
    }
    if (!router->has_mcf() && !router->has_rmoe() &&
        Drop(router->router_dtype() != 0, "model.moe.router.router_dtype",
             "only mcf and rmoe compute anything before their scores")) {
      router->clear_router_dtype();
    }
    DropOfNoise(router);
    DropOfKind(router);
  }

  void DropOfNoise(pb::RouterSpec* router) {
    if (!router->has_noise()) return;
    pb::NoiseSpec* noise = router->mutable_noise();
    // Without a kind the router's own is meant.
    const pb::NoiseKind kind = noise->kind() != 0      ? noise->kind()
                               : router->has_switch_() ? pb::NOISE_KIND_ADDITIVE_UNIFORM
                                                       : pb::NOISE_KIND_NONE;
    if (kind != pb::NOISE_KIND_ADDITIVE_UNIFORM && kind != pb::NOISE_KIND_INPUT_JITTER &&
        Drop(noise->has_eps(), "model.moe.router.noise.eps",
             "only additive_uniform and input_jitter have one")) {
      noise->clear_eps();
    }
    if (kind != pb::NOISE_KIND_GAUSSIAN_FIXED &&
        Drop(noise->has_std(), "model.moe.router.noise.std", "only gaussian_fixed has one")) {
      noise->clear_std();
    }
    if (noise->kind() == 0 && !noise->has_eps() && !noise->has_std()) router->clear_noise();
  }

  void DropOfSchedule(const std::string& kind, pb::KScheduleMode otherwise,
                      pb::KSchedule* schedule) {
    const pb::KScheduleMode mode = schedule->mode() == 0 ? otherwise : schedule->mode();
    const std::string path = StrCat("model.moe.router.", kind, ".schedule.");
    const bool is_constant = mode == pb::K_SCHEDULE_MODE_CONSTANT;
    const bool is_multi = mode == pb::K_SCHEDULE_MODE_MULTI_STEP;
    static constexpr char kConstant[] = "a constant number of experts is moe.top_k";
    if (is_constant && Drop(schedule->has_k_min(), path + "k_min", kConstant)) {
      schedule->clear_k_min();
    }
    if (is_constant && Drop(schedule->has_k_max(), path + "k_max", kConstant)) {
      schedule->clear_k_max();
    }
    if ((is_constant || is_multi) &&
        Drop(schedule->has_steps(), path + "steps",
             is_constant ? kConstant : "multi_step goes by its milestones")) {
      schedule->clear_steps();
    }
    if (!is_multi &&
        Drop(!schedule->milestones().empty(), path + "milestones", "only multi_step has them")) {
      schedule->clear_milestones();
    }
  }

  void DropOfKind(pb::RouterSpec* router) {
    switch (router->kind_case()) {
      case pb::RouterSpec::kSmoeDropout:
        if (router->smoe_dropout().has_schedule()) {
          DropOfSchedule("smoe_dropout", pb::K_SCHEDULE_MODE_LINEAR_INCREASE,
                         router->mutable_smoe_dropout()->mutable_schedule());
        }
        break;
      case pb::RouterSpec::kHyperRouter:
        if (router->hyper_router().has_schedule()) {
          DropOfSchedule("hyper_router", pb::K_SCHEDULE_MODE_CONSTANT,
                         router->mutable_hyper_router()->mutable_schedule());
        }
        break;
      case pb::RouterSpec::kHash:
        if (router->hash().balanced() && router->hash().multi() <= 1 &&
            Drop(router->hash().has_per_layer_table() && router->hash().per_layer_table(),
                 "model.moe.router.hash.per_layer_table",
                 "a balanced table follows from the frequencies alone: all layers' are equal")) {
          router->mutable_hash()->clear_per_layer_table();
        }
        break;
      case pb::RouterSpec::kRandomFixed: {
        pb::RandomFixedRouter* fixed = router->mutable_random_fixed();
        if (fixed->mode() > pb::RANDOM_FIXED_MODE_FROZEN_ROUTER &&
            Drop(fixed->score() != 0, "model.moe.router.random_fixed.score",
                 "only frozen_router has scores of the hidden state")) {
          fixed->clear_score();
        }
        break;
      }
      case pb::RouterSpec::kGshard: {
        pb::GshardRouter* gshard = router->mutable_gshard();
        if (gshard->has_random_second() && !gshard->random_second() &&
            Drop(gshard->has_fastmoe_compat(), "model.moe.router.gshard.fastmoe_compat",
                 "it moves random_second into evaluation, and that is off")) {
          gshard->clear_fastmoe_compat();
        }
        break;
      }
      case pb::RouterSpec::kExpertChoice: {
        pb::ExpertChoiceRouter* choice = router->mutable_expert_choice();
        if (!choice->threshold_inference() &&
            Drop(choice->has_threshold_decay(), "model.moe.router.expert_choice.threshold_decay",
                 "only threshold_inference has one")) {
          choice->clear_threshold_decay();
        }
        break;
      }
      default:
        break;
    }
  }

  pb::RunSpec* run_;
  std::vector<UnusedField> dropped_;
};

}  // namespace

std::vector<UnusedField> DropUnused(pb::RunSpec* run) { return Dropper(run).Run(); }

}  // namespace switchyard::spec
