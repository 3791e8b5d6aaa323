#include "worker/analysis/audit.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "common/base/strings.h"
#include "switchyard/v1/spec.pb.h"
#include "worker/data/corpus.h"
#include "worker/model/model.h"

namespace switchyard::analysis {
namespace {

namespace pb = ::switchyard::v1;

// Relative to the largest absolute value; float64 sums in another order stay far below.
constexpr double kRoundingBound = 1e-12;
constexpr int64_t kPaddings[] = {1, 7};
constexpr int64_t kPaddingMax = 7;
// Of one tensor of logits; a word-level vocabulary would take gigabytes.
constexpr int64_t kLogitBytesMax = int64_t{256} << 20;

// What a pass came to, [B, T, ...] each.
struct Snapshot {
  at::Tensor logits;
  std::vector<model::LayerRouting> routing;
  int64_t sequences = 0;
  int64_t positions = 0;
};

// The tokens that must not notice: the first positions of the first sequences.
struct Region {
  int64_t sequences = 0;
  int64_t positions = 0;
};

at::Tensor Part(const at::Tensor& rows, const Snapshot& of, const Region& region) {
  return rows.view({of.sequences, of.positions, -1})
      .narrow(0, 0, region.sequences)
      .narrow(1, 0, region.positions);
}

// Slots of the wider one more: unused.
at::Tensor Widened(const at::Tensor& slots, int64_t width, double unused) {
  return at::constant_pad_nd(slots, {0, width - slots.size(2)}, unused);
}

// Appends where a and b [B, T, C] differ, if they do.
void Compare(const at::Tensor& a, const at::Tensor& b, int layer, const std::string& what,
             ProbeResult* probe) {
  if (a.equal(b)) return;
  // Not ne: a NaN on both sides is no difference.
  const at::Tensor differs = a.ne(b).logical_and(a.isnan().logical_and(b.isnan()).logical_not());
  const at::Tensor tokens = differs.any(2).nonzero();
  if (tokens.size(0) == 0) return;
  Difference difference{.layer = layer,
                        .what = what,
                        .sequence = tokens[0][0].item<int64_t>(),
                        .position = tokens[0][1].item<int64_t>(),
                        .tokens = tokens.size(0)};
  bool is_rounding = false;
  if (what == "experts") {
    difference.delta = 1;
  } else {
    const double scale = a.abs().max().item<double>();
    const double delta = (a - b).abs().max().item<double>();
    difference.delta = scale > 0 ? delta / scale : delta;
    is_rounding = difference.delta <= kRoundingBound;  // false for NaN
  }
  probe->influence =
      std::max(probe->influence, is_rounding ? Influence::kBounded : Influence::kDependent);
  probe->delta = std::max(probe->delta, difference.delta);
  probe->differences.push_back(std::move(difference));
}

void CompareSnapshots(const Snapshot& before, const Snapshot& after, const Region& region,
                      ProbeResult* probe) {
  TORCH_CHECK(before.routing.size() == after.routing.size(), "passes of different layers");
  for (size_t l = 0; l < before.routing.size(); ++l) {
    const model::LayerRouting &a = before.routing[l], &b = after.routing[l];
    const auto layer = static_cast<int>(a.layer);
    if (a.logits.defined()) {
      Compare(Part(a.logits, before, region), Part(b.logits, after, region), layer, "scores",
              probe);
    }
    const int64_t width = std::max(a.expert_ids.size(1), b.expert_ids.size(1));
    Compare(Widened(Part(a.expert_ids, before, region), width, -1),
            Widened(Part(b.expert_ids, after, region), width, -1), layer, "experts", probe);
    Compare(Widened(Part(a.weights, before, region), width, 0),
            Widened(Part(b.weights, after, region), width, 0), layer, "weights", probe);
  }
  Compare(Part(before.logits, before, region), Part(after.logits, after, region), -1, "logits",
          probe);
}

// Asks one model the same question in several forms.
class Prober {
 public:
  Prober(model::LanguageModel& model, const at::Tensor& tokens, const AuditOptions& options)
      : model_(model), tokens_(tokens), options_(options) {
    TORCH_CHECK(tokens.dim() == 2 && tokens.size(1) >= 2, "an audit needs [B, T >= 2] tokens, not ",
                tokens.sizes());
    TORCH_CHECK(options.vocab_size >= 2, "an audit needs a vocabulary of at least 2 tokens");
  }

  std::vector<ProbeResult> Run() {
    for (const bool is_training : {false, true}) {
      if (!options_.keep_going()) return {};
      is_training_ = is_training;
      base_ = Take(tokens_);
      if (!ProbeTime() || !ProbeBatch() || !ProbePadding()) return {};
    }
    return std::move(results_);
  }

 private:
  Snapshot Take(const at::Tensor& tokens) {
    const model::ForwardContext context{.is_training = is_training_,
                                        .step = options_.step,
                                        .dropout = options_.random.With("passes"),
                                        .wants_routing = true,
                                        // Nothing is counted.
                                        .is_recomputed = true};
    Snapshot out{.sequences = tokens.size(0), .positions = tokens.size(1)};
    out.routing = model_.Forward(tokens, at::full_like(tokens, -1), context, nullptr, 0).routing;
    out.logits = model_.Logits(tokens, context, nullptr, 0);
    return out;
  }

  // Another id for every token, by a draw of its own.
  at::Tensor Replaced(const at::Tensor& tokens) const {
    at::Tensor out = tokens.cpu().contiguous().clone();
    auto* id = out.data_ptr<int64_t>();
    const auto vocab = static_cast<int64_t>(options_.vocab_size);
    const RandomKey key = options_.random.With("replaced");
    for (int64_t n = 0; n < out.numel(); ++n) {
      const auto shift =
          static_cast<int64_t>(RandomBelow(key, static_cast<uint64_t>(n), options_.vocab_size - 1));
      id[n] = (id[n] + 1 + shift) % vocab;
    }
    return out.to(tokens.device());
  }

  // False: the audit is to end.
  bool Probe(ProbeKind kind, std::string name, const at::Tensor& changed, const Region& region) {
    if (!options_.keep_going()) return false;
    ProbeResult result{.kind = kind, .name = std::move(name), .is_training = is_training_};
    CompareSnapshots(base_, Take(changed), region, &result);
    results_.push_back(std::move(result));
    return true;
  }

  bool ProbeTime() {
    const int64_t length = tokens_.size(1);
    std::set<int64_t> lasts;
    for (const int64_t i :
         {int64_t{0}, int64_t{1}, options_.range - 1, options_.range, length / 2, length - 2}) {
      if (i >= 0 && i <= length - 2) lasts.insert(i);
    }
    for (const int64_t last : lasts) {
      at::Tensor changed = tokens_.clone();
      const int64_t later = length - last - 1;
      changed.narrow(1, last + 1, later).copy_(Replaced(tokens_.narrow(1, last + 1, later)));
      if (!Probe(ProbeKind::kTime, StrCat("tokens after ", last, " replaced"), changed,
                 {tokens_.size(0), last + 1})) {
        return false;
      }
    }
    return true;
  }

  bool ProbeBatch() {
    const int64_t sequences = tokens_.size(0), length = tokens_.size(1);
    if (sequences < 2) return true;
    at::Tensor changed = tokens_.clone();
    changed.narrow(0, 1, sequences - 1).copy_(Replaced(tokens_.narrow(0, 1, sequences - 1)));
    return Probe(ProbeKind::kBatch, "other sequences replaced", changed, {1, length}) &&
           Probe(ProbeKind::kBatch, "a batch of one", tokens_.narrow(0, 0, 1), {1, length});
  }

  bool ProbePadding() {
    const int64_t sequences = tokens_.size(0), length = tokens_.size(1);
    for (const int64_t pads : kPaddings) {
      const at::Tensor changed = at::constant_pad_nd(tokens_, {0, pads}, -1);
      if (!Probe(ProbeKind::kPadding, StrCat(pads, " behind"), changed, {sequences, length})) {
        return false;
      }
    }
    return true;
  }

  model::LanguageModel& model_;
  const at::Tensor tokens_;
  const AuditOptions& options_;
  bool is_training_ = false;
  Snapshot base_;
  std::vector<ProbeResult> results_;
};

}  // namespace

pb::RunSpec AuditSpec(const pb::RunSpec& run) {
  pb::RunSpec out = run;
  out.mutable_train()->set_precision(pb::PRECISION_FP32);
  pb::ModelSpec& model = *out.mutable_model();
  if (model.has_transformer_xl()) {
    model.mutable_transformer_xl()->set_dropout(0);
    model.mutable_transformer_xl()->set_attn_dropout(0);
  }
  if (model.has_decoder()) model.mutable_decoder()->set_dropout(0);
  if (!model.has_moe()) return out;
  pb::MoeSpec& moe = *model.mutable_moe();
  moe.set_dispatch(pb::DISPATCH_DENSE_REFERENCE);
  moe.clear_combine_dropout();
  pb::RouterSpec& router = *moe.mutable_router();
  if (router.noise().kind() != pb::NOISE_KIND_GAUSSIAN_LEARNED) {
    router.mutable_noise()->set_kind(pb::NOISE_KIND_NONE);
  }
  if (router.has_mcf()) {
    router.mutable_mcf()->set_attn_dropout(0);
    router.mutable_mcf()->set_out_dropout(0);
  }
  if (router.has_smoe_dropout()) router.mutable_smoe_dropout()->set_logit_dropout(0);
  return out;
}

std::unique_ptr<model::LanguageModel> MakeAuditModel(
    const pb::RunSpec& run, const data::Corpus& corpus,
    const std::vector<std::pair<std::string, at::Tensor>>& live) {
  const c10::NoGradGuard no_grad;
  auto model = model::MakeModel(
      AuditSpec(run), {.vocab_size = corpus.vocab_size, .token_frequency = corpus.train_frequency});
  std::map<std::string_view, at::Tensor> values;
  for (const auto& [name, tensor] : live) values[name] = tensor;
  const auto value = [&](const std::string& name, const at::Tensor& own) {
    const auto it = values.find(name);
    TORCH_CHECK(it != values.end() && it->second.sizes() == own.sizes(), name, " ", own.sizes(),
                " is not among the tensors given");
    return it->second.detach();
  };
  for (const auto& [name, tensor] : model->NamedParameters()) {
    tensor.set_data(value(name, tensor).to(at::kDouble));
  }
  for (const auto& [name, tensor] : model->NamedBuffers()) {
    tensor.set_data(value(name, tensor).clone());
  }
  return model;
}

at::Tensor AuditTokens(const pb::RunSpec& run, const data::Corpus& corpus, int64_t length) {
  const data::SplitTokens* split = &corpus.valid;
  if (split->ids.size() < 2) split = &corpus.train;
  const auto size = static_cast<int64_t>(split->ids.size());
  TORCH_CHECK(size >= 2, "an audit needs a text of at least 2 tokens, this one has ", size);
  int64_t longest = std::min(kAuditLengthMax, size);
  longest = std::min(longest, kLogitBytesMax / (8 * kAuditWindows * int64_t{corpus.vocab_size}));
  const pb::DecoderSpec& decoder = run.model().decoder();
  if (decoder.position() == pb::POSITION_KIND_LEARNED && decoder.context() > 0) {
    longest = std::min(longest, int64_t{decoder.context()} - kPaddingMax);
  }
  length = std::max<int64_t>(2, std::min(length, longest));
  at::Tensor tokens = at::empty({kAuditWindows, length}, at::kLong);
  auto* id = tokens.data_ptr<int64_t>();
  for (int64_t window = 0; window < kAuditWindows; ++window) {
    const int64_t begin = (size - length) * window / (kAuditWindows - 1);
    for (int64_t t = 0; t < length; ++t) {
      id[window * length + t] = split->ids[static_cast<size_t>(begin + t)];
    }
  }
  return tokens;
}

std::vector<ProbeResult> ProbeModel(model::LanguageModel& model, const at::Tensor& tokens,
                                    const AuditOptions& options) {
  const c10::NoGradGuard no_grad;
  return Prober(model, tokens, options).Run();
}

AuditReport AuditModel(const pb::RunSpec& run, const data::Corpus& corpus,
                       const std::vector<std::pair<std::string, at::Tensor>>& live, uint64_t step,
                       int64_t length, const std::function<bool()>& keep_going) {
  TORCH_CHECK(!live.empty(), "a model without tensors");
  const auto model = MakeAuditModel(run, corpus, live);
  const pb::McfRouter& mcf = run.model().moe().router().mcf();
  AuditOptions options{.step = step,
                       .vocab_size = corpus.vocab_size,
                       .random = RandomKey::For(run.seed(), "audit"),
                       .keep_going = keep_going};
  if (mcf.r() > 0) options.range = mcf.r();
  const at::Tensor tokens = AuditTokens(run, corpus, length).to(live.front().second.device());
  return Judge(ProbeModel(*model, tokens, options), run.model());
}

}  // namespace switchyard::analysis
