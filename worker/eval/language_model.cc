#include "worker/eval/language_model.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "common/base/check.h"
#include "common/base/strings.h"
#include "worker/data/batcher.h"
#include "worker/model/model.h"

namespace switchyard::eval {
namespace {

at::Tensor ToDevice(std::vector<int64_t>& ids, const data::TokenBatch& batch,
                    const c10::Device& device) {
  const at::Tensor view =
      at::from_blob(ids.data(), {static_cast<int64_t>(batch.rows), static_cast<int64_t>(batch.len)},
                    at::TensorOptions().dtype(at::kLong));
  return device.is_cpu() ? view : view.to(device);
}

TextUnits UnitsOf(const data::Corpus& corpus) {
  if (corpus.is_word_level) return TextUnits::kWords;
  return corpus.has_bytes ? TextUnits::kBytes : TextUnits::kTokens;
}

// Tokens of each domain in the split.
std::vector<uint64_t> DomainSizes(const data::SplitTokens& tokens, size_t domains) {
  std::vector<uint64_t> sizes(domains, 0);
  for (const data::DomainRange& range : tokens.domains) {
    SWITCHYARD_CHECK(range.domain < domains) << "domain " << range.domain << " of " << domains;
    sizes[range.domain] += range.end - range.begin;
  }
  return sizes;
}

// Bytes, characters and words of the scored part: in the split's own proportion, which is exact for
// bytes under byte tokens and for words under word tokens.
void FillText(const data::SplitTokens& tokens, TextUnits units, TextTotals* totals) {
  if (tokens.ids.empty()) return;
  const double part = static_cast<double>(totals->tokens) / static_cast<double>(tokens.ids.size());
  totals->bytes = static_cast<double>(tokens.bytes) * part;
  totals->chars = static_cast<double>(tokens.chars) * part;
  totals->words = units == TextUnits::kWords ? static_cast<double>(totals->tokens)
                                             : static_cast<double>(tokens.words) * part;
}

}  // namespace

TextEvaluation EvaluateText(model::LanguageModel& model, const data::Corpus& corpus,
                            data::Split split, const TextEvalOptions& options,
                            const c10::Device& device, const std::function<bool()>& keep_going) {
  const c10::NoGradGuard no_grad;
  const data::SplitTokens& tokens = corpus.split(split);
  TextEvaluation out;
  out.units = UnitsOf(corpus);
  out.domains.resize(corpus.domain_names.size());
  const std::vector<uint64_t> sizes = DomainSizes(tokens, out.domains.size());
  for (size_t d = 0; d < out.domains.size(); ++d) {
    if (sizes[d] == 0) continue;
    uint64_t cap = 0;
    if (options.max_tokens > 0) {
      const double part = static_cast<double>(sizes[d]) / static_cast<double>(tokens.ids.size());
      cap = std::max<uint64_t>(
          1, static_cast<uint64_t>(static_cast<double>(options.max_tokens) * part));
    }
    data::EvalBatcher batcher(tokens, {.batch = options.batch,
                                       .len = options.target_len,
                                       .max_tokens = cap,
                                       .domain = static_cast<int>(d)});
    model::Memory memory;
    const model::ForwardContext context{
        .is_training = false, .step = options.step, .top_k = options.top_k};
    data::TokenBatch batch;
    TextTotals& totals = out.domains[d];
    while (batcher.Next(&batch)) {
      if (!keep_going()) {
        out.was_stopped = true;
        return out;
      }
      if (batch.starts_afresh) memory.clear();
      const model::ForwardResult result = model.Forward(
          ToDevice(batch.inputs, batch, device), ToDevice(batch.targets, batch, device), context,
          options.memory_len > 0 ? &memory : nullptr, options.memory_len);
      totals.nats += result.nll.sum(at::kDouble).item<double>();
      totals.tokens += static_cast<uint64_t>(std::count_if(
          batch.targets.begin(), batch.targets.end(), [](int64_t target) { return target >= 0; }));
    }
    FillText(tokens, out.units, &totals);
    out.totals.Add(totals);
  }
  return out;
}

std::vector<model::LayerRouting> ProbeRouting(model::LanguageModel& model,
                                              const data::Corpus& corpus, data::Split split,
                                              const TextEvalOptions& options,
                                              const c10::Device& device) {
  constexpr uint32_t kProbeTokens = 2048;
  const c10::NoGradGuard no_grad;
  const data::SplitTokens* tokens = &corpus.split(split);
  if (tokens->ids.empty()) tokens = &corpus.split(data::Split::kTrain);
  const uint32_t rows =
      std::clamp<uint32_t>(kProbeTokens / std::max<uint32_t>(1, options.target_len), 1,
                           std::max<uint32_t>(1, options.batch));
  data::EvalBatcher batcher(*tokens,
                            {.batch = rows, .len = std::min(options.target_len, kProbeTokens)});
  data::TokenBatch batch;
  if (!batcher.Next(&batch)) return {};
  const model::ForwardContext context{
      .is_training = false, .step = options.step, .wants_routing = true};
  return model
      .Forward(ToDevice(batch.inputs, batch, device), ToDevice(batch.targets, batch, device),
               context, nullptr, 0)
      .routing;
}

std::vector<std::pair<std::string, double>> EvaluationSeries(const TextEvaluation& evaluation,
                                                             const data::Corpus& corpus,
                                                             data::Split split) {
  const std::string prefix = data::SplitName(split);
  auto out = TextSeries(prefix, evaluation.units, evaluation.totals);
  if (corpus.domain_names.size() < 2) return out;
  for (size_t d = 0; d < evaluation.domains.size(); ++d) {
    if (evaluation.domains[d].tokens == 0) continue;
    const auto domain = TextSeries(StrCat(prefix, "/", corpus.domain_names[d]), evaluation.units,
                                   evaluation.domains[d]);
    out.insert(out.end(), domain.begin(), domain.end());
  }
  return out;
}

}  // namespace switchyard::eval
