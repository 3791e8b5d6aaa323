#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "common/base/rng.h"
#include "worker/analysis/audit_report.h"

namespace switchyard::data {
struct Corpus;
}
namespace switchyard::model {
class LanguageModel;
}
namespace switchyard::v1 {
class RunSpec;
}

// Causality and batch independence of a trained model, seen on the model itself (models.md 3.18):
// a pass is repeated with something changed that must not matter, in float64, without dropout, the
// experts as plain masked products of one shape, so that equal inputs give equal bits.
namespace switchyard::analysis {

inline constexpr int64_t kAuditWindows = 4;
inline constexpr int64_t kAuditLengthMax = 128;

// `run` with dropout and router noise off, float32 products (the parameters become float64 later)
// and `dispatch: dense_reference`. Every tensor keeps name and shape. Learned noise stays: it is
// drawn by sequence and position, and its weights are part of the checkpoint.
v1::RunSpec AuditSpec(const v1::RunSpec& run);

// The model of AuditSpec(run) with the values of `live` (parameters and buffers of a model of
// `run`, host or device), parameters in float64, on the device of `live`. Throws as MakeModel.
std::unique_ptr<model::LanguageModel> MakeAuditModel(
    const v1::RunSpec& run, const data::Corpus& corpus,
    const std::vector<std::pair<std::string, at::Tensor>>& live);

// kAuditWindows windows of min(length, kAuditLengthMax, what the model's positions and memory for
// its logits allow) tokens, evenly over the validation split (training where it is empty); [B, T]
// int64. Throws c10::Error when the text has fewer than two tokens.
at::Tensor AuditTokens(const v1::RunSpec& run, const data::Corpus& corpus, int64_t length);

struct AuditOptions {
  uint64_t step = 0;        // updates done: decides schedules
  uint32_t vocab_size = 0;  // at least 2
  RandomKey random;         // what is put in place of tokens, and what routers draw
  int64_t range = 16;       // a distance at which a leak could end, probed on both sides
  // Asked before each probe.
  std::function<bool()> keep_going = [] { return true; };
};

// Each probe with the routing of evaluation and of training. `model` may be any; nothing in it is
// changed. Empty when `keep_going` said no. Throws what the model throws.
std::vector<ProbeResult> ProbeModel(model::LanguageModel& model, const at::Tensor& tokens,
                                    const AuditOptions& options);

// All of the above: the model of `run` with the values of `live`, after `step` updates, on at most
// `length` tokens a window.
AuditReport AuditModel(const v1::RunSpec& run, const data::Corpus& corpus,
                       const std::vector<std::pair<std::string, at::Tensor>>& live, uint64_t step,
                       int64_t length, const std::function<bool()>& keep_going);

}  // namespace switchyard::analysis
