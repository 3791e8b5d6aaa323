// Questions over a sweep of very many ended runs, through the code that answers them for the
// services: one filtered and grouped, list pages, and one filtered and ordered. Usage:
// answers_bench DIR [RUNS [keep]]. Fills a real database below DIR (about 1 KiB a run) and removes
// it; with `keep` it stays, so that a coordinator can be started on it (--data-dir).
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/rng.h"
#include "common/base/strings.h"
#include "server/results/order_cache.h"
#include "server/results/query.h"
#include "server/store/store.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::results {
namespace {

namespace pb = ::switchyard::v1;
using Clock = std::chrono::steady_clock;
using scheduler::RunState;

constexpr uint64_t kCells = 2000;  // 8 routers, 25 rates, 10 widths
constexpr uint64_t kRunsPerCommit = 20'000;
constexpr char kLoss[] = "valid/bits_per_byte";
constexpr const char* kSeries[] = {kLoss, "train/nats_per_token", "train/tokens_per_second"};
constexpr const char* kRouters[] = {"dense", "smoe",   "hash", "mcf",
                                    "rmoe",  "switch", "base", "xmoe"};

double Milliseconds(Clock::time_point from) {
  return std::chrono::duration<double, std::milli>(Clock::now() - from).count();
}

void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

const SweepId kSweep{Uuid{.high = 0x0197000000007000, .low = 1}};

store::Columns ColumnsOf(uint64_t cell) {
  return {{"model.moe.router.kind", kRouters[cell % 8]},
          {"train.optimizer.adam.lr", FormatDouble(1e-4 * static_cast<double>(cell / 8 % 25 + 1))},
          {"model.transformer_xl.d_inner", std::to_string(64 * (cell / 200 + 1))}};
}

void AddRun(uint64_t number, store::SweepStatus* sweep, std::vector<store::Write>* writes) {
  static const RandomKey key = RandomKey::For(1, "answers bench");
  const RunId id{Uuid{.high = 0x0198000000007000, .low = number}};
  const uint64_t cell = (number - 1) % kCells + 1;
  const uint64_t seed = (number - 1) / kCells + 1;
  const bool has_failed = number % 50 == 0;
  const RunState state = has_failed ? RunState::kFailed : RunState::kSucceeded;
  ++sweep->counts[static_cast<size_t>(state)];
  const store::Columns columns = ColumnsOf(cell - 1);
  pb::RunSpec spec;
  spec.set_seed(seed);
  spec.mutable_train()->set_steps(2000);
  spec.mutable_train()->set_batch(16);
  writes->emplace_back(store::RunRow{.id = id,
                                     .sweep = kSweep,
                                     .project = "default",
                                     .run_key = StrCat(number * 2654435761 % 1'000'003, "-", number,
                                                       "-0123456789abcdef0123456789abcdef"),
                                     .seed = seed,
                                     .router = columns[0].second,
                                     .steps_total = 2000,
                                     .spec = spec.SerializeAsString(),
                                     .created_ms = 1});
  writes->emplace_back(store::RunStatus{
      .id = id, .state = state, .attempts = 1, .active_ms = 60'000, .ended_ms = 2});
  writes->emplace_back(store::LinkRow{
      .sweep = kSweep, .number = number, .run = id, .cell = cell, .columns = columns});
  writes->emplace_back(store::RunProgress{.run = id, .step = 2000});
  for (size_t s = 0; s < std::size(kSeries); ++s) {
    const double value = 1.2 + 0.1 * RandomNormal(key, number * std::size(kSeries) + s) +
                         0.01 * static_cast<double>(cell % 8);
    const bool is_diverged = number % 997 == 0;
    writes->emplace_back(store::SummaryRow{.run = id,
                                           .series = kSeries[s],
                                           .last = is_diverged ? NAN : value,
                                           .last_step = 2000,
                                           .has_best = s < 2 && !is_diverged,
                                           .best = value - 0.01,
                                           .best_step = 1900,
                                           .count = 20});
  }
}

void Fill(store::Store& store, uint64_t runs) {
  pb::ObjectiveSpec objective;
  objective.set_metric(kLoss);
  objective.set_goal(pb::GOAL_MINIMIZE);
  objective.set_value(pb::OBJECTIVE_VALUE_BEST);
  store::SweepStatus status{.id = kSweep, .state = scheduler::SweepState::kCompleted};
  status.proposed = runs;
  const auto axes = ColumnsOf(0);
  store::SweepRow row{.id = kSweep,
                      .project = "default",
                      .name = "million",
                      .objective = objective.SerializeAsString(),
                      .cells = kCells,
                      .runs = runs};
  for (const auto& [axis, value] : axes) row.axes.push_back(axis);
  store::SweepStatus open = status;
  open.state = scheduler::SweepState::kActive;
  Must(store.Commit(std::vector<store::Write>{row, open}));
  for (uint64_t number = 1; number <= runs;) {
    std::vector<store::Write> writes;
    for (uint64_t i = 0; i < kRunsPerCommit && number <= runs; ++i) {
      AddRun(number++, &status, &writes);
    }
    Must(store.Commit(writes));
    Must(store.DoIdleWork(100).status());
  }
  Must(store.Commit(std::vector<store::Write>{status}));
}

// The first time, then the median of several.
void Measure(const char* name, const std::function<uint64_t()>& ask) {
  Clock::time_point start = Clock::now();
  const uint64_t found = ask();
  const double first = Milliseconds(start);
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) {
    start = Clock::now();
    ask();
    times.push_back(Milliseconds(start));
  }
  std::ranges::sort(times);
  std::printf("{\"question\": \"%s\", \"found\": %llu, \"first_ms\": %.1f, \"median_ms\": %.1f}\n",
              name, static_cast<unsigned long long>(found), first, times[2]);
  std::fflush(stdout);
}

void Ask(store::ReadStore& store) {
  Result<store::SweepInfo> sweep = store.FindSweep("million", /*with_spec=*/false);
  Must(sweep.status());
  const auto group = [&](const GroupQuery& query) {
    Result<GroupResult> result = GroupRuns(store, *sweep, query);
    Must(result.status());
    return result->runs;
  };
  const auto list = [&](ListQuery query) {
    query.series = {kSeries[0], kSeries[1]};
    Result<store::RunPage> page = ListRuns(store, *sweep, query);
    Must(page.status());
    return page->runs.size();
  };
  Measure("filter and group by two axes, mean of one series", [&] {
    return group({.filter = "state = \"succeeded\" and valid/bits_per_byte < 1.3",
                  .by = {"model.moe.router.kind", "train.optimizer.adam.lr"},
                  .series = {kLoss}});
  });
  Measure("filter by axes and seed, group by router, two series", [&] {
    return group({.filter = "train.optimizer.adam.lr <= 0.001 and seed <= 250",
                  .by = {"router"},
                  .series = {kSeries[0], kSeries[1]}});
  });
  Measure("group by a field of the spec",
          [&] { return group({.by = {"train.steps"}, .series = {kLoss}}); });
  Measure("list the first page of 100", [&] { return list({.limit = 100}); });
  // A page from the middle: its token comes from the page before it.
  std::string middle;
  Result<store::RunPage> page = ListRuns(store, *sweep, {.limit = 1000});
  for (int i = 0; i < 50 && page.ok() && !page->next.empty(); ++i) {
    middle = page->next;
    page = ListRuns(store, *sweep, {.page = middle, .limit = 1000});
  }
  Must(page.status());
  Measure("list a page of 100 from the middle",
          [&] { return list({.page = middle, .limit = 100}); });
  const ListQuery ordered{
      .filter = "model.moe.router.kind = \"mcf\"", .order_by = kLoss, .limit = 100};
  Measure("filter and order by a series, first page of 100", [&] { return list(ordered); });
  OrderCache cache;
  Measure("the same with the order remembered", [&] {
    ListQuery query = ordered;
    query.cache = &cache;
    return list(query);
  });
}

}  // namespace
}  // namespace switchyard::results

int main(int argc, char** argv) {
  using namespace switchyard;
  if (argc < 2) {
    std::fprintf(stderr, "usage: answers_bench DIR [RUNS [keep]]\n");
    return 2;
  }
  const std::string dir = std::string(argv[1]) + "/answers_bench.data";
  const uint64_t runs = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1'000'000;
  const bool keeps = argc > 3 && std::strcmp(argv[3], "keep") == 0;
  const bool is_there = std::filesystem::exists(dir);
  if (!keeps) std::filesystem::remove_all(dir);
  Result<std::unique_ptr<store::Store>> opened = store::OpenSqliteStore({.data_dir = dir});
  results::Must(opened.status());
  if (!keeps || !is_there) {
    const auto start = results::Clock::now();
    results::Fill(**opened, runs);
    std::printf("{\"runs\": %llu, \"fill_seconds\": %.1f, \"database_bytes\": %llu}\n",
                static_cast<unsigned long long>(runs), results::Milliseconds(start) / 1000,
                static_cast<unsigned long long>((*opened)->Stats().database_bytes));
  }
  {
    Result<std::unique_ptr<store::ReadStore>> reader = (*opened)->OpenReader();
    results::Must(reader.status());
    results::Ask(**reader);
  }
  results::Must((*opened)->Close());
  opened->reset();
  if (!keeps) std::filesystem::remove_all(dir);
  return 0;
}
