#include "worker/agent/upload.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "common/events/line.h"
#include "tests/unit/worker/agent/fake_client.h"

namespace switchyard::agent {
namespace {

class UploadTest : public ::testing::Test {
 protected:
  UploadTest() {
    char name[] = "/tmp/switchyard-upload-XXXXXX";
    directory_ = mkdtemp(name);
    context_ = {.client = &client_, .registered = true, .jitter = [](uint64_t) { return 0; }};
    upload_ = std::make_shared<Upload>(StreamId{.run_id = "r", .key = {.epoch = 1}}, directory_,
                                       &context_);
  }
  ~UploadTest() override { std::filesystem::remove_all(directory_); }

  // About half a batch each.
  void Write(uint64_t from, uint64_t to) {
    std::string text;
    for (uint64_t seq = from; seq <= to; ++seq) {
      events::AppendOtherLine(seq, "result", "\"text\":\"" + std::string(100'000, 'x') + "\"",
                              &text);
    }
    std::ofstream(directory_ + "/events.jsonl", std::ios::app | std::ios::binary) << text;
  }
  void Answer(size_t index, const AppendReply& reply) {
    FakeClient::Take(client_.appends, index).done(reply);
  }
  void Fail(size_t index, Code code) {
    FakeClient::Take(client_.appends, index).done(Status(code, "no"));
  }
  static AppendReply Committed(uint64_t seq, uint64_t credits = 64 << 20) {
    return {.committed = seq, .credit_bytes = credits};
  }
  std::vector<uint64_t> InFlight() const {
    std::vector<uint64_t> out;
    for (const auto& call : client_.appends) out.push_back(call.blob.first_seq);
    return out;
  }

  std::string directory_;
  FakeClient client_;
  UploadContext context_;
  std::shared_ptr<Upload> upload_;
};

using Seqs = std::vector<uint64_t>;

// Four batches may be under way, and a fifth follows the first answer.
TEST_F(UploadTest, KeepsFourBatchesInFlight) {
  Write(1, 14);
  upload_->Flush();
  EXPECT_EQ(InFlight(), (Seqs{1, 3, 5, 7}));
  Answer(0, Committed(2));
  EXPECT_EQ(InFlight(), (Seqs{3, 5, 7, 9}));
  EXPECT_EQ(upload_->committed(), 2u);
}

// Answers that overtake each other never move the watermark back.
TEST_F(UploadTest, TakesAnswersInAnyOrder) {
  Write(1, 8);
  upload_->Flush();
  Answer(3, Committed(8));
  EXPECT_EQ(upload_->committed(), 8u);
  Answer(0, Committed(2));
  Answer(0, Committed(4));
  Answer(0, Committed(6));
  EXPECT_EQ(upload_->committed(), 8u);
  EXPECT_TRUE(client_.appends.empty());
  upload_->End();
  EXPECT_TRUE(upload_->is_done());
}

// A batch that overtook the one before it is asked for again, once all answers are there.
TEST_F(UploadTest, RewindsToWhatTheCoordinatorExpects) {
  Write(1, 4);
  upload_->Flush();
  ASSERT_EQ(InFlight(), (Seqs{1, 3}));
  Answer(1, {.committed = 0, .expect = 1, .credit_bytes = 64 << 20});
  EXPECT_EQ(InFlight(), (Seqs{1}));
  Answer(0, Committed(2));
  EXPECT_EQ(InFlight(), (Seqs{3}));
  Answer(0, Committed(4));
  EXPECT_EQ(upload_->committed(), 4u);
}

// What a restored coordinator may have lost is sent again although every line was acknowledged.
TEST_F(UploadTest, SendsAgainWhatIsNotDurable) {
  Write(1, 4);
  upload_->End();
  upload_->Flush();
  Answer(0, {.committed = 2, .durable = 2, .credit_bytes = 64 << 20});
  Answer(0, {.committed = 4, .durable = 2, .credit_bytes = 64 << 20});
  ASSERT_TRUE(upload_->is_done());
  upload_->Resend();
  EXPECT_FALSE(upload_->is_done());
  EXPECT_EQ(InFlight(), (Seqs{3}));
  Answer(0, Committed(4));
  EXPECT_TRUE(upload_->is_done());
}

// So is output, from where that coordinator says.
TEST_F(UploadTest, SendsOutputAgainThatARestoredCoordinatorLacks) {
  std::ofstream(directory_ + "/stdout.log") << "a word";
  upload_->End();
  upload_->Flush();
  FakeClient::Take(client_.logs).done(AppendReply{.committed = 6});
  ASSERT_TRUE(upload_->is_done());
  upload_->Resend();
  EXPECT_FALSE(upload_->is_done());
  upload_->Flush();
  EXPECT_EQ(client_.logs.at(0).offset, 0u);
  FakeClient::Take(client_.logs).done(AppendReply{.committed = 2});
  upload_->Reset();
  upload_->Flush();
  ASSERT_EQ(client_.logs.size(), 1u);
  EXPECT_EQ(client_.logs.at(0).offset, 2u);
  EXPECT_EQ(client_.logs.at(0).data, "word");
  FakeClient::Take(client_.logs).done(AppendReply{.committed = 6});
  EXPECT_TRUE(upload_->is_done());
}

// A coordinator that was restored gets again what it has lost.
TEST_F(UploadTest, SendsARestoredCoordinatorWhatItLost) {
  Write(1, 6);
  upload_->End();
  upload_->Flush();
  while (!client_.appends.empty()) {
    const auto& blob = client_.appends.front().blob;
    Answer(0, Committed(blob.first_seq + blob.n - 1));
  }
  ASSERT_TRUE(upload_->is_done());
  Write(7, 8);
  auto other =
      std::make_shared<Upload>(StreamId{.run_id = "r", .key = {.epoch = 1}}, directory_, &context_);
  other->Flush();
  ASSERT_EQ(InFlight(), (Seqs{1, 3, 5, 7}));
  Answer(0, Committed(8));
  Answer(0, Committed(8));
  Answer(0, Committed(8));
  Answer(0, {.committed = 4, .expect = 5, .credit_bytes = 64 << 20});
  EXPECT_EQ(InFlight(), (Seqs{5, 7}));
}

// A failed batch is sent again with those behind it; nothing is skipped.
TEST_F(UploadTest, SendsAgainAfterAFailure) {
  Write(1, 4);
  upload_->Flush();
  Fail(0, Code::kUnavailable);
  EXPECT_EQ(InFlight(), (Seqs{3}));
  Answer(0, {.committed = 0, .expect = 1, .credit_bytes = 64 << 20});
  upload_->Reset();
  upload_->Flush();
  EXPECT_EQ(InFlight(), (Seqs{1, 3}));
}

// Credits bound what is in flight; without any, one small batch asks for them.
TEST_F(UploadTest, StaysWithinItsCredits) {
  Write(1, 20);
  upload_->Flush();
  while (client_.appends.size() > 1) {
    const auto& blob = client_.appends.front().blob;
    Answer(0, Committed(blob.first_seq + blob.n - 1, 0));
  }
  const auto& last = client_.appends.front().blob;
  const uint64_t end = last.first_seq + last.n - 1;
  Answer(0, Committed(end, 0));
  EXPECT_TRUE(client_.appends.empty()) << "it waits before it asks again";
  upload_->Reset();
  upload_->Flush();
  ASSERT_EQ(client_.appends.size(), 1u);
  EXPECT_EQ(client_.appends.front().blob.n, 1u);
  Answer(0, Committed(end + 1, 64 << 20));
  EXPECT_EQ(client_.appends.size(), 4u);
}

// A batch that the coordinator finds faulty is halved down to the line, which becomes a gap.
TEST_F(UploadTest, ReplacesARefusedLineByAGap) {
  Write(1, 2);
  upload_->Flush();
  ASSERT_EQ(client_.appends.front().blob.n, 2u);
  Fail(0, Code::kInvalidArgument);
  upload_->Reset();
  upload_->Flush();
  ASSERT_EQ(client_.appends.size(), 1u);
  ASSERT_EQ(client_.appends.front().blob.n, 1u);
  Fail(0, Code::kInvalidArgument);
  upload_->Reset();
  upload_->Flush();
  ASSERT_EQ(client_.appends.size(), 1u);
  const auto& blob = client_.appends.front().blob;
  const auto batch = events::DecodeBatch(blob.bytes, blob.is_zstd, blob.crc32c, 1, 1);
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(batch->lines.at(0).type, "gap");
  Answer(0, Committed(1));
  upload_->Flush();
  ASSERT_EQ(client_.appends.size(), 1u);
  EXPECT_EQ(client_.appends.front().blob.first_seq, 2u);
}

// A sealed stream is not asked for twice, and counts as done.
TEST_F(UploadTest, StopsAtASealedStream) {
  Write(1, 4);
  upload_->End();
  upload_->Flush();
  Fail(0, Code::kFailedPrecondition);
  Fail(0, Code::kFailedPrecondition);
  upload_->Reset();
  upload_->Flush();
  EXPECT_TRUE(client_.appends.empty());
  EXPECT_TRUE(upload_->is_done());
}

// GR1. However long the coordinator is away, the last line comes behind the output: a run that has
// succeeded has its output.
TEST_F(UploadTest, HoldsTheLastLineUntilTheOutputIsStored) {
  Write(1, 3);
  std::ofstream(directory_ + "/stdout.log") << "a word";
  upload_->End();
  upload_->Flush();
  EXPECT_EQ(InFlight(), (Seqs{1}));
  Answer(0, Committed(2));
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(client_.logs.size(), 1u);
    FakeClient::Take(client_.logs).done(Status(Code::kDeadlineExceeded, "no"));
    EXPECT_TRUE(client_.appends.empty());
    upload_->Flush();
  }
  FakeClient::Take(client_.logs).done(AppendReply{.committed = 6});
  EXPECT_EQ(InFlight(), (Seqs{3}));
}

// The `end` line comes shortly before the process is gone: nothing behind it is in the file yet.
TEST_F(UploadTest, HoldsTheEndLineOfALivingTrainer) {
  Write(1, 2);
  std::string text;
  events::AppendOtherLine(3, "end", "\"code\":0", &text);
  std::ofstream(directory_ + "/events.jsonl", std::ios::app | std::ios::binary) << text;
  upload_->Flush();
  EXPECT_EQ(InFlight(), (Seqs{1}));
  Answer(0, Committed(2));
  EXPECT_TRUE(client_.appends.empty());
  upload_->End();
  upload_->Flush();
  EXPECT_EQ(InFlight(), (Seqs{3}));
  Answer(0, Committed(3));
  EXPECT_TRUE(upload_->is_done());
}

// Output that the coordinator cannot store keeps no run from its end, and is tried on.
TEST_F(UploadTest, EndsWithoutOutputThatIsRejected) {
  Write(1, 1);
  std::ofstream(directory_ + "/stdout.log") << "a word";
  upload_->End();
  upload_->Flush();
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(client_.appends.empty());
    ASSERT_EQ(client_.logs.size(), 1u);
    FakeClient::Take(client_.logs).done(Status(Code::kInternal, "no"));
    if (i < 2) upload_->Flush();
  }
  EXPECT_EQ(InFlight(), (Seqs{1}));
  Answer(0, Committed(1));
  EXPECT_FALSE(upload_->is_done());
  upload_->Flush();
  EXPECT_EQ(client_.logs.size(), 1u);
}

// Something that outlives its trainer and goes on writing keeps no run from its end.
TEST_F(UploadTest, EndsThoughItsOutputGrowsOn) {
  Write(1, 1);
  std::ofstream(directory_ + "/stdout.log") << "a word";
  upload_->End();
  std::ofstream(directory_ + "/stdout.log", std::ios::app) << " and another";
  upload_->Flush();
  ASSERT_EQ(client_.logs.size(), 1u);
  EXPECT_EQ(client_.logs.at(0).data, "a word");
  FakeClient::Take(client_.logs).done(AppendReply{.committed = 6});
  EXPECT_TRUE(client_.logs.empty());
  EXPECT_EQ(InFlight(), (Seqs{1}));
  Answer(0, Committed(1));
  EXPECT_TRUE(upload_->is_done());
}

// The end of the events waits for the output.
TEST_F(UploadTest, SendsOutputBeforeTheEndOfTheEvents) {
  Write(1, 1);
  std::ofstream(directory_ + "/stderr.log") << "a word";
  upload_->End();
  upload_->Flush();
  EXPECT_TRUE(client_.appends.empty());
  ASSERT_EQ(client_.logs.size(), 1u);
  EXPECT_TRUE(client_.logs.front().is_stderr);
  FakeClient::Take(client_.logs).done(AppendReply{.committed = 6});
  EXPECT_EQ(InFlight(), (Seqs{1}));
  EXPECT_FALSE(upload_->is_done());
  Answer(0, Committed(1));
  EXPECT_TRUE(upload_->is_done());
}

// An answer that comes when the attempt is gone touches nothing.
TEST_F(UploadTest, OutlivesItsCalls) {
  Write(1, 2);
  upload_->Flush();
  upload_.reset();
  Answer(0, Committed(2));
}

}  // namespace
}  // namespace switchyard::agent
