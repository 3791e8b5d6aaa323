#include "server/metrics/live_runs.h"

#include <prometheus/collectable.h>
#include <prometheus/counter.h>
#include <prometheus/metric_family.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "common/base/strings.h"

namespace switchyard::server_metrics {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

struct Mapping {
  std::string_view series;
  std::string_view metric;  // without switchyard_run_
  std::string_view help;
};
constexpr std::array kGauges{
    Mapping{"train/nats_per_token", "train_loss", "Training loss, nats per token."},
    Mapping{"valid/nats_per_token", "val_loss", "Validation loss, nats per token."},
    Mapping{"train/lr", "learning_rate", "Learning rate."},
    Mapping{"train/grad_norm", "grad_norm", "Global norm of the gradient."},
    Mapping{"train/step_seconds", "step_seconds", "Wall time of a step."},
    Mapping{"train/expert_imbalance_wait_seconds", "expert_imbalance_wait_seconds",
            "Slowest expert group less the mean."},
    Mapping{"model/flops_per_token_active", "flops_per_token_active", "Forward FLOPs of a token."},
};
constexpr std::array kCounters{
    Mapping{"train/tokens", "train_tokens_total", "Tokens trained on."},
    Mapping{"train/nonfinite_steps", "nonfinite_steps_total",
            "Steps with a loss or gradient that is not finite."},
    Mapping{"train/data_wait_seconds", "data_wait_seconds_total", "Time spent waiting for data."},
};
constexpr std::string_view kParams = "model/params_";
constexpr std::string_view kRouting = "routing/";
constexpr size_t kParamKindsMax = 5;
// The store keeps every series; the live view a bounded number of names.
constexpr size_t kRoutingNamesMax = 40;

using Labels = std::vector<ClientMetric::Label>;

ClientMetric GaugeOf(Labels labels, double value) {
  ClientMetric metric;
  metric.label = std::move(labels);
  metric.gauge.value = value;
  return metric;
}
ClientMetric CounterOf(Labels labels, double value) {
  ClientMetric metric;
  metric.label = std::move(labels);
  metric.counter.value = value;
  return metric;
}

// Balance loss and load come for several scopes, which are a label.
std::pair<std::string, std::string> SplitScope(const std::string& name) {
  for (const std::string_view base : {"aux_loss", "load_max_over_mean"}) {
    if (name == base) return {name, base == "aux_loss" ? "micro" : "global"};
    for (const std::string_view scope : {"micro", "sequence", "global"}) {
      if (name == StrCat(base, "_", scope)) return {std::string(base), std::string(scope)};
    }
  }
  return {name, ""};
}

bool IsMetricName(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || c == '_' || (c >= '0' && c <= '9');
  });
}

}  // namespace

class LiveRuns::Exporter : public prometheus::Collectable {
 public:
  explicit Exporter(Caps caps) : caps_(caps) {}

  void Set(std::shared_ptr<const Snapshot> snapshot) {
    const std::lock_guard lock(mu_);
    snapshot_ = std::move(snapshot);
  }
  void SetDropped(prometheus::Counter* dropped) { dropped_ = dropped; }

  std::vector<MetricFamily> Collect() const override {
    std::shared_ptr<const Snapshot> snapshot;
    {
      const std::lock_guard lock(mu_);
      snapshot = snapshot_;
    }
    std::map<std::string, MetricFamily> families;
    const auto family = [&](const std::string& name, std::string_view help,
                            MetricType type) -> MetricFamily& {
      MetricFamily& out = families[name];
      if (out.name.empty()) {
        out.name = name;
        out.help = help;
        out.type = type;
      }
      return out;
    };
    // Described even without a run, so that a scrape shows what there can be.
    const auto run_gauge = [&](std::string_view name, std::string_view help) -> MetricFamily& {
      return family(StrCat("switchyard_run_", name), help, MetricType::Gauge);
    };
    std::vector<const Run*> runs;
    if (snapshot != nullptr) {
      for (const auto& [id, run] : snapshot->runs) runs.push_back(run.get());
    }
    std::ranges::sort(runs, [](const Run* a, const Run* b) { return a->order > b->order; });
    uint64_t dropped = 0;
    if (runs.size() > caps_.runs) {
      dropped += (runs.size() - caps_.runs) * 12;
      runs.resize(caps_.runs);
    }
    size_t routing_budget = caps_.routing_series;
    size_t loads_left = caps_.expert_load_runs;
    for (const Run* run : runs) {
      const Labels labels{{"project", run->info.project},
                          {"sweep", run->info.sweep.value.ToString()},
                          {"run", run->info.run.value.ToString()}};
      Labels with_router = labels;
      with_router.push_back({"router", run->info.router});
      run_gauge("info", "1; the router of a live run.").metric.push_back(GaugeOf(with_router, 1));
      run_gauge("step", "Newest committed step.")
          .metric.push_back(GaugeOf(labels, static_cast<double>(run->step)));
      run_gauge("attempt", "Ordinal of the attempt.")
          .metric.push_back(GaugeOf(labels, run->attempt));
      if (run->last_step_unix > 0) {
        run_gauge("last_step_timestamp_seconds", "Commit of the newest step.")
            .metric.push_back(GaugeOf(labels, run->last_step_unix));
      }
      for (const Mapping& mapping : kGauges) {
        const auto value = run->gauges.find(std::string(mapping.metric));
        if (value == run->gauges.end()) continue;
        run_gauge(mapping.metric, mapping.help).metric.push_back(GaugeOf(labels, value->second));
      }
      if (const auto value = run->gauges.find("objective"); value != run->gauges.end()) {
        run_gauge("objective", "What the sweep compares its runs by.")
            .metric.push_back(GaugeOf(labels, value->second));
      }
      for (const auto& [kind, value] : run->params) {
        Labels with_kind = labels;
        with_kind.push_back({"kind", kind});
        run_gauge("params", "Parameters of the model.")
            .metric.push_back(GaugeOf(std::move(with_kind), value));
      }
      for (const Mapping& mapping : kCounters) {
        const auto value = run->counters.find(std::string(mapping.metric));
        family(StrCat("switchyard_run_", mapping.metric), mapping.help, MetricType::Counter)
            .metric.push_back(CounterOf(labels, value == run->counters.end() ? 0 : value->second));
      }
      // The budget goes to whole runs.
      const bool with_load = loads_left > 0 && run->routing.contains("expert_load");
      const size_t needed = CountRouting(*run, with_load);
      if (needed > routing_budget) {
        dropped += needed;
        continue;
      }
      routing_budget -= needed;
      if (with_load) --loads_left;
      AddRouting(*run, with_router, with_load, &families);
    }
    AddSweeps(snapshot.get(), &families, &dropped);
    if (dropped_ != nullptr && dropped > 0) dropped_->Increment(static_cast<double>(dropped));
    std::vector<MetricFamily> out;
    out.reserve(families.size());
    for (auto& [name, one] : families) out.push_back(std::move(one));
    return out;
  }

 private:
  static size_t LayersOf(const Run& run, const Vector& vector) {
    return std::min<size_t>(vector.shape.empty() ? 0 : vector.shape[0], run.info.moe_layers.size());
  }

  size_t CountRouting(const Run& run, bool with_load) const {
    size_t count = 0;
    for (const auto& [name, vector] : run.routing) {
      if (vector.shape.size() == 1) count += LayersOf(run, vector);
      if (vector.shape.size() == 2 && with_load) {
        count += std::min(LayersOf(run, vector), caps_.expert_load_layers) *
                 std::min<size_t>(vector.shape[1], caps_.expert_load_experts);
      }
    }
    return count;
  }

  void AddRouting(const Run& run, const Labels& labels, bool with_load,
                  std::map<std::string, MetricFamily>* families) const {
    for (const auto& [full_name, vector] : run.routing) {
      const auto [name, scope] = SplitScope(full_name);
      const bool by_expert = vector.shape.size() == 2;
      if (by_expert && !with_load) continue;
      MetricFamily& family = (*families)[StrCat("switchyard_routing_", name)];
      if (family.name.empty()) {
        family.name = StrCat("switchyard_routing_", name);
        family.help = "Routing of a live run by MoE layer; definitions in docs/operations.md.";
        family.type = MetricType::Gauge;
      }
      const size_t experts =
          by_expert ? std::min<size_t>(vector.shape[1], caps_.expert_load_experts) : 1;
      const size_t stride = by_expert ? vector.shape[1] : 1;
      size_t layers = LayersOf(run, vector);
      if (by_expert) layers = std::min(layers, caps_.expert_load_layers);
      for (size_t layer = 0; layer < layers; ++layer) {
        for (size_t expert = 0; expert < experts; ++expert) {
          Labels all = labels;
          all.push_back({"layer", std::to_string(run.info.moe_layers[layer])});
          if (!scope.empty()) all.push_back({"scope", scope});
          if (by_expert) all.push_back({"expert", std::to_string(expert)});
          family.metric.push_back(GaugeOf(std::move(all), vector.values[layer * stride + expert]));
        }
      }
    }
  }

  void AddSweeps(const Snapshot* snapshot, std::map<std::string, MetricFamily>* families,
                 uint64_t* dropped) const {
    if (snapshot == nullptr) return;
    std::vector<std::pair<SweepId, const Sweep*>> sweeps;
    for (const auto& [id, sweep] : snapshot->sweeps) sweeps.emplace_back(id, &sweep);
    std::ranges::sort(
        sweeps, [](const auto& a, const auto& b) { return a.second->order > b.second->order; });
    if (sweeps.size() > caps_.sweeps) {
      *dropped += (sweeps.size() - caps_.sweeps) * scheduler::kRunStates;
      sweeps.resize(caps_.sweeps);
    }
    for (const auto& [id, sweep] : sweeps) {
      const Labels labels{{"project", sweep->project}, {"sweep", id.value.ToString()}};
      MetricFamily& runs = (*families)["switchyard_sweep_runs"];
      runs.name = "switchyard_sweep_runs";
      runs.help = "Runs of a live sweep by state.";
      runs.type = MetricType::Gauge;
      for (size_t i = 1; i < scheduler::kRunStates; ++i) {
        Labels with_state = labels;
        with_state.push_back({"state", std::string(Name(static_cast<scheduler::RunState>(i)))});
        runs.metric.push_back(
            GaugeOf(std::move(with_state), static_cast<double>(sweep->counts[i])));
      }
      double tokens = sweep->ended_tokens;
      for (const auto& [run_id, run] : snapshot->runs) {
        if (run->info.sweep != id) continue;
        const auto value = run->counters.find("train_tokens_total");
        if (value != run->counters.end()) tokens += value->second;
      }
      MetricFamily& total = (*families)["switchyard_sweep_tokens_total"];
      total.name = "switchyard_sweep_tokens_total";
      total.help = "Tokens that the runs of a live sweep trained on.";
      total.type = MetricType::Counter;
      total.metric.push_back(CounterOf(labels, tokens));
    }
  }

  const Caps caps_;
  prometheus::Counter* dropped_ = nullptr;
  mutable std::mutex mu_;
  std::shared_ptr<const Snapshot> snapshot_;  // guarded by mu_
};

LiveRuns::LiveRuns(Caps caps) : caps_(caps), exporter_(std::make_shared<Exporter>(caps)) {}
LiveRuns::~LiveRuns() = default;

// Copy on write: a published run is never changed.
LiveRuns::Run* LiveRuns::Find(RunId id) {
  const auto found = runs_.find(id);
  if (found == runs_.end()) return nullptr;
  if (found->second.use_count() > 1) found->second = std::make_shared<Run>(*found->second);
  is_changed_ = true;
  return found->second.get();
}

bool LiveRuns::Contains(RunId run) const { return runs_.contains(run); }

void LiveRuns::Start(const LiveRunInfo& info, uint32_t attempt) {
  if (Run* run = Find(info.run)) {
    run->attempt = attempt;
    return;
  }
  auto run = std::make_shared<Run>();
  run->info = info;
  run->order = ++order_;
  run->attempt = attempt;
  runs_.emplace(info.run, std::move(run));
  is_changed_ = true;
}

void LiveRuns::SetScalar(RunId id, std::string_view series, uint64_t step, double value,
                         int64_t unix_ms) {
  Run* run = Find(id);
  if (run == nullptr) return;
  run->step = step;
  if (series.starts_with("train/")) run->last_step_unix = static_cast<double>(unix_ms) / 1000;
  for (const Mapping& mapping : kGauges) {
    if (mapping.series == series) run->gauges[std::string(mapping.metric)] = value;
  }
  for (const Mapping& mapping : kCounters) {
    // A count that is not finite is none, and would stay in the sums for ever.
    if (mapping.series != series || !std::isfinite(value)) continue;
    // A resumed attempt repeats steps: a counter shows the highest value.
    double& counter = run->counters[std::string(mapping.metric)];
    counter = std::max(counter, value);
  }
  if (series.starts_with(kParams)) {
    const std::string kind(series.substr(kParams.size()));
    if (run->params.contains(kind) || run->params.size() < kParamKindsMax) {
      run->params[kind] = value;
    }
  }
}

void LiveRuns::SetVector(RunId id, std::string_view series, const std::vector<uint32_t>& shape,
                         std::string_view values) {
  if (!series.starts_with(kRouting) || shape.empty() || shape.size() > 2) return;
  const std::string name(series.substr(kRouting.size()));
  Run* run = Find(id);
  if (run == nullptr || !IsMetricName(name)) return;
  if (!run->routing.contains(name) && run->routing.size() >= kRoutingNamesMax) return;
  Vector& vector = run->routing[name];
  vector.shape = shape;
  vector.values.resize(values.size() / sizeof(float));
  std::memcpy(vector.values.data(), values.data(), vector.values.size() * sizeof(float));
}

void LiveRuns::SetObjective(RunId id, double value) {
  if (Run* run = Find(id)) run->gauges["objective"] = value;
}

void LiveRuns::End(RunId id) {
  const auto found = runs_.find(id);
  if (found == runs_.end()) return;
  const auto sweep = sweeps_.find(found->second->info.sweep);
  const auto tokens = found->second->counters.find("train_tokens_total");
  if (sweep != sweeps_.end() && tokens != found->second->counters.end()) {
    sweep->second.ended_tokens += tokens->second;
  }
  runs_.erase(found);
  is_changed_ = true;
}

void LiveRuns::SetSweep(SweepId id, const std::string& project,
                        const scheduler::StateCounts& counts) {
  Sweep& sweep = sweeps_[id];
  if (sweep.order == 0) sweep.order = ++order_;
  sweep.project = project;
  sweep.counts = counts;
  is_changed_ = true;
}

void LiveRuns::EndSweep(SweepId id) {
  if (sweeps_.erase(id) > 0) is_changed_ = true;
}

void LiveRuns::Publish() {
  if (!is_changed_) return;
  is_changed_ = false;
  auto snapshot = std::make_shared<Snapshot>();
  for (const auto& [id, run] : runs_) snapshot->runs.emplace(id, run);
  snapshot->sweeps = sweeps_;
  exporter_->Set(std::move(snapshot));
}

std::shared_ptr<prometheus::Collectable> LiveRuns::MakeCollectable(prometheus::Counter* dropped) {
  exporter_->SetDropped(dropped);
  return exporter_;
}

}  // namespace switchyard::server_metrics
