#include "worker/agent/agent_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include "common/base/version.h"

namespace switchyard::agent {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;

}  // namespace

struct AgentMetrics::Impl {
  std::shared_ptr<prometheus::Registry> registry;
  prometheus::Labels labels;

  prometheus::Gauge& Gauge(const std::string& name, const std::string& help) {
    return BuildGauge().Name("switchyard_agent_" + name).Help(help).Register(*registry).Add(labels);
  }
  prometheus::Counter& Counter(const std::string& name, const std::string& help) {
    return BuildCounter()
        .Name("switchyard_agent_" + name)
        .Help(help)
        .Register(*registry)
        .Add(labels);
  }

  prometheus::Gauge* connected = nullptr;
  prometheus::Gauge* trainers = nullptr;
  prometheus::Gauge* spool_bytes = nullptr;
  prometheus::Gauge* spool_oldest = nullptr;
  prometheus::Gauge* unacked_lines = nullptr;
  prometheus::Gauge* disk_free = nullptr;
  prometheus::Gauge* disk_size = nullptr;
  prometheus::Gauge* clock_offset = nullptr;
  prometheus::Counter* adoptions = nullptr;
  prometheus::Counter* fences = nullptr;
  prometheus::Histogram* launch_seconds = nullptr;
  prometheus::Family<prometheus::Gauge>* slot_info = nullptr;
  std::vector<SlotUse> slots;
  std::vector<prometheus::Gauge*> slot_gauges;
};

AgentMetrics::AgentMetrics(std::shared_ptr<prometheus::Registry> registry,
                           const std::string& worker, const std::string& pool)
    : impl_(std::make_unique<Impl>()) {
  Impl& m = *impl_;
  m.registry = std::move(registry);
  m.labels = {{"pool", pool}};
  BuildGauge()
      .Name("switchyard_agent_info")
      .Help("The agent of this host; always 1.")
      .Register(*m.registry)
      .Add({{"worker", worker}, {"pool", pool}, {"version", kVersion}})
      .Set(1);
  m.connected = &m.Gauge("connected", "1 while the coordinator answers heartbeats.");
  m.trainers = &m.Gauge("trainers", "Trainers that are launching or running.");
  m.spool_bytes = &m.Gauge("spool_bytes", "Bytes of events and logs not yet acknowledged.");
  m.spool_oldest = &m.Gauge("spool_oldest_timestamp_seconds",
                            "When the oldest unacknowledged bytes were seen; 0 for none.");
  m.unacked_lines = &m.Gauge("unacked_lines", "Event lines not yet acknowledged.");
  m.disk_free = &m.Gauge("disk_free_bytes", "Free bytes where the state directory lies.");
  m.disk_size = &m.Gauge("disk_size_bytes", "Size of the file system of the state directory.");
  m.clock_offset =
      &m.Gauge("clock_offset_seconds", "Wall clock of the coordinator less that of this host.");
  m.adoptions = &m.Counter("adoptions_total", "Trainers taken over after a restart of the agent.");
  m.fences = &m.Counter("fences_total", "Trainers that ended because their lease had passed.");
  m.launch_seconds =
      &BuildHistogram()
           .Name("switchyard_agent_launch_seconds")
           .Help("From the request of a launch to the trainer's exec.")
           .Register(*m.registry)
           .Add(m.labels, prometheus::Histogram::BucketBoundaries{0.001, 0.002, 0.005, 0.01, 0.02,
                                                                  0.05, 0.1, 0.2, 0.5, 1, 5, 60});
  m.slot_info = &BuildGauge()
                     .Name("switchyard_agent_slot_info")
                     .Help("Which run uses a slot; always 1.")
                     .Register(*m.registry);
}

AgentMetrics::~AgentMetrics() = default;

void AgentMetrics::Set(const Snapshot& snapshot) {
  impl_->connected->Set(snapshot.connected ? 1 : 0);
  impl_->trainers->Set(static_cast<double>(snapshot.trainers));
  impl_->spool_bytes->Set(static_cast<double>(snapshot.spool_bytes));
  impl_->spool_oldest->Set(snapshot.spool_oldest_timestamp_seconds);
  impl_->unacked_lines->Set(static_cast<double>(snapshot.unacked_lines));
  impl_->disk_free->Set(static_cast<double>(snapshot.disk_free_bytes));
  impl_->disk_size->Set(static_cast<double>(snapshot.disk_size_bytes));
  impl_->clock_offset->Set(snapshot.clock_offset_seconds);
}

void AgentMetrics::SetSlots(const std::vector<SlotUse>& slots) {
  Impl& m = *impl_;
  if (slots == m.slots) return;
  for (prometheus::Gauge* gauge : m.slot_gauges) m.slot_info->Remove(gauge);
  m.slot_gauges.clear();
  for (const SlotUse& use : slots) {
    if (use.run.empty()) continue;
    prometheus::Labels labels = m.labels;
    labels["slot"] = std::to_string(use.slot);
    labels["uuid"] = use.uuid;
    labels["run"] = use.run;
    labels["rank"] = std::to_string(use.rank);
    prometheus::Gauge& gauge = m.slot_info->Add(labels);
    gauge.Set(1);
    m.slot_gauges.push_back(&gauge);
  }
  m.slots = slots;
}

void AgentMetrics::CountAdoption() { impl_->adoptions->Increment(); }
void AgentMetrics::CountFence() { impl_->fences->Increment(); }
void AgentMetrics::ObserveLaunch(double seconds) { impl_->launch_seconds->Observe(seconds); }

}  // namespace switchyard::agent
