// Points a second that the store commits durably, with what a coordinator writes for each batch: a
// chunk per series, the summaries, the watermark and the progress. Usage: store_append_bench DIR
// [SECONDS]. DIR should be on the disk in question; the bench writes below it and removes it all.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/strings.h"
#include "server/results/summaries.h"
#include "server/store/chunks.h"
#include "server/store/store.h"

namespace switchyard::store {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kRuns = 64;
constexpr uint64_t kSeries = 10;

double Seconds(Clock::time_point from) {
  return std::chrono::duration<double>(Clock::now() - from).count();
}

void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

RunId RunOf(uint64_t i) { return {Uuid{.high = 0x0198000000007000, .low = i + 1}}; }
Epoch EpochOf(uint64_t i) { return {(1ULL << 48) + i}; }

std::vector<Write> MakeRuns() {
  const SweepId sweep{Uuid{.high = 0x0197000000007000, .low = 1}};
  std::vector<Write> writes = {SweepRow{.id = sweep, .project = "default", .name = "bench"},
                               SweepStatus{.id = sweep, .proposed = kRuns}};
  for (uint64_t i = 0; i < kRuns; ++i) {
    writes.emplace_back(RunRow{.id = RunOf(i), .sweep = sweep, .run_key = StrCat(i)});
    writes.emplace_back(RunStatus{.id = RunOf(i)});
    writes.emplace_back(LinkRow{.sweep = sweep, .number = i + 1, .run = RunOf(i)});
    writes.emplace_back(AttemptRow{.epoch = EpochOf(i), .run = RunOf(i), .ordinal = 1});
    writes.emplace_back(AttemptStatus{.epoch = EpochOf(i), .start_reported = true});
  }
  return writes;
}

// One batch of a run: `points` over kSeries series at consecutive steps, values of float32 or
// float64 origin half and half.
void AddBatch(uint64_t run, uint64_t first_step, uint64_t points, std::vector<Write>* writes) {
  const uint64_t steps = points / kSeries;
  ChunkColumns columns;
  for (uint64_t i = 0; i < steps; ++i) {
    columns.seqs.push_back(first_step + i);
    columns.steps.push_back(first_step + i);
    columns.ms.push_back((first_step + i) * 25 + (first_step + i) % 3);
  }
  for (uint64_t s = 0; s < kSeries; ++s) {
    columns.values.clear();
    for (uint64_t i = 0; i < steps; ++i) {
      double value = 3.0 / static_cast<double>(first_step + i + s);
      if (s % 2 == 0) value = static_cast<double>(static_cast<float>(value));
      columns.values.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    ChunkRow chunk{.epoch = EpochOf(run),
                   .series = StrCat("train/series_with_a_usual_name_", s),
                   .first_seq = first_step,
                   .last_seq = first_step + steps - 1,
                   .first_step = first_step,
                   .last_step = first_step + steps - 1,
                   .n = static_cast<uint32_t>(steps)};
    EncodeChunk(columns, &chunk.blob);
    SummaryRow summary{.run = RunOf(run), .series = chunk.series};
    results::AddPoints(columns.steps, columns.values, 1, ~uint64_t{0}, &summary);
    writes->emplace_back(std::move(chunk));
    writes->emplace_back(std::move(summary));
  }
  writes->emplace_back(StreamRow{.epoch = EpochOf(run), .acked = first_step + steps - 1});
  writes->emplace_back(RunProgress{.run = RunOf(run), .step = first_step + steps - 1});
}

void Measure(const std::string& dir, uint64_t points, uint64_t group, double seconds) {
  std::filesystem::remove_all(dir);
  Result<std::unique_ptr<Store>> opened = OpenSqliteStore({.data_dir = dir});
  Must(opened.status());
  Store& store = **opened;
  Must(store.Commit(MakeRuns()));
  const uint64_t before = store.Stats().database_bytes;
  uint64_t batches = 0;
  uint64_t commits = 0;
  double committing = 0;
  const Clock::time_point start = Clock::now();
  while (Seconds(start) < seconds) {
    std::vector<Write> writes;
    for (uint64_t i = 0; i < group; ++i, ++batches) {
      AddBatch(batches % kRuns, batches / kRuns * (points / kSeries) + 1, points, &writes);
    }
    const Clock::time_point commit = Clock::now();
    Must(store.Commit(writes));
    committing += Seconds(commit);
    ++commits;
  }
  const double total = Seconds(start);
  const auto stored = static_cast<double>(batches * points);
  const Clock::time_point idle = Clock::now();
  for (bool more = true; more;) {
    const Result<bool> did = store.DoIdleWork(1000);
    Must(did.status());
    more = *did;
  }
  Must(store.DoIdleWork(1000).status());
  const double merging = Seconds(idle);
  std::printf(
      "{\"points_per_batch\": %llu, \"batches_per_commit\": %llu, \"points\": %.0f, "
      "\"points_per_second_with_encoding\": %.0f, \"points_per_second_of_commit\": %.0f, "
      "\"commits_per_second\": %.0f, \"bytes_per_point\": %.2f, \"merge_seconds\": %.2f}\n",
      static_cast<unsigned long long>(points), static_cast<unsigned long long>(group), stored,
      stored / total, stored / committing, static_cast<double>(commits) / committing,
      static_cast<double>(store.Stats().database_bytes - before) / stored, merging);
  std::fflush(stdout);
  Must(store.Close());
  opened->reset();
  std::filesystem::remove_all(dir);
}

// First page of 100 of 10,000 runs with two summaries each, and of the sweeps.
void MeasureLists(const std::string& dir) {
  std::filesystem::remove_all(dir);
  Result<std::unique_ptr<Store>> opened = OpenSqliteStore({.data_dir = dir});
  Must(opened.status());
  Store& store = **opened;
  constexpr uint64_t kMany = 10000;
  const SweepId sweep{Uuid{.high = 0x0197000000007000, .low = 1}};
  std::vector<Write> writes = {SweepRow{.id = sweep, .project = "default", .name = "bench"},
                               SweepStatus{.id = sweep, .proposed = kMany, .counts = {0, kMany}}};
  for (uint64_t i = 0; i < kMany; ++i) {
    const std::string noise = StrCat(i * 7919, ".", i * 104729);
    writes.emplace_back(RunRow{.id = RunOf(i),
                               .sweep = sweep,
                               .run_key = StrCat(i * 2654435761 % 1000003, "-", i),
                               .spec = std::string(900, 's') + noise,
                               .attempt_spec = std::string(200, 'a') + noise});
    writes.emplace_back(RunStatus{.id = RunOf(i)});
    writes.emplace_back(LinkRow{.sweep = sweep, .number = i + 1, .run = RunOf(i), .cell = i + 1});
    for (const char* series : {"valid/bits_per_byte", "train/nats_per_token"}) {
      writes.emplace_back(SummaryRow{.run = RunOf(i), .series = series, .last = 1, .count = 1});
    }
  }
  const Clock::time_point commit = Clock::now();
  Must(store.Commit(writes));
  const double submitting = Seconds(commit);
  Result<std::unique_ptr<ReadStore>> reader = store.OpenReader();
  Must(reader.status());
  const RunFilter filter{.sweep = sweep, .series = {"valid/bits_per_byte", "train/nats_per_token"}};
  Must((*reader)->ListRuns(filter, "", 100).status());
  constexpr int kRounds = 50;
  const Clock::time_point list = Clock::now();
  for (int i = 0; i < kRounds; ++i) Must((*reader)->ListRuns(filter, "", 100).status());
  const double runs_ms = Seconds(list) / kRounds * 1000;
  const Clock::time_point sweeps = Clock::now();
  for (int i = 0; i < kRounds; ++i) Must((*reader)->ListSweeps(true, "", 100).status());
  const double sweeps_ms = Seconds(sweeps) / kRounds * 1000;
  const Clock::time_point load = Clock::now();
  Must(store.Load().status());
  std::printf(
      "{\"runs\": %llu, \"submit_commit_seconds\": %.3f, \"first_page_ms\": %.2f, "
      "\"sweeps_page_ms\": %.3f, \"load_seconds\": %.3f, \"database_bytes\": %llu}\n",
      static_cast<unsigned long long>(kMany), submitting, runs_ms, sweeps_ms, Seconds(load),
      static_cast<unsigned long long>(store.Stats().database_bytes));
  reader = Result<std::unique_ptr<ReadStore>>(nullptr);
  Must(store.Close());
  opened->reset();
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace switchyard::store

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: store_append_bench DIR [SECONDS]\n");
    return 2;
  }
  const std::string dir = std::string(argv[1]) + "/store_append_bench.data";
  const double seconds = argc > 2 ? std::atof(argv[2]) : 3;
  for (const uint64_t points : {200, 1000, 5000}) {
    for (const uint64_t group : {1, 8}) switchyard::store::Measure(dir, points, group, seconds);
  }
  switchyard::store::MeasureLists(dir);
  return 0;
}
