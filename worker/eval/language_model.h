#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "worker/data/corpus.h"
#include "worker/eval/text_metrics.h"

namespace c10 {
struct Device;
}
namespace switchyard::model {
class LanguageModel;
struct LayerRouting;
}  // namespace switchyard::model

namespace switchyard::eval {

struct TextEvalOptions {
  uint32_t batch = 0;       // rows per forward pass
  uint32_t target_len = 0;  // tokens scored per pass and row
  uint32_t memory_len = 0;  // 0: no memory
  uint64_t max_tokens = 0;  // per split, shared out by size of domain; 0: all
  uint64_t step = 0;        // updates done
  uint32_t top_k = 0;       // experts per token instead of the router's number; 0: the router's
};

struct TextEvaluation {
  TextTotals totals;
  std::vector<TextTotals> domains;  // in the order of the corpus' names
  TextUnits units = TextUnits::kBytes;
  bool was_stopped = false;  // `keep_going` said no: the totals are not to be used
};

// Scores one split, each domain by itself with memory cleared before it: teacher forcing, no
// dropout, no gradient, nothing drawn from any random stream, so that training goes on as if it had
// not happened. NLL in float32 from the model, summed in float64. `keep_going` is asked before
// each forward pass. Throws what the model throws.
TextEvaluation EvaluateText(model::LanguageModel& model, const data::Corpus& corpus,
                            data::Split split, const TextEvalOptions& options,
                            const c10::Device& device, const std::function<bool()>& keep_going);

// Routing of a fixed batch, at most 2,048 tokens from the beginning of the split (or of training
// where it is empty), as evaluation routes: for what changes between two evaluations.
std::vector<model::LayerRouting> ProbeRouting(model::LanguageModel& model,
                                              const data::Corpus& corpus, data::Split split,
                                              const TextEvalOptions& options,
                                              const c10::Device& device);

// All series of the evaluation; by domain ("valid/c_headers/bits_per_byte") where the corpus has
// several.
std::vector<std::pair<std::string, double>> EvaluationSeries(const TextEvaluation& evaluation,
                                                             const data::Corpus& corpus,
                                                             data::Split split);

}  // namespace switchyard::eval
