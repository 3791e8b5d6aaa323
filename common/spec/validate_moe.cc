#include "common/spec/validate_moe.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/strings.h"
#include "common/spec/checker.h"
#include "common/spec/router_properties.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;

// Bounds that keep every count of parameters and FLOPs in 64 bits.
constexpr uint64_t kInnerMax = 1 << 20;
constexpr uint64_t kExpertsMax = 1 << 16;
constexpr uint64_t kWindowMax = 1 << 16;
constexpr uint64_t kHopsMax = 1 << 10;

struct Loss {
  std::string_view id;
  pb::LossScope fixed_scope;  // unspecified: any
};
constexpr std::array<Loss, 14> kLosses = {{{"switch", pb::LOSS_SCOPE_UNSPECIFIED},
                                           {"gshard_top1", pb::LOSS_SCOPE_UNSPECIFIED},
                                           {"hf_mixtral", pb::LOSS_SCOPE_UNSPECIFIED},
                                           {"megatron_aux", pb::LOSS_SCOPE_UNSPECIFIED},
                                           {"megatron_seq", pb::LOSS_SCOPE_SEQUENCE},
                                           {"megatron_global", pb::LOSS_SCOPE_GLOBAL},
                                           {"megablocks", pb::LOSS_SCOPE_UNSPECIFIED},
                                           {"deepseek_seq", pb::LOSS_SCOPE_SEQUENCE},
                                           {"deepseek_batch", pb::LOSS_SCOPE_UNSPECIFIED},
                                           {"naive_balance", pb::LOSS_SCOPE_UNSPECIFIED},
                                           {"cv2", pb::LOSS_SCOPE_MICRO},
                                           {"sra", pb::LOSS_SCOPE_MICRO},
                                           {"flaxformer", pb::LOSS_SCOPE_UNSPECIFIED},
                                           {"z_loss", pb::LOSS_SCOPE_UNSPECIFIED}}};

std::string_view ScopeName(pb::LossScope scope) {
  switch (scope) {
    case pb::LOSS_SCOPE_GLOBAL:
      return "global";
    case pb::LOSS_SCOPE_SEQUENCE:
      return "sequence";
    default:
      return "micro";
  }
}

class MoeChecker : private Checker {
 public:
  explicit MoeChecker(const pb::RunSpec& run)
      : run_(run),
        moe_(run.model().moe()),
        router_(moe_.router()),
        kind_(RouterKindName(router_)) {}

  std::vector<Fault> Check() {
    CheckAll();
    return std::move(faults_);
  }

 private:
  void CheckAll() {
    CheckLayers();
    if (kind_.empty()) {
      return Fail("model.moe.router", StrCat("is required; known: ", KnownRouterKinds()));
    }
    if (router_.has_dense()) {
      Range("model.moe.router.dense.d_ff", router_.dense().d_ff(), 1, kInnerMax);
      return;
    }
    has_experts_ = Range("model.moe.experts", moe_.experts(), 1, kExpertsMax);
    if (has_experts_) Range("model.moe.top_k", moe_.top_k(), 1, moe_.experts());
    CheckExpert();
    Range("model.moe.shared_experts", moe_.shared_experts(), 0, kExpertsMax);
    Positive("model.moe.routed_scaling_factor", moe_.routed_scaling_factor());
    CheckKind();
    CheckGateNorm();
    CheckConstantGate();
    CheckNoise();
    if (moe_.has_capacity()) CheckCapacity();
    CheckLosses();
    CheckCausality();
  }

  std::string KindPath(std::string_view field) const {
    return StrCat("model.moe.router.", kind_, ".", field);
  }

  void CheckLayers() {
    const pb::ModelSpec& model = run_.model();
    const uint32_t layers =
        model.has_decoder() ? model.decoder().layers() : model.transformer_xl().layers();
    if (moe_.layers().empty()) Fail("model.moe.layers", "at least one layer is required");
    for (int i = 0; i < moe_.layers_size(); ++i) {
      if (moe_.layers(i) >= layers) {
        Fail("model.moe.layers",
             StrCat("layer ", moe_.layers(i), " is not in a backbone of ", layers, " layers"));
      }
      if (i > 0 && moe_.layers(i) <= moe_.layers(i - 1)) {
        Fail("model.moe.layers",
             StrCat(moe_.layers(i), " does not rise above ", moe_.layers(i - 1)));
      }
    }
  }

  void CheckSchedule(const pb::KSchedule& schedule) {
    if (schedule.mode() == pb::K_SCHEDULE_MODE_CONSTANT) return;
    if (has_experts_ && Range(KindPath("schedule.k_max"), schedule.k_max(), 1, moe_.experts())) {
      Range(KindPath("schedule.k_min"), schedule.k_min(), 1, schedule.k_max());
    }
    if (schedule.mode() == pb::K_SCHEDULE_MODE_MULTI_STEP) {
      if (schedule.milestones().empty()) {
        Fail(KindPath("schedule.milestones"), "multi_step needs at least one");
      }
      for (int i = 1; i < schedule.milestones_size(); ++i) {
        if (schedule.milestones(i) <= schedule.milestones(i - 1)) {
          Fail(KindPath("schedule.milestones"),
               StrCat(schedule.milestones(i), " does not rise above ", schedule.milestones(i - 1)));
        }
      }
      return;
    }
    if (!schedule.has_steps()) {
      Fail(KindPath("schedule.steps"), "is required where train.steps is not given");
    } else {
      Range(KindPath("schedule.steps"), schedule.steps(), 1, uint64_t{1} << 40);
    }
  }

  void CheckGroupLimit(const pb::GroupLimit& limit) {
    if (!has_experts_) return;
    const std::string path = KindPath("group_limit");
    if (!Range(path + ".groups", limit.groups(), 1, moe_.experts()) ||
        !Range(path + ".topk_groups", limit.topk_groups(), 1, limit.groups())) {
      return;
    }
    if (moe_.experts() % limit.groups() != 0) {
      return Fail(path + ".groups",
                  StrCat(limit.groups(), " does not divide experts ", moe_.experts()));
    }
    const uint64_t per_group = moe_.experts() / limit.groups();
    if (limit.topk_groups() * per_group < moe_.top_k()) {
      Fail(path + ".topk_groups", StrCat(limit.topk_groups(), " groups of ", per_group,
                                         " experts hold fewer than top_k ", moe_.top_k()));
    }
    if (limit.score() == pb::GROUP_SCORE_TOP2_SUM && per_group < 2) {
      Fail(path + ".score", "top2_sum needs groups of at least 2 experts; use max");
    }
  }

  void CheckExpert() {
    const pb::ExpertKind kind = moe_.expert().kind();
    if (kind != pb::EXPERT_KIND_STATIC) {
      Range("model.moe.expert.width", moe_.expert().width(), 1, kInnerMax);
    }
    if ((kind == pb::EXPERT_KIND_STATIC || kind == pb::EXPERT_KIND_RANK1) &&
        moe_.shared_experts() > 0) {
      Fail("model.moe.shared_experts", "experts of kind rank1 and static are never shared");
    }
  }

  void CheckMcf(const pb::McfRouter& mcf) {
    if (mcf.use_local()) {
      Range(KindPath("r"), mcf.r(), 1, kWindowMax);
      Range(KindPath("k_loc"), mcf.k_loc(), 1, kWindowMax);
    }
    Positive(KindPath("tau"), mcf.tau());
    Fraction(KindPath("out_dropout"), mcf.out_dropout());
    CheckRouterMemory(mcf);
    if (!mcf.use_global()) return;
    Range(KindPath("k_hist"), mcf.k_hist(), 0, kInnerMax);
    Range(KindPath("heads"), mcf.heads(), 1, kWindowMax);
    Range(KindPath("d_kv"), mcf.d_kv(), 1, kWindowMax);
    Fraction(KindPath("attn_dropout"), mcf.attn_dropout());
    if (mcf.position() == pb::ROUTER_POSITION_ROPE && mcf.d_kv() % 2 != 0) {
      Fail(KindPath("d_kv"), StrCat(mcf.d_kv(), " is odd; rotary positions need an even one"));
    }
    if (mcf.global_mask() == pb::GLOBAL_MASK_WINDOW && !mcf.use_local()) {
      Fail(KindPath("global_mask"), "window has its width from the local branch, which is off");
    }
  }

  void CheckRouterMemory(const pb::McfRouter& mcf) {
    if (mcf.router_mem_len() == 0) return;
    const std::string path = KindPath("router_mem_len");
    if (!Range(path, mcf.router_mem_len(), 0, kInnerMax)) return;
    if (run_.model().has_decoder() || run_.train().memory_len() == 0) {
      return Fail(path, "needs transformer_xl and train.memory_len above 0, whose memory holds it");
    }
    if (mcf.use_global() && (mcf.history() != pb::HISTORY_SOURCE_GATE_INPUT ||
                             mcf.history_layers() != pb::HISTORY_LAYERS_MOE ||
                             mcf.history_norm() != pb::HISTORY_NORM_NORMALISED)) {
      Fail(path,
           "remembers what the routers saw; it needs history gate_input, history_layers moe and "
           "history_norm normalised");
    }
  }

  void CheckCosine(const pb::CosineRouter& cosine) {
    Range(KindPath("d_score"), cosine.d_score(), 1, kInnerMax);
    Range(KindPath("hops"), cosine.hops(), 1, kHopsMax);
    Positive(KindPath("tau"), cosine.tau());
    NotNegative(KindPath("halt_eps"), cosine.halt_eps());
    if (!cosine.hop_top_k().empty() && std::cmp_not_equal(cosine.hop_top_k_size(), cosine.hops())) {
      Fail(KindPath("hop_top_k"),
           StrCat("has ", cosine.hop_top_k_size(), " numbers for ", cosine.hops(), " hops"));
    }
    for (const uint32_t k : cosine.hop_top_k()) {
      if (has_experts_) Range(KindPath("hop_top_k"), k, 1, moe_.experts());
    }
    if (moe_.routed_scaling_factor() != 1.0) {
      Fail("model.moe.routed_scaling_factor",
           "the router cosine adds up hops of its own; use cosine.magnitude");
    }
    if (router_.noise().kind() != pb::NOISE_KIND_NONE) {
      Fail("model.moe.router.noise.kind", "the router cosine has no noise");
    }
  }

  void CheckKind() {
    switch (router_.kind_case()) {
      case pb::RouterSpec::kHash: {
        const uint32_t multi = router_.hash().multi();
        if (!Range(KindPath("multi"), multi, 1, kExpertsMax) || multi == 1) break;
        if (moe_.top_k() != multi) {
          Fail("model.moe.top_k",
               StrCat(moe_.top_k(), " is not the number of blocks, hash.multi ", multi));
        }
        if (moe_.experts() % multi != 0) {
          Fail(KindPath("multi"), StrCat(multi, " does not divide experts ", moe_.experts()));
        }
        break;
      }
      case pb::RouterSpec::kSmoeDropout:
        CheckSchedule(router_.smoe_dropout().schedule());
        Fraction(KindPath("logit_dropout"), router_.smoe_dropout().logit_dropout());
        break;
      case pb::RouterSpec::kHyperRouter:
        CheckSchedule(router_.hyper_router().schedule());
        Range(KindPath("hyper_size"), router_.hyper_router().hyper_size(), 1, kInnerMax);
        break;
      case pb::RouterSpec::kRmoe:
        Range(KindPath("state_size"), router_.rmoe().state_size(), 1, kInnerMax);
        break;
      case pb::RouterSpec::kMcf:
        CheckMcf(router_.mcf());
        break;
      case pb::RouterSpec::kCosine:
        CheckCosine(router_.cosine());
        break;
      case pb::RouterSpec::kXmoe:
        Range(KindPath("proj_dim"), router_.xmoe().proj_dim(), 1, kInnerMax);
        Positive(KindPath("tau"), router_.xmoe().tau());
        break;
      case pb::RouterSpec::kSwitch:
      case pb::RouterSpec::kBase:
        if (moe_.top_k() != 1) {
          Fail("model.moe.top_k",
               StrCat("the router ", kind_, " chooses 1 expert, not ", moe_.top_k()));
        }
        break;
      case pb::RouterSpec::kGshard:
        if (moe_.top_k() != 2) {
          Fail("model.moe.top_k",
               StrCat("the router gshard chooses 2 experts, not ", moe_.top_k()));
        }
        break;
      case pb::RouterSpec::kExpertChoice:
        if (router_.expert_choice().threshold_inference()) {
          Fraction(KindPath("threshold_decay"), router_.expert_choice().threshold_decay());
        }
        break;
      case pb::RouterSpec::kSinkhorn:
        Range(KindPath("iterations_max"), router_.sinkhorn().iterations_max(), 1, 100'000);
        Positive(KindPath("tolerance"), router_.sinkhorn().tolerance());
        break;
      case pb::RouterSpec::kBiasBalanced:
        NotNegative(KindPath("bias_update_rate"), router_.bias_balanced().bias_update_rate());
        if (router_.bias_balanced().has_group_limit()) {
          CheckGroupLimit(router_.bias_balanced().group_limit());
        }
        break;
      case pb::RouterSpec::kDeepseek:
        if (router_.deepseek().has_group_limit()) {
          CheckGroupLimit(router_.deepseek().group_limit());
        }
        break;
      default:
        break;
    }
  }

  // Kinds whose weights cannot follow every norm.
  void CheckGateNorm() {
    const auto only = [&](std::initializer_list<pb::GateNorm> norms, std::string_view names) {
      if (std::ranges::find(norms, router_.gate_norm()) == norms.end()) {
        Fail("model.moe.router.gate_norm", StrCat("the router ", kind_, " has only ", names));
      }
    };
    switch (router_.kind_case()) {
      case pb::RouterSpec::kHash:
        return only({pb::GATE_NORM_UNIFORM}, "uniform");
      case pb::RouterSpec::kRandomFixed:
        if (router_.random_fixed().mode() == pb::RANDOM_FIXED_MODE_TOKEN_TABLE ||
            router_.random_fixed().mode() == pb::RANDOM_FIXED_MODE_POSITION_TABLE) {
          return only({pb::GATE_NORM_UNIFORM}, "uniform with tables");
        }
        return;
      case pb::RouterSpec::kExpertChoice:
        return only({pb::GATE_NORM_SOFTMAX_FULL}, "softmax_full");
      case pb::RouterSpec::kBase:
        return only({pb::GATE_NORM_SIGMOID}, "sigmoid");
      case pb::RouterSpec::kSinkhorn:
        return only({pb::GATE_NORM_SIGMOID, pb::GATE_NORM_SOFTMAX_FULL},
                    "sigmoid and softmax_full");
      case pb::RouterSpec::kBiasBalanced:
        if (router_.bias_balanced().score() == pb::SCORE_FUNCTION_SOFTMAX) {
          return only({pb::GATE_NORM_SOFTMAX_FULL, pb::GATE_NORM_SOFTMAX_FULL_RENORM},
                      "softmax_full and softmax_full_renorm with softmax scores");
        }
        return only({pb::GATE_NORM_SIGMOID, pb::GATE_NORM_SIGMOID_RENORM},
                    "sigmoid and sigmoid_renorm with sigmoid scores");
      default:
        break;
    }
  }

  // Whether training ever uses one expert per token.
  bool UsesOneExpert() const {
    const pb::KSchedule* schedule = nullptr;
    if (router_.has_hyper_router()) schedule = &router_.hyper_router().schedule();
    if (schedule != nullptr && schedule->mode() != pb::K_SCHEDULE_MODE_CONSTANT) {
      return schedule->k_max() == 1;
    }
    return moe_.top_k() == 1;
  }

  void CheckConstantGate() {
    if (!PropertiesOf(moe_).is_trainable || moe_.allow_constant_gate()) return;
    const pb::GateNorm norm = router_.gate_norm();
    const bool is_renormalised =
        norm == pb::GATE_NORM_SOFTMAX_TOPK || norm == pb::GATE_NORM_SOFTMAX_FULL_RENORM;
    if (norm == pb::GATE_NORM_UNIFORM || (is_renormalised && UsesOneExpert())) {
      Fail("model.moe.router.gate_norm",
           StrCat("with top_k ", moe_.top_k(),
                  " the gate's weight is constant and its router gets no gradient from the "
                  "language model; use softmax_full, or set model.moe.allow_constant_gate"));
    }
  }

  void CheckNoise() {
    const pb::NoiseSpec& noise = router_.noise();
    switch (noise.kind()) {
      case pb::NOISE_KIND_GAUSSIAN_LEARNED:
        if (!router_.has_noisy_topk()) {
          Fail("model.moe.router.noise.kind",
               StrCat("gaussian_learned is the router noisy_topk's; ", kind_,
                      " has no parameters for it"));
        }
        break;
      case pb::NOISE_KIND_ADDITIVE_UNIFORM:
      case pb::NOISE_KIND_INPUT_JITTER:
        if (!(noise.eps() >= 0 && noise.eps() <= 1)) {
          Fail("model.moe.router.noise.eps", StrCat(noise.eps(), " is not in [0, 1]"));
        }
        break;
      case pb::NOISE_KIND_GAUSSIAN_FIXED:
        NotNegative("model.moe.router.noise.std", noise.std());
        break;
      default:
        break;
    }
  }

  void CheckCapacity() {
    if (router_.has_cosine()) {
      return Fail("model.moe.capacity", "the router cosine goes through its experts hop by hop");
    }
    if (router_.has_base() || router_.has_sinkhorn() || router_.has_expert_choice()) {
      return Fail("model.moe.capacity",
                  StrCat("the router ", kind_, " balances by itself; it takes no capacity"));
    }
    const pb::CapacityFactor& factor = moe_.capacity().factor();
    if (!factor.has_train() && !factor.has_eval()) {
      Fail("model.moe.capacity.factor", "at least one of train and eval is required");
    }
    if (factor.has_train()) Positive("model.moe.capacity.factor.train", factor.train());
    if (factor.has_eval()) Positive("model.moe.capacity.factor.eval", factor.eval());
  }

  // Why the loss cannot act on this router; empty when it can.
  std::string LossFault(const pb::LossSpec& loss) const {
    if (loss.id() == "switch" && moe_.top_k() != 1) {
      return StrCat("is defined for top_k 1 only, not ", moe_.top_k(),
                    "; megatron_aux is its generalisation");
    }
    if (loss.id() == "cv2" &&
        (!router_.has_noisy_topk() || router_.noise().kind() != pb::NOISE_KIND_GAUSSIAN_LEARNED)) {
      return "needs the learned noise of the router noisy_topk";
    }
    if (loss.id() == "sra" && !router_.has_cosine() && !router_.has_xmoe()) {
      return StrCat("needs expert embeddings (cosine, xmoe), the router ", kind_, " has none");
    }
    const bool balances_itself =
        router_.has_base() || router_.has_sinkhorn() || router_.has_expert_choice();
    if (balances_itself && loss.id() != "z_loss") {
      return StrCat("the router ", kind_, " balances by itself; only z_loss acts on it");
    }
    return {};
  }

  void CheckLosses() {
    std::set<std::string> ids;
    std::vector<std::string> known;
    for (const Loss& loss : kLosses) known.emplace_back(loss.id);
    for (const pb::LossSpec& loss : moe_.losses()) {
      const std::string path = StrCat("model.moe.losses.", loss.id());
      const auto* definition = std::ranges::find(kLosses, loss.id(), &Loss::id);
      if (definition == kLosses.end()) {
        Fail("model.moe.losses", StrCat("'", EscapeForTerminal(loss.id()), "' is not a loss; ",
                                        WordHint(loss.id(), known)));
        continue;
      }
      if (!ids.insert(loss.id()).second) Fail(path, "this loss is given twice");
      if (!loss.has_coef()) Fail(StrCat(path, ".coef"), "is required");
      NotNegative(StrCat(path, ".coef"), loss.coef());
      if (definition->fixed_scope != pb::LOSS_SCOPE_UNSPECIFIED &&
          loss.scope() != definition->fixed_scope) {
        Fail(StrCat(path, ".scope"),
             StrCat(loss.id(), " has scope ", ScopeName(definition->fixed_scope), " and no other"));
      }
      if (loss.id() == "gshard_top1" && loss.scope() == pb::LOSS_SCOPE_GLOBAL) {
        Fail(StrCat(path, ".scope"),
             "gshard_top1 has no scope global: the counts of the batch "
             "before are of all choices");
      }
      if (const std::string fault = LossFault(loss); !fault.empty()) Fail(path, fault);
    }
  }

  void CheckCausality() {
    if (CausalityVerdict(moe_) != "noncausal" || run_.eval().allow_noncausal()) return;
    Fail("model.moe.router",
         StrCat("the router ", kind_,
                " with these options reads later tokens in evaluation, so that a language-model "
                "loss means nothing; set eval.allow_noncausal to get it with the verdict "
                "noncausal"));
  }

  const pb::RunSpec& run_;
  const pb::MoeSpec& moe_;
  const pb::RouterSpec& router_;
  const std::string kind_;
  bool has_experts_ = false;
};

}  // namespace

std::vector<Fault> CheckMoe(const pb::RunSpec& run) { return MoeChecker(run).Check(); }

}  // namespace switchyard::spec
