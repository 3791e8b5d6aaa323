#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "common/base/rng.h"

namespace c10 {
struct Device;
}
namespace switchyard::data {
struct TokenBatch;
}
namespace switchyard::model {
class LanguageModel;
struct LayerRouting;
}  // namespace switchyard::model

namespace switchyard::train {

// How the batch of one update is cut and weighted.
struct WindowOptions {
  uint32_t micro_batch = 0;  // rows per forward pass; the last pass may have fewer
  uint32_t memory_len = 0;   // 0: no memory
  RandomKey dropout;
  // Ids of losses that are means over sequences; their micro-batches weigh by sequences.
  std::vector<std::string> sequence_losses;
};

// What one update's forward passes came to.
struct WindowResult {
  double nats_per_token = 0;  // sum of NLL over all scored tokens of the update / their number
  uint64_t tokens = 0;        // scored
  // Balance and z losses by id, times their coefficient, weighted over the micro-batches.
  std::vector<std::pair<std::string, double>> aux;
  // By micro-batch, when asked for; `sequences` rows each.
  std::vector<std::vector<model::LayerRouting>> routing;
  std::vector<uint32_t> sequences;
};

enum class WantRouting { kNo, kYes };

// Runs the batch of an update through the model, micro-batch by micro-batch, and adds up gradients:
//   L = sum NLL / scored tokens of the window
//     + sum over micro-batches of aux_i * tokens_i / tokens   (sequence losses: sequences)
// so that a cut of the batch changes nothing but the rounding (and losses of scope micro). Keeps
// the memory that each row carries from segment to segment. Training thread only.
class WindowRunner {
 public:
  WindowRunner(model::LanguageModel& model, WindowOptions options, const c10::Device& device);
  ~WindowRunner();

  // Forward and backward of update `step` + 1. Throws what the model throws.
  WindowResult Run(const data::TokenBatch& batch, uint64_t step, WantRouting want_routing);

  // Memory of all rows: the tensors of model::Memory joined over rows ([B, M, D] each); empty at
  // the start and for models without. For checkpoints.
  std::vector<at::Tensor> JoinedMemory() const;
  // Cuts it into the rows of the micro-batches of a batch of `rows`.
  void RestoreMemory(const std::vector<at::Tensor>& joined, uint32_t rows);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace switchyard::train
