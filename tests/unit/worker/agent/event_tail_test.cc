#include "worker/agent/event_tail.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/events/line.h"

namespace switchyard::agent {
namespace {

using ::testing::HasSubstr;

class EventTailTest : public ::testing::Test {
 protected:
  EventTailTest() {
    char name[] = "/tmp/switchyard-tail-XXXXXX";
    directory_ = mkdtemp(name);
    path_ = directory_ + "/events.jsonl";
  }
  ~EventTailTest() override { std::filesystem::remove_all(directory_); }

  static std::string Line(uint64_t seq) {
    std::string line;
    const events::Scalar scalar{"train/loss", static_cast<double>(seq)};
    events::AppendScalarLine(seq, seq, seq, std::span(&scalar, 1), &line);
    return line;
  }
  void Append(const std::string& text) const {
    std::ofstream(path_, std::ios::app | std::ios::binary) << text;
  }
  static events::DecodedBatch Decode(const events::BatchBuilder::Blob& blob) {
    auto batch = events::DecodeBatch(blob.bytes, blob.is_zstd, blob.crc32c, blob.first_seq, blob.n);
    EXPECT_TRUE(batch.ok()) << batch.status().ToString();
    return batch.ok() ? *batch : events::DecodedBatch{};
  }

  std::string directory_;
  std::string path_;
};

// Lines come in batches of the asked size, again until they are acknowledged.
TEST_F(EventTailTest, BatchesAndRepeatsUntilAcknowledged) {
  EventTail tail(path_);
  EXPECT_FALSE(tail.Next());
  for (uint64_t seq = 1; seq <= 10; ++seq) Append(Line(seq));
  for (int i = 0; i < 2; ++i) {
    const auto blob = tail.Next(4);
    ASSERT_TRUE(blob);
    EXPECT_EQ(blob->first_seq, 1u);
    EXPECT_EQ(blob->n, 4u);
  }
  tail.Acknowledge(4);
  const auto blob = tail.Next(100);
  ASSERT_TRUE(blob);
  EXPECT_EQ(blob->first_seq, 5u);
  EXPECT_EQ(blob->n, 6u);
  tail.Acknowledge(10);
  EXPECT_FALSE(tail.Next());
  EXPECT_EQ(tail.unsent_bytes(), 0u);
  EXPECT_FALSE(tail.is_done());
  tail.Finish();
  EXPECT_TRUE(tail.is_done());
  EXPECT_EQ(tail.last_seq(), 10u);
}

// Half a line is waited for while the trainer lives, and cut off after its end.
TEST_F(EventTailTest, WaitsForATornLineAndCutsItOff) {
  EventTail tail(path_);
  const std::string second = Line(2);
  Append(Line(1) + second.substr(0, 20));
  EXPECT_EQ(tail.Next()->n, 1u);
  Append(second.substr(20));
  EXPECT_EQ(tail.Next()->n, 2u);
  Append(Line(3).substr(0, 20));
  tail.Finish();
  EXPECT_EQ(tail.last_seq(), 2u);
  EXPECT_EQ(std::filesystem::file_size(path_), Line(1).size() + second.size());
}

// A corrupt line becomes a gap of the lines it hid; the rest is not lost.
TEST_F(EventTailTest, ReplacesCorruptLinesByAGap) {
  std::string bad = Line(2);
  bad[10] ^= 1;
  Append(Line(1) + bad + "not json at all\n" + Line(4) + Line(4) + Line(5));
  EventTail tail(path_);
  const auto blob = tail.Next();
  ASSERT_TRUE(blob);
  EXPECT_EQ(blob->n, 5u);
  const events::DecodedBatch batch = Decode(*blob);
  ASSERT_EQ(batch.lines.size(), 1u);
  EXPECT_EQ(batch.lines[0].seq, 2u);
  EXPECT_EQ(batch.lines[0].covers, 2u);
  EXPECT_THAT(batch.lines[0].json, HasSubstr("corrupt"));
  tail.Acknowledge(5);
  tail.Finish();
  EXPECT_TRUE(tail.is_done());
}

// Garbage behind the last good line counts as one lost line, so that the end can be reached.
TEST_F(EventTailTest, EndsBehindTrailingGarbage) {
  Append(Line(1) + "garbage\n");
  EventTail tail(path_);
  tail.Finish();
  EXPECT_EQ(tail.last_seq(), 2u);
  EXPECT_EQ(tail.Next()->n, 1u);
  tail.Acknowledge(1);
  const auto blob = tail.Next();
  ASSERT_TRUE(blob);
  EXPECT_EQ(Decode(*blob).lines.at(0).type, "gap");
  tail.Acknowledge(2);
  EXPECT_TRUE(tail.is_done());
}

// A coordinator that lost its last hour gets it again; one that has more is believed.
TEST_F(EventTailTest, GoesWhereTheCoordinatorSays) {
  for (uint64_t seq = 1; seq <= 20; ++seq) Append(Line(seq));
  EventTail tail(path_);
  tail.Next();
  tail.Acknowledge(20);
  tail.Acknowledge(7);
  EXPECT_EQ(tail.Next(3)->first_seq, 8u);

  EventTail restarted(path_);
  restarted.Next(5);
  restarted.Acknowledge(12);
  EXPECT_EQ(restarted.Next()->first_seq, 13u);
}

// An endless line neither fills the memory nor hides what follows.
TEST_F(EventTailTest, SkipsAnEndlessLine) {
  Append(Line(1) + std::string(3 << 20, 'x') + "\n" + Line(3));
  EventTail tail(path_);
  const auto blob = tail.Next(100, 100 << 20);
  ASSERT_TRUE(blob);
  EXPECT_EQ(blob->n, 3u);
}

// A line that the coordinator would not take is skipped as a gap.
TEST_F(EventTailTest, SkipsARefusedLine) {
  Append(Line(1) + Line(2));
  EventTail tail(path_);
  const events::DecodedBatch batch = Decode(tail.SkipLine());
  ASSERT_EQ(batch.lines.size(), 1u);
  EXPECT_THAT(batch.lines[0].json, HasSubstr("refused"));
  tail.Acknowledge(1);
  EXPECT_EQ(tail.Next()->first_seq, 2u);
}

// Links and pipes in place of the file are not followed; the attempt ends with an empty record.
TEST_F(EventTailTest, IgnoresWhatIsNoFile) {
  ASSERT_EQ(symlink("/etc/passwd", path_.c_str()), 0);
  EventTail tail(path_);
  EXPECT_FALSE(tail.Next());
  tail.Finish();
  EXPECT_TRUE(tail.is_done());
  EXPECT_EQ(tail.last_seq(), 0u);
}

// A file cut behind our back leaves a counted gap, never an attempt that cannot end.
TEST_F(EventTailTest, EndsWhenTheFileIsCut) {
  Append(Line(1) + Line(2) + Line(3));
  EventTail tail(path_);
  tail.Finish();
  std::filesystem::resize_file(path_, Line(1).size());
  tail.Next();
  tail.Acknowledge(1);
  const auto blob = tail.Next();
  ASSERT_TRUE(blob);
  EXPECT_EQ(blob->n, 2u);
  tail.Acknowledge(3);
  EXPECT_TRUE(tail.is_done());
}

}  // namespace
}  // namespace switchyard::agent
