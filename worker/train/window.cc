#include "worker/train/window.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "common/base/check.h"
#include "common/base/strings.h"
#include "worker/data/batcher.h"
#include "worker/model/model.h"

namespace switchyard::train {
namespace {

// A part of the batch: consecutive rows.
struct Part {
  uint32_t begin = 0;
  uint32_t rows = 0;
  uint64_t tokens = 0;     // scored
  uint32_t sequences = 0;  // rows with a scored token
};

std::vector<Part> CutBatch(const data::TokenBatch& batch, uint32_t micro_batch) {
  std::vector<Part> parts;
  const uint32_t width = micro_batch == 0 ? batch.rows : micro_batch;
  for (uint32_t begin = 0; begin < batch.rows; begin += width) {
    Part part{.begin = begin, .rows = std::min(width, batch.rows - begin)};
    for (uint32_t row = begin; row < begin + part.rows; ++row) {
      const auto first = batch.targets.begin() + static_cast<ptrdiff_t>(row) * batch.len;
      const auto scored =
          std::count_if(first, first + batch.len, [](int64_t target) { return target >= 0; });
      part.tokens += static_cast<uint64_t>(scored);
      part.sequences += scored > 0 ? 1 : 0;
    }
    parts.push_back(part);
  }
  return parts;
}

// A copy: the graph outlives the batch.
at::Tensor Rows(const std::vector<int64_t>& ids, const data::TokenBatch& batch, const Part& part,
                const c10::Device& device) {
  const int64_t* first = ids.data() + static_cast<size_t>(part.begin) * batch.len;
  const at::Tensor view = at::from_blob(const_cast<int64_t*>(first), {part.rows, batch.len},
                                        at::TensorOptions().dtype(at::kLong));
  return device.is_cpu() ? view.clone() : view.to(device);
}

}  // namespace

struct WindowRunner::State {
  model::LanguageModel& model;
  WindowOptions options;
  c10::Device device;
  std::vector<model::Memory> memories;  // by micro-batch

  bool IsSequenceLoss(const std::string& id) const {
    return std::find(options.sequence_losses.begin(), options.sequence_losses.end(), id) !=
           options.sequence_losses.end();
  }
};

WindowRunner::WindowRunner(model::LanguageModel& model, WindowOptions options,
                           const c10::Device& device)
    : state_(new State{model, std::move(options), device, {}}) {}

WindowRunner::~WindowRunner() = default;

WindowResult WindowRunner::Run(const data::TokenBatch& batch, uint64_t step,
                               WantRouting want_routing) {
  State& state = *state_;
  const std::vector<Part> parts = CutBatch(batch, state.options.micro_batch);
  if (batch.starts_afresh || state.memories.size() != parts.size()) {
    state.memories.assign(parts.size(), {});
  }
  WindowResult out;
  uint64_t sequences = 0;
  for (const Part& part : parts) {
    out.tokens += part.tokens;
    sequences += part.sequences;
  }
  SWITCHYARD_CHECK(out.tokens > 0) << "a batch without a scored token";

  // Read once, after all passes were issued.
  std::vector<at::Tensor> nats;
  std::vector<std::string> aux_ids;
  std::vector<at::Tensor> aux_values;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    if (part.tokens == 0) continue;
    const model::ForwardContext context{.is_training = true,
                                        .step = step,
                                        .first_sequence = part.begin,
                                        .dropout = state.options.dropout,
                                        .wants_routing = want_routing == WantRouting::kYes};
    model::ForwardResult result = state.model.Forward(
        Rows(batch.inputs, batch, part, state.device),
        Rows(batch.targets, batch, part, state.device), context,
        state.options.memory_len > 0 ? &state.memories[i] : nullptr, state.options.memory_len);
    at::Tensor loss = result.nll.sum() / static_cast<double>(out.tokens);
    nats.push_back(result.nll.detach().sum(at::kDouble));
    for (const model::LossTerm& term : result.aux) {
      const double weight =
          state.IsSequenceLoss(term.id)
              ? static_cast<double>(part.sequences) / static_cast<double>(sequences)
              : static_cast<double>(part.tokens) / static_cast<double>(out.tokens);
      const at::Tensor weighted = weight == 1.0 ? term.value : term.value * weight;
      loss = loss + weighted;
      aux_ids.push_back(term.id);
      aux_values.push_back(weighted.detach().to(at::kDouble));
    }
    loss.backward();
    if (want_routing == WantRouting::kYes) {
      out.routing.push_back(std::move(result.routing));
      out.sequences.push_back(part.rows);
    }
  }

  out.nats_per_token = at::stack(nats).sum().item<double>() / static_cast<double>(out.tokens);
  if (aux_values.empty()) return out;
  const at::Tensor values = at::stack(aux_values).cpu();
  for (size_t i = 0; i < aux_ids.size(); ++i) {
    const double value = values[static_cast<int64_t>(i)].item<double>();
    const auto it = std::find_if(out.aux.begin(), out.aux.end(),
                                 [&](const auto& entry) { return entry.first == aux_ids[i]; });
    if (it == out.aux.end()) {
      out.aux.emplace_back(aux_ids[i], value);
    } else {
      it->second += value;
    }
  }
  return out;
}

std::vector<at::Tensor> WindowRunner::JoinedMemory() const {
  const std::vector<model::Memory>& memories = state_->memories;
  std::vector<at::Tensor> joined;
  if (memories.empty()) return joined;
  for (size_t layer = 0; layer < memories[0].size(); ++layer) {
    std::vector<at::Tensor> rows;
    for (const model::Memory& memory : memories) rows.push_back(memory.at(layer));
    joined.push_back(rows.size() == 1 ? rows[0] : at::cat(rows, 0));
  }
  return joined;
}

void WindowRunner::RestoreMemory(const std::vector<at::Tensor>& joined, uint32_t rows) {
  State& state = *state_;
  state.memories.clear();
  if (joined.empty()) return;
  const uint32_t width = state.options.micro_batch == 0 ? rows : state.options.micro_batch;
  for (uint32_t begin = 0; begin < rows; begin += width) {
    const int64_t count = std::min(width, rows - begin);
    model::Memory memory;
    for (const at::Tensor& tensor : joined) {
      memory.push_back(tensor.narrow(0, begin, count).to(state.device).contiguous());
    }
    state.memories.push_back(std::move(memory));
  }
}

}  // namespace switchyard::train
