#include "worker/agent/coordinator_client.h"

#include <unistd.h>

#include <chrono>
#include <future>

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "common/base/strings.h"
#include "switchyard/v1/worker_service.grpc.pb.h"

namespace switchyard::agent {
namespace {

namespace pb = ::switchyard::v1;

// With the coordinator's own limit on messages.
class Server final : public pb::WorkerService::Service {
 public:
  explicit Server(const std::string& address) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.SetMaxReceiveMessageSize(4 << 20);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Server() override { server_->Shutdown(std::chrono::system_clock::now()); }

  grpc::Status Heartbeat(grpc::ServerContext*, const pb::HeartbeatRequest* request,
                         pb::HeartbeatResponse*) override {
    heartbeat = *request;
    return grpc::Status::OK;
  }

  pb::HeartbeatRequest heartbeat;

 private:
  std::unique_ptr<grpc::Server> server_;
};

Record Ended(uint64_t epoch, const AttemptEnd& end) {
  Record record{.key = {.epoch = epoch},
                .run_id = "0197a5c0-0000-7000-8000-000000000002",
                .ordinal = 1,
                .state = RecordState::kExited};
  record.end = end;
  return record;
}

// GR4: a thousand trainers that failed at once, each with a long reason and a full tail of output
// (of an earlier release's records.log even more than that), are told of in one heartbeat that the
// coordinator takes.
TEST(CoordinatorClient, AHeartbeatFitsHoweverMuchTrainersSaid) {
  const std::string address = StrCat("unix:/tmp/switchyard-client-", getpid(), ".sock");
  Server server(address);
  const auto client =
      MakeCoordinatorClient(address, [](const std::function<void()>& work) { work(); });
  HeartbeatOut out{.worker_id = "0197a5c0-0000-7000-8000-000000000001"};
  const AttemptEnd end{.exit_code = 1,
                       .end_class = "user",
                       .evidence = "exit.json",
                       .reason = std::string(50'000, 'r'),
                       .output_tail = std::string(24'000, '\xff') + "end"};
  for (uint64_t epoch = 1; epoch <= 1024; ++epoch) out.observed.push_back(Ended(epoch, end));
  std::promise<Status> told;
  client->Heartbeat(out, 20'000,
                    [&](const Result<HeartbeatIn>& reply) { told.set_value(reply.status()); });
  const Status status = told.get_future().get();
  ASSERT_TRUE(status.ok()) << status.ToString();
  ASSERT_EQ(server.heartbeat.observed_size(), 1024);
  for (const pb::MemberReport& report : server.heartbeat.observed()) {
    EXPECT_TRUE(report.output_tail().ends_with("end"));
    EXPECT_GE(report.output_tail().size(), 1000u);
    EXPECT_GE(report.reason().size(), 1000u);
  }
}

// One alone is told with all that is kept of it.
TEST(CoordinatorClient, OneEndIsToldWhole) {
  const std::string address = StrCat("unix:/tmp/switchyard-client-", getpid(), ".sock");
  Server server(address);
  const auto client =
      MakeCoordinatorClient(address, [](const std::function<void()>& work) { work(); });
  HeartbeatOut out{.worker_id = "0197a5c0-0000-7000-8000-000000000001"};
  out.observed.push_back(Ended(1, {.end_class = "user",
                                   .reason = std::string(kReasonBytesMax, 'r'),
                                   .output_tail = std::string(kOutputTailBytesMax, 'o')}));
  std::promise<Status> told;
  client->Heartbeat(out, 20'000,
                    [&](const Result<HeartbeatIn>& reply) { told.set_value(reply.status()); });
  ASSERT_TRUE(told.get_future().get().ok());
  EXPECT_EQ(server.heartbeat.observed(0).reason().size(), kReasonBytesMax);
  EXPECT_EQ(server.heartbeat.observed(0).output_tail().size(), kOutputTailBytesMax);
}

}  // namespace
}  // namespace switchyard::agent
