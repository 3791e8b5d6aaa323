#include "worker/eval/routing_series.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>
#include <optional>

#include "common/base/check.h"
#include "common/base/strings.h"
#include "worker/model/model.h"

namespace switchyard::eval {
namespace {

// A layer's tensors on the host, and the view of them.
struct HostRouting {
  at::Tensor ids;     // [N, K] int64
  at::Tensor logits;  // [N, E] float32 or undefined
  at::Tensor valid;   // [N] bool
  RoutingView view;
};

// `width`: slots of a token, at least as many as there are; the further ones are unused.
HostRouting ToHost(const model::LayerRouting& routing, uint32_t sequences, int64_t width) {
  HostRouting host;
  host.ids = at::constant_pad_nd(routing.expert_ids.to(at::kCPU, at::kLong),
                                 {0, width - routing.expert_ids.size(1)}, -1)
                 .contiguous();
  host.valid = routing.valid.to(at::kCPU, at::kBool).contiguous();
  host.view.experts = routing.experts;
  host.view.top_k = static_cast<uint32_t>(host.ids.size(1));
  host.view.ids = {host.ids.const_data_ptr<int64_t>(), static_cast<size_t>(host.ids.numel())};
  host.view.valid = {reinterpret_cast<const uint8_t*>(host.valid.const_data_ptr<bool>()),
                     static_cast<size_t>(host.valid.numel())};
  host.view.sequences = sequences;
  if (routing.logits.defined()) {
    host.logits = routing.logits.to(at::kCPU, at::kFloat).contiguous();
    host.view.logits = {host.logits.const_data_ptr<float>(),
                        static_cast<size_t>(host.logits.numel())};
  }
  return host;
}

// Series in the order of first appearance, each with one value per layer reported so far.
class Columns {
 public:
  void Add(const std::string& name, double value) {
    const auto [it, is_new] = index_.try_emplace(name, columns_.size());
    if (is_new) columns_.push_back({StrCat("routing/", name), {}, {}});
    columns_[it->second].values.push_back(static_cast<float>(value));
  }
  // Those that every layer has.
  std::vector<RoutingSeries> Take(size_t layers) {
    std::vector<RoutingSeries> out;
    for (RoutingSeries& column : columns_) {
      if (column.values.size() != layers) continue;
      column.shape = {static_cast<uint32_t>(layers)};
      out.push_back(std::move(column));
    }
    return out;
  }

 private:
  std::map<std::string, size_t> index_;
  std::vector<RoutingSeries> columns_;
};

// A probe as it is kept: the view without scores.
HostRouting HostOf(const at::Tensor& ids, const at::Tensor& valid, uint32_t experts) {
  return ToHost({.expert_ids = ids, .valid = valid, .experts = experts}, /*sequences=*/1,
                ids.size(1));
}

// A row per batch of the window: assignments by expert, tokens, drops, K.
at::Tensor WindowTensor(const LoadWindow& window) {
  const auto rows = static_cast<int64_t>(window.batches().size());
  const auto experts = static_cast<int64_t>(window.batches().front().per_expert.size());
  at::Tensor out = at::empty({rows, experts + 3}, at::kLong);
  auto* value = out.data_ptr<int64_t>();
  for (const RoutingCounts& counts : window.batches()) {
    for (const uint64_t count : counts.per_expert) *value++ = static_cast<int64_t>(count);
    *value++ = static_cast<int64_t>(counts.tokens);
    *value++ = static_cast<int64_t>(counts.dropped);
    *value++ = window.top_k();
  }
  return out;
}

LoadWindow WindowFrom(const at::Tensor& rows) {
  LoadWindow window;
  const int64_t experts = rows.size(1) - 3;
  const at::Tensor host = rows.contiguous();
  const auto* value = host.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < rows.size(0); ++row, value += experts + 3) {
    RoutingCounts counts;
    counts.per_expert.assign(value, value + experts);
    counts.tokens = static_cast<uint64_t>(value[experts]);
    counts.dropped = static_cast<uint64_t>(value[experts + 1]);
    window.Add(counts, static_cast<uint32_t>(value[experts + 2]));
  }
  return window;
}

}  // namespace

struct RoutingReporter::Probe {
  HostRouting host;
};

std::vector<std::pair<std::string, at::Tensor>> RoutingReporter::State() const {
  std::vector<std::pair<std::string, at::Tensor>> out;
  for (size_t layer = 0; layer < windows_.size(); ++layer) {
    if (windows_[layer].batches().empty()) continue;
    out.emplace_back(StrCat("window.", layer), WindowTensor(windows_[layer]));
  }
  for (size_t layer = 0; layer < probes_.size(); ++layer) {
    const HostRouting& host = probes_[layer]->host;
    out.emplace_back(StrCat("probe_ids.", layer), host.ids);
    out.emplace_back(StrCat("probe_valid.", layer), host.valid);
    out.emplace_back(StrCat("probe_experts.", layer),
                     at::scalar_tensor(static_cast<int64_t>(host.view.experts), at::kLong));
  }
  return out;
}

void RoutingReporter::Restore(const std::vector<std::pair<std::string, at::Tensor>>& state) {
  std::map<std::string, at::Tensor> named(state.begin(), state.end());
  const auto find = [&](const std::string& name, size_t layer) {
    const auto it = named.find(StrCat(name, ".", layer));
    return it == named.end() ? at::Tensor() : it->second;
  };
  windows_.clear();
  probes_.clear();
  for (at::Tensor rows = find("window", 0); rows.defined();
       rows = find("window", windows_.size())) {
    windows_.push_back(WindowFrom(rows));
  }
  for (at::Tensor ids = find("probe_ids", 0); ids.defined();
       ids = find("probe_ids", probes_.size())) {
    const at::Tensor valid = find("probe_valid", probes_.size());
    const at::Tensor experts = find("probe_experts", probes_.size());
    if (!valid.defined() || !experts.defined()) break;
    probes_.push_back(std::make_shared<Probe>(
        Probe{HostOf(ids, valid, static_cast<uint32_t>(experts.item<int64_t>()))}));
  }
}

std::vector<RoutingSeries> RoutingReporter::ReportProbe(
    const std::vector<model::LayerRouting>& layers) {
  const c10::NoGradGuard no_grad;
  Columns columns;
  std::vector<std::shared_ptr<Probe>> probes;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    probes.push_back(std::make_shared<Probe>(
        ToHost(layers[layer], /*sequences=*/1, layers[layer].expert_ids.size(1))));
    const RoutingView& view = probes.back()->host.view;
    if (layer < probes_.size()) {
      columns.Add("churn_step", ChurnBetween(probes_[layer]->host.view, view));
      columns.Add("churn_random_ref", 1 - static_cast<double>(view.top_k) / view.experts);
    }
  }
  probes_ = std::move(probes);
  return layers.empty() ? std::vector<RoutingSeries>() : columns.Take(layers.size());
}

std::vector<RoutingSeries> RoutingReporter::Report(
    const std::vector<std::vector<model::LayerRouting>>& micro_batches,
    const std::vector<uint32_t>& sequences) {
  SWITCHYARD_CHECK(micro_batches.size() == sequences.size()) << "rows of each micro-batch";
  if (micro_batches.empty() || micro_batches[0].empty()) return {};
  const c10::NoGradGuard no_grad;
  const size_t layers = micro_batches[0].size();
  windows_.resize(layers);
  Columns columns;
  RoutingSeries load{"routing/expert_load", {static_cast<uint32_t>(layers), 0}, {}};
  for (size_t layer = 0; layer < layers; ++layer) {
    std::vector<HostRouting> hosts;
    std::vector<RoutingView> views;
    RoutingCounts counts;
    std::map<std::string, double> extras;  // the largest of the micro-batches
    // Where experts choose, the most that chose one token: another number in every micro-batch.
    int64_t width = 0;
    for (const auto& micro_batch : micro_batches) {
      width = std::max(width, micro_batch.at(layer).expert_ids.size(1));
    }
    for (size_t m = 0; m < micro_batches.size(); ++m) {
      hosts.push_back(ToHost(micro_batches[m].at(layer), sequences[m], width));
      views.push_back(hosts.back().view);
      const RoutingCounts part = CountAssignments(views.back());
      counts.per_expert.resize(part.per_expert.size());
      for (size_t e = 0; e < part.per_expert.size(); ++e) {
        counts.per_expert[e] += part.per_expert[e];
      }
      counts.tokens += part.tokens;
      const model::LayerRouting& routing = micro_batches[m].at(layer);
      counts.dropped +=
          routing.has_open_slots ? static_cast<uint64_t>(routing.dropped) : part.dropped;
      for (const auto& [name, value] : routing.extras) {
        const double number = value.item<double>();
        const auto [it, is_new] = extras.try_emplace(name, number);
        if (!is_new) it->second = std::max(it->second, number);
      }
    }
    const uint32_t top_k = views[0].top_k;
    const LoadStatistics statistics = ComputeLoad(counts, top_k);
    for (const auto& [name, value] : ListLoad(statistics)) columns.Add(name, value);
    load.shape[1] = views[0].experts;
    load.values.insert(load.values.end(), statistics.load.begin(), statistics.load.end());
    if (const auto scores = ComputeScores(views)) {
      for (const auto& [name, value] : ListScores(*scores)) columns.Add(name, value);
    }
    for (const auto& [name, value] : extras) columns.Add(name, value);
    windows_[layer].Add(counts, top_k);
    if (const auto verdict = windows_[layer].Judge()) {
      columns.Add("dead_experts", verdict->dead);
      columns.Add("starved_experts", verdict->starved);
    }
  }
  std::vector<RoutingSeries> out = columns.Take(layers);
  // Layers of different width do not make a rectangle.
  if (load.values.size() == size_t{load.shape[0]} * load.shape[1]) out.push_back(std::move(load));
  return out;
}

}  // namespace switchyard::eval
