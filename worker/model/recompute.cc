#include "worker/model/recompute.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

namespace switchyard::model {
namespace {

using torch::autograd::SavedVariableHooks;

// The tensors that the operations of one call save, by the order in which they save them.
class Region {
 public:
  explicit Region(std::function<void()> again) : again_(std::move(again)) {}

  // A place for the next tensor of the first run, which is not kept.
  size_t Reserve(const at::Tensor& tensor) {
    places_.push_back({.sizes = tensor.sizes().vec(), .type = tensor.scalar_type()});
    return places_.size() - 1;
  }

  // The next tensor of the second run.
  void Fill(const at::Tensor& tensor) {
    TORCH_CHECK(filled_ < places_.size(),
                "a layer run again for the backward pass saves more than ", places_.size(),
                " tensors");
    Place& place = places_[filled_++];
    TORCH_CHECK(tensor.sizes() == place.sizes && tensor.scalar_type() == place.type,
                "a layer run again for the backward pass saves ", tensor.sizes(), " ",
                tensor.scalar_type(), " where it saved ", c10::IntArrayRef(place.sizes), " ",
                place.type);
    // Without its history: that would keep the second run's graph alive.
    if (!place.is_done) place.tensor = tensor.detach();
  }

  at::Tensor Get(size_t place) {
    if (!places_[place].tensor.defined()) RunAgain();
    return places_[place].tensor;
  }

  // The backward pass is through with the operation that saved it.
  void Finish(size_t place) {
    places_[place].is_done = true;
    places_[place].tensor = at::Tensor();
  }

 private:
  struct Place {
    std::vector<int64_t> sizes;
    at::ScalarType type;
    at::Tensor tensor;  // between the second run and Finish
    bool is_done = false;
  };

  void RunAgain();

  std::function<void()> again_;
  std::vector<Place> places_;
  size_t filled_ = 0;
};

// Whose operations run on this thread.
struct Running {
  std::shared_ptr<Region> first;  // in their first run
  Region* repeated = nullptr;     // in their second one
};
thread_local Running running;

class RunningScope {
 public:
  explicit RunningScope(Running now) {
    TORCH_CHECK(running.first == nullptr && running.repeated == nullptr,
                "recomputed parts must not lie in one another");
    running = std::move(now);
  }
  ~RunningScope() { running = {}; }
  RunningScope(const RunningScope&) = delete;
  RunningScope& operator=(const RunningScope&) = delete;
};

// Stands for a tensor that an operation of a first run saved.
class Absent final : public SavedVariableHooks {
 public:
  explicit Absent(std::shared_ptr<Region> region) : region_(std::move(region)) {}
  ~Absent() override {
    if (place_) region_->Finish(*place_);
  }
  void call_pack_hook(const at::Tensor& tensor) override { place_ = region_->Reserve(tensor); }
  at::Tensor call_unpack_hook() override { return region_->Get(*place_); }

 private:
  std::shared_ptr<Region> region_;
  std::optional<size_t> place_;
};

// Takes what an operation of a second run saves; its own graph is never run.
class Taken final : public SavedVariableHooks {
 public:
  explicit Taken(Region* region) : region_(region) {}
  void call_pack_hook(const at::Tensor& tensor) override { region_->Fill(tensor); }
  at::Tensor call_unpack_hook() override { TORCH_CHECK(false, "this graph is thrown away"); }

 private:
  Region* region_;
};

// Autograd asks its engine, and nobody else, what is to become of a tensor that an operation saves.
class RecomputingEngine final : public torch::autograd::Engine {
 public:
  static torch::autograd::Engine& Get() {
    static RecomputingEngine engine;
    return engine;
  }

 private:
  RecomputingEngine() = default;
  ~RecomputingEngine() override { stop(); }

  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (running.first != nullptr) return std::make_unique<Absent>(running.first);
    if (running.repeated != nullptr) return std::make_unique<Taken>(running.repeated);
    return nullptr;
  }
};

void Region::RunAgain() {
  const RunningScope scope({.repeated = this});
  const c10::AutoGradMode with_gradients(true);
  filled_ = 0;
  again_();
  TORCH_CHECK(filled_ == places_.size(), "a layer run again for the backward pass saves ", filled_,
              " tensors, it saved ", places_.size());
}

}  // namespace

void Recompute(const std::function<void()>& now, std::function<void()> again) {
  [[maybe_unused]] static const bool is_installed = [] {
    torch::autograd::set_default_engine_stub(&RecomputingEngine::Get);
    return true;
  }();
  const RunningScope scope({.first = std::make_shared<Region>(std::move(again))});
  now();
}

}  // namespace switchyard::model
