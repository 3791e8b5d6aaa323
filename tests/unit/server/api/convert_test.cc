#include "server/api/convert.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "common/base/strings.h"
#include "server/api/call.h"
#include "switchyard/v1/worker_service.pb.h"

namespace switchyard::api {
namespace {

namespace pb = ::switchyard::v1;

pb::RegisterRequest GoodRegister() {
  pb::RegisterRequest request;
  request.set_proto_min(1);
  request.set_proto_max(1);
  request.set_worker_id("0197a5c0-0000-7000-8000-000000000001");
  request.set_incarnation(3);
  request.set_pool("default");
  request.add_slots()->set_kind(pb::SLOT_KIND_GPU);
  return request;
}

// A registration comes through with its slots.
TEST(FromProto, ReadsARegistration) {
  const auto event = FromProto(GoodRegister());
  ASSERT_TRUE(event.ok()) << event.status().ToString();
  EXPECT_EQ(event->worker.incarnation, 3u);
  EXPECT_EQ(event->worker.slots[0].kind, scheduler::SlotKind::kGpu);
  EXPECT_FALSE(event->nonce.empty());
}

// Every field that cannot be is named in the refusal.
TEST(FromProto, RefusesBadRegistrations) {
  auto request = GoodRegister();
  request.set_worker_id("../../etc");
  EXPECT_NE(FromProto(request).status().message().find("worker_id"), std::string::npos);
  request = GoodRegister();
  request.clear_slots();
  EXPECT_FALSE(FromProto(request).ok());
  request = GoodRegister();
  *request.add_slots() = request.slots(0);
  EXPECT_NE(FromProto(request).status().message().find("twice"), std::string::npos);
  request = GoodRegister();
  request.set_host("\xff\xfe");
  EXPECT_FALSE(FromProto(request).ok());
  request = GoodRegister();
  request.set_proto_min(2);
  request.set_proto_max(9);
  EXPECT_EQ(FromProto(request).status().code(), Code::kFailedPrecondition);
}

// Kind 11: text of a trainer that is too long is cut. With a refused heartbeat its worker would
// lose its contact, and all of its runs with it.
TEST(FromProto, CutsTheTextsOfAReport) {
  pb::HeartbeatRequest request;
  request.set_worker_id("0197a5c0-0000-7000-8000-000000000001");
  pb::MemberReport* report = request.add_observed();
  report->set_run_id("0197a5c0-0000-7000-8000-000000000002");
  report->set_state(pb::MEMBER_STATE_EXITED);
  report->set_end_class("user");
  std::string reason = "x";
  while (reason.size() < 60'000) reason += "\u00e4";
  report->set_reason(reason);
  report->set_evidence(reason);
  report->set_output_tail(std::string(100'000, '\xff') + "end");
  const auto event = FromProto(request);
  ASSERT_TRUE(event.ok()) << event.status().ToString();
  const scheduler::MemberReport& member = event->observed.at(0);
  EXPECT_EQ(member.reason.size(), 4095u);
  EXPECT_TRUE(IsValidUtf8(member.reason));
  EXPECT_LE(member.evidence.size(), 4096u);
  EXPECT_EQ(member.output_tail.size(), size_t{16} << 10);
  EXPECT_TRUE(member.output_tail.ends_with("end"));
}

// Unknown enumerators, the first sequence number 0 and overflows are refused.
TEST(FromProto, RefusesBadAppends) {
  pb::AppendRequest request;
  request.set_run_id("0197a5c0-0000-7000-8000-000000000001");
  request.set_worker_id("0197a5c0-0000-7000-8000-000000000001");
  request.set_codec(pb::BATCH_CODEC_PLAIN);
  request.set_n(1);
  EXPECT_FALSE(FromProto(request).ok()) << "first_seq 0";
  request.set_first_seq(~uint64_t{0});
  EXPECT_FALSE(FromProto(request).ok());
  request.set_first_seq(1);
  EXPECT_TRUE(FromProto(request).ok());
  request.set_codec(static_cast<pb::BatchCodec>(999));
  EXPECT_FALSE(FromProto(request).ok());
}

// A message travels in a trailer: it is cut to 1 KiB, not inside a character.
TEST(ToGrpc, CutsLongMessages) {
  std::string text;
  while (text.size() < 5000) text += "ä";
  const grpc::Status status = ToGrpc(InvalidArgument(text));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_LE(status.error_message().size(), 1024u);
  EXPECT_TRUE(status.error_message().ends_with(" ..."));
}

}  // namespace
}  // namespace switchyard::api
