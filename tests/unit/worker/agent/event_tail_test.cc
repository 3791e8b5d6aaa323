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

// Each line is looked at once, however often it is read: the first step that goes back is told, and
// a repeated reading is none.
TEST_F(EventTailTest, TellsTheFirstStepThatGoesBack) {
  const auto line = [](uint64_t seq, uint64_t step) {
    std::string text;
    const events::Scalar scalar{"train/loss", 1};
    events::AppendScalarLine(seq, step, seq, std::span(&scalar, 1), &text);
    return text;
  };
  EventTail tail(path_);
  Append(line(1, 5) + line(2, 5) + line(3, 8));
  ASSERT_TRUE(tail.Next());
  tail.Rewind();
  ASSERT_TRUE(tail.Next());
  EXPECT_EQ(tail.step_fault(), "");
  // Lines that nobody has asked for yet are read at the end.
  Append(line(4, 7) + line(5, 2) + line(6, 9));
  tail.Finish();
  EXPECT_THAT(tail.step_fault(), HasSubstr("step 7 is recorded behind step 8"));
}

// Lines come in batches of the asked size, again until they are acknowledged.
TEST_F(EventTailTest, BatchesAndRepeatsUntilAcknowledged) {
  EventTail tail(path_);
  EXPECT_FALSE(tail.Next());
  for (uint64_t seq = 1; seq <= 10; ++seq) Append(Line(seq));
  for (int i = 0; i < 2; ++i) {
    tail.Rewind();
    const auto blob = tail.Next({.lines = 4});
    ASSERT_TRUE(blob);
    EXPECT_EQ(blob->first_seq, 1u);
    EXPECT_EQ(blob->n, 4u);
  }
  tail.Acknowledge(4);
  const auto blob = tail.Next({.lines = 100});
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
  EXPECT_FALSE(tail.Next());
  Append(second.substr(20));
  EXPECT_EQ(tail.Next()->first_seq, 2u);
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
  EXPECT_EQ(tail.Next({.lines = 3})->first_seq, 8u);

  EventTail restarted(path_);
  restarted.Next({.lines = 5});
  restarted.Acknowledge(12);
  EXPECT_EQ(restarted.Next()->first_seq, 13u);
}

// An endless line neither fills the memory nor hides what follows.
TEST_F(EventTailTest, SkipsAnEndlessLine) {
  Append(Line(1) + std::string(3 << 20, 'x') + "\n" + Line(3));
  EventTail tail(path_);
  const auto blob = tail.Next({.lines = 100, .bytes = 100 << 20});
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

// Several batches may be under way: each goes on behind the one before, and a rewind starts at what
// is acknowledged.
TEST_F(EventTailTest, GivesBatchesAheadOfTheAcknowledgement) {
  for (uint64_t seq = 1; seq <= 9; ++seq) Append(Line(seq));
  EventTail tail(path_);
  EXPECT_EQ(tail.Next({.lines = 3})->first_seq, 1u);
  EXPECT_EQ(tail.Next({.lines = 3})->first_seq, 4u);
  EXPECT_EQ(tail.Next({.lines = 3})->first_seq, 7u);
  EXPECT_FALSE(tail.Next());
  EXPECT_TRUE(tail.has_unacknowledged());
  tail.Acknowledge(3);
  EXPECT_EQ(tail.acknowledged(), 3u);
  tail.Rewind();
  EXPECT_EQ(tail.Next()->first_seq, 4u);
  tail.Acknowledge(9);
  EXPECT_FALSE(tail.has_unacknowledged());
}

// While credits are short log lines stay in the file: a run of them is one gap record.
TEST_F(EventTailTest, ShedsLogLines) {
  const auto log = [](uint64_t seq) {
    std::string line;
    events::AppendOtherLine(seq, "log", "\"text\":\"x\"", &line);
    return line;
  };
  Append(log(1) + Line(2) + log(3) + log(4) + Line(5) + log(6));
  EventTail tail(path_);
  const auto blob = tail.Next({.shed_logs = true});
  ASSERT_TRUE(blob);
  EXPECT_EQ(blob->n, 6u);
  const events::DecodedBatch batch = Decode(*blob);
  ASSERT_EQ(batch.lines.size(), 3u);
  EXPECT_EQ(batch.lines[1].seq, 3u);
  EXPECT_EQ(batch.lines[1].covers, 2u);
  EXPECT_THAT(batch.lines[1].json, HasSubstr("shed"));
  EXPECT_EQ(batch.columns.at(0).seqs.size(), 2u);
}

class SegmentsTest : public EventTailTest {
 protected:
  // As the trainer does when a segment is full.
  void Seal(uint64_t first_seq) const { std::filesystem::rename(path_, SealedPath(first_seq)); }
  std::string SealedPath(uint64_t first_seq) const {
    return directory_ + "/events." + std::to_string(first_seq) + ".jsonl";
  }
};

// Sealing under the reader's eyes loses and doubles no line, whenever it looks.
TEST_F(SegmentsTest, FollowsTheTrainerFromSegmentToSegment) {
  EventTail tail(path_);
  uint64_t seq = 0;
  uint64_t seen = 0;
  const auto read = [&] {
    while (const auto blob = tail.Next({.lines = 2})) {
      EXPECT_EQ(blob->first_seq, seen + 1);
      seen += blob->n;
    }
    EXPECT_EQ(seen, seq);
  };
  for (int segment = 0; segment < 4; ++segment) {
    const uint64_t first = seq + 1;
    Append(Line(++seq));
    read();
    Append(Line(seq + 1) + Line(seq + 2));
    seq += 2;
    Seal(first);
    if (segment % 2 == 0) read();
  }
  Append(Line(++seq));
  read();
  tail.Acknowledge(seq);
  tail.Finish();
  EXPECT_TRUE(tail.is_done());
  EXPECT_EQ(tail.last_seq(), 13u);
  ASSERT_EQ(tail.sealed().size(), 4u);
  EXPECT_EQ(tail.sealed()[1].first_seq, 4u);
  EXPECT_EQ(tail.sealed()[1].last_seq, 6u);
}

// A new agent goes on where the coordinator is, over segments; a restored coordinator gets all that
// is still there.
TEST_F(SegmentsTest, GoesWhereTheCoordinatorSaysOverSegments) {
  Append(Line(1) + Line(2));
  Seal(1);
  Append(Line(3) + Line(4));
  Seal(3);
  Append(Line(5));
  EventTail tail(path_);
  tail.Next();
  tail.Acknowledge(4);
  tail.Rewind();
  EXPECT_EQ(tail.Next()->first_seq, 5u);
  EXPECT_EQ(tail.unsent_bytes(), Line(5).size());
  tail.Acknowledge(5);
  tail.Acknowledge(1);
  const auto blob = tail.Next();
  EXPECT_EQ(blob->first_seq, 2u);
  EXPECT_EQ(blob->n, 4u);
}

// Only what is acknowledged can be deleted; a coordinator that asks for it is told of a gap.
TEST_F(SegmentsTest, DeletesAcknowledgedSegments) {
  Append(Line(1) + Line(2));
  Seal(1);
  Append(Line(3));
  EventTail tail(path_);
  EXPECT_EQ(tail.Next()->n, 3u);
  tail.Delete(1);
  EXPECT_TRUE(std::filesystem::exists(SealedPath(1)));
  tail.Acknowledge(3);
  tail.Delete(1);
  EXPECT_FALSE(std::filesystem::exists(SealedPath(1)));
  tail.Acknowledge(0);
  const auto blob = tail.Next();
  ASSERT_TRUE(blob);
  EXPECT_EQ(blob->first_seq, 1u);
  EXPECT_EQ(blob->n, 3u);
  EXPECT_EQ(Decode(*blob).lines.at(0).covers, 2u);

  // After a restart of the agent it begins with what is there.
  Append(Line(4));
  Seal(3);
  Append(Line(5));
  EventTail restarted(path_);
  EXPECT_EQ(restarted.Next()->first_seq, 3u);
}

// How far a trainer has come is seen without a coordinator, and so is what it is busy with.
TEST_F(EventTailTest, ReadsProgress) {
  EventTail tail(path_);
  EXPECT_FALSE(tail.ReadProgress().has_step);
  const auto phase = [](uint64_t seq, const std::string& name) {
    std::string line;
    events::AppendOtherLine(seq, "phase", "\"ms\":1,\"name\":\"" + name + "\"", &line);
    return line;
  };
  Append(phase(1, "train") + Line(2));
  EXPECT_EQ(tail.ReadProgress(),
            (Progress{.step = 2, .ms = 2, .has_line = true, .has_step = true}));
  Append(phase(3, "evaluate"));
  EXPECT_TRUE(tail.ReadProgress().in_phase);
  Append(phase(4, "train"));
  EXPECT_FALSE(tail.ReadProgress().in_phase);
  Append(std::string(100 << 10, 'x'));
  EXPECT_EQ(tail.ReadProgress().step, 2u);
}

// A trainer seals its file while nothing is sent: it is not taken for hung, what is unsent counts
// on, and the reader then begins where it was.
TEST_F(SegmentsTest, ReadsProgressBehindASealWithoutAReader) {
  EventTail tail(path_);
  Append(Line(1) + Line(2));
  EXPECT_EQ(tail.ReadProgress().step, 2u);
  const uint64_t before = tail.unsent_bytes();
  Seal(1);
  Append(Line(3));
  Seal(3);
  Append(Line(4));
  EXPECT_EQ(tail.ReadProgress().step, 4u);
  EXPECT_GT(tail.unsent_bytes(), before);
  EXPECT_EQ(tail.Next()->first_seq, 1u);
}

}  // namespace
}  // namespace switchyard::agent
