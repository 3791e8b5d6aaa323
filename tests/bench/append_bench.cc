// Points per second that a coordinator acknowledges: registers as a worker, takes the runs that
// wait, and appends batches of one series from as many clients as it got runs, one call in flight
// each.
//
//   append_bench SERVER CLIENTS POINTS_PER_CALL SECONDS
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/strings.h"
#include "common/events/batch.h"
#include "switchyard/v1/worker_service.grpc.pb.h"

namespace switchyard {
namespace {

namespace pb = ::switchyard::v1;
using Clock = std::chrono::steady_clock;

std::shared_ptr<grpc::Channel> Connect(const std::string& server) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(server, grpc::InsecureChannelCredentials(), arguments);
}

// A worker as the coordinator sees it, without processes.
class FakeWorker {
 public:
  FakeWorker(const std::string& server, int slots)
      : stub_(pb::WorkerService::NewStub(Connect(server))), id_(NewUuidV4().ToString()) {
    pb::RegisterRequest request;
    request.set_proto_min(1);
    request.set_proto_max(1);
    request.set_worker_id(id_);
    request.set_incarnation(1);
    request.set_instance_id("bench");
    request.set_pool("default");
    request.set_threads_per_slot(1);
    request.set_host("bench");
    request.set_checkpoint_store("bench");
    for (int i = 0; i < slots; ++i) {
      pb::Slot* slot = request.add_slots();
      slot->set_index(static_cast<uint32_t>(i));
      slot->set_kind(pb::SLOT_KIND_CPU);
    }
    pb::RegisterResponse response;
    grpc::ClientContext context;
    const grpc::Status status = stub_->Register(&context, request, &response);
    if (!status.ok()) Die(status);
    nonce_ = response.nonce();
  }

  // One heartbeat; what is wanted is reported as running from then on.
  size_t Beat() {
    pb::HeartbeatRequest request;
    request.set_worker_id(id_);
    request.set_nonce(nonce_);
    request.set_incarnation(1);
    request.set_hb_seq(++sequence_);
    request.set_sent_boottime_ns(BoottimeNanoseconds());
    *request.mutable_applied_rev() = rev_;
    for (const pb::WantedAttempt& want : wanted_) {
      pb::MemberReport* member = request.add_observed();
      member->set_run_id(want.run_id());
      member->set_ordinal(want.ordinal());
      member->set_epoch(want.epoch());
      member->set_rank(want.rank());
      member->set_state(pb::MEMBER_STATE_RUNNING);
    }
    pb::HeartbeatResponse response;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    const grpc::Status status = stub_->Heartbeat(&context, request, &response);
    if (!status.ok()) Die(status);
    rev_ = response.rev();
    wanted_.assign(response.want().begin(), response.want().end());
    return wanted_.size();
  }

  const std::vector<pb::WantedAttempt>& wanted() const { return wanted_; }
  const std::string& id() const { return id_; }

  [[noreturn]] static void Die(const grpc::Status& status) {
    std::fprintf(stderr, "append_bench: %d %s\n", static_cast<int>(status.error_code()),
                 status.error_message().c_str());
    std::exit(1);
  }

 private:
  std::unique_ptr<pb::WorkerService::Stub> stub_;
  std::string id_;
  std::string nonce_;
  uint64_t sequence_ = 0;
  pb::Rev rev_;
  std::vector<pb::WantedAttempt> wanted_;
};

struct Totals {
  std::mutex mu;
  uint64_t points = 0;
  uint64_t bytes = 0;
  std::vector<double> milliseconds;
};

void Client(const std::string& server, const std::string& worker, const pb::WantedAttempt& want,
            uint64_t points_per_call, Clock::time_point end, Totals* totals) {
  const auto stub = pb::WorkerService::NewStub(Connect(server));
  // Ten series a line, as a trainer writes them.
  constexpr uint64_t kSeries = 10;
  uint64_t seq = 1, points = 0, bytes = 0;
  std::vector<double> milliseconds;
  while (Clock::now() < end) {
    events::BatchBuilder builder;
    for (uint64_t i = 0; i < points_per_call / kSeries; ++i) {
      events::ParsedLine line;
      line.seq = seq + i;
      line.type = "m";
      line.step = line.seq;
      line.ms = line.seq * 7;
      for (uint64_t s = 0; s < kSeries; ++s) {
        line.scalars.emplace_back(StrCat("train/series_", s),
                                  2.0 + 1.0 / static_cast<double>(line.seq + s));
      }
      builder.Add(line);
    }
    const events::BatchBuilder::Blob blob = builder.Finish();
    pb::AppendRequest request;
    request.set_run_id(want.run_id());
    request.set_ordinal(want.ordinal());
    request.set_epoch(want.epoch());
    request.set_rank(want.rank());
    request.set_first_seq(blob.first_seq);
    request.set_n(blob.n);
    request.set_codec(blob.is_zstd ? pb::BATCH_CODEC_ZSTD : pb::BATCH_CODEC_PLAIN);
    request.set_crc32c(blob.crc32c);
    request.set_blob(blob.bytes);
    request.set_worker_id(worker);
    const auto start = Clock::now();
    pb::AppendResponse response;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    const grpc::Status status = stub->Append(&context, request, &response);
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) continue;
    if (!status.ok()) FakeWorker::Die(status);
    if (response.expect() != 0) {
      std::fprintf(stderr, "append_bench: asked to go back to %llu from %llu\n",
                   static_cast<unsigned long long>(response.expect()),
                   static_cast<unsigned long long>(seq));
      std::exit(1);
    }
    milliseconds.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    seq += blob.n;
    points += blob.n * kSeries;
    bytes += blob.bytes.size();
  }
  const std::lock_guard lock(totals->mu);
  totals->points += points;
  totals->bytes += bytes;
  totals->milliseconds.insert(totals->milliseconds.end(), milliseconds.begin(), milliseconds.end());
}

int Main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: append_bench SERVER CLIENTS POINTS_PER_CALL SECONDS\n");
    return 1;
  }
  const std::string server = argv[1];
  const int clients = std::atoi(argv[2]);
  const uint64_t points_per_call = std::strtoull(argv[3], nullptr, 10);
  const double seconds = std::atof(argv[4]);
  FakeWorker worker(server, clients);
  for (int i = 0; worker.Beat() < static_cast<size_t>(clients); ++i) {
    if (i > 200) {
      std::fprintf(stderr, "append_bench: got %zu of %d runs\n", worker.wanted().size(), clients);
      return 1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  worker.Beat();

  Totals totals;
  const auto start = Clock::now();
  const auto end = start + std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  std::vector<std::thread> threads;
  for (int i = 0; i < clients; ++i) {
    threads.emplace_back(Client, server, worker.id(), worker.wanted()[static_cast<size_t>(i)],
                         points_per_call, end, &totals);
  }
  for (std::thread& thread : threads) thread.join();
  const double took = std::chrono::duration<double>(Clock::now() - start).count();
  std::sort(totals.milliseconds.begin(), totals.milliseconds.end());
  const size_t n = totals.milliseconds.size();
  std::printf(
      "append clients=%d points_per_call=%llu points_per_s=%.0f wire_bytes_per_point=%.1f "
      "p50_ms=%.2f p99_ms=%.2f\n",
      clients, static_cast<unsigned long long>(points_per_call),
      static_cast<double>(totals.points) / took,
      static_cast<double>(totals.bytes) / static_cast<double>(totals.points),
      n ? totals.milliseconds[n / 2] : 0.0, n ? totals.milliseconds[n * 99 / 100] : 0.0);
  return 0;
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) { return switchyard::Main(argc, argv); }
