#include "worker/agent/record_log.h"

#include <unistd.h>

#include <filesystem>

#include <gtest/gtest.h>

namespace switchyard::agent {
namespace {

class RecordLogTest : public ::testing::Test {
 protected:
  RecordLogTest() {
    char name[] = "/tmp/switchyard-records-XXXXXX";
    directory_ = mkdtemp(name);
    path_ = directory_ + "/records.log";
  }
  ~RecordLogTest() override { std::filesystem::remove_all(directory_); }

  static Record Launching(uint64_t epoch) {
    return {.key = {.epoch = epoch}, .run_id = "run", .ordinal = 2, .slots = {0, 3}};
  }

  std::string directory_;
  std::string path_;
};

// The newest line of an attempt is what a restarted agent knows of it.
TEST_F(RecordLogTest, FindsTheNewestLine) {
  {
    auto log = RecordLog::Open(path_, "boot-1");
    ASSERT_TRUE(log.ok());
    Record ended = Launching(1);
    ended.state = RecordState::kExited;
    ended.end = {.exit_code = 77, .end_class = "guard", .reason = "\"quoted\"\n", .last_seq = 9};
    const Record records[] = {Launching(1), Launching(2), ended};
    ASSERT_TRUE((*log)->Append(records).ok());
  }
  const auto log = RecordLog::Open(path_, "boot-2");
  ASSERT_TRUE(log.ok());
  ASSERT_EQ((*log)->found().size(), 2u);
  const StoredRecord& first = (*log)->found().at({.epoch = 1});
  EXPECT_EQ(first.boot_id, "boot-1");
  EXPECT_EQ(first.record.state, RecordState::kExited);
  EXPECT_EQ(first.record.end.reason, "\"quoted\"\n");
  EXPECT_EQ(first.record.end.last_seq, 9u);
  EXPECT_EQ(first.record.slots, (std::vector<uint32_t>{0, 3}));
  EXPECT_EQ((*log)->found().at({.epoch = 2}).record.state, RecordState::kLaunching);
}

// A torn last line is skipped, and what is written next is not lost with it.
TEST_F(RecordLogTest, SurvivesATornTail) {
  const std::string good = EncodeRecord(Launching(1), "boot");
  const std::string torn = EncodeRecord(Launching(2), "boot").substr(0, 30);
  ASSERT_TRUE(WriteFileAtomically(path_, good + torn).ok());
  {
    auto log = RecordLog::Open(path_, "boot");
    ASSERT_TRUE(log.ok());
    EXPECT_EQ((*log)->found().size(), 1u);
    const Record record = Launching(3);
    ASSERT_TRUE((*log)->Append(std::span(&record, 1)).ok());
  }
  const auto log = RecordLog::Open(path_, "boot");
  EXPECT_TRUE((*log)->found().contains({.epoch = 1}));
  EXPECT_FALSE((*log)->found().contains({.epoch = 2}));
  EXPECT_TRUE((*log)->found().contains({.epoch = 3}));
}

// A changed byte makes a line worthless, whichever it is.
TEST_F(RecordLogTest, NoticesChangedBytes) {
  const std::string good = EncodeRecord(Launching(1), "boot");
  EXPECT_TRUE(DecodeRecord(good).ok());
  for (size_t i = 0; i + 1 < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    EXPECT_FALSE(DecodeRecord(bad).ok()) << bad;
  }
}

// Compaction keeps the named records with the boot of their launch, and forgets the rest.
TEST_F(RecordLogTest, CompactsToTheNamedRecords) {
  {
    auto log = RecordLog::Open(path_, "boot-1");
    const Record records[] = {Launching(1), Launching(2)};
    ASSERT_TRUE((*log)->Append(records).ok());
  }
  {
    auto log = RecordLog::Open(path_, "boot-2");
    const Record kept = Launching(2);
    ASSERT_TRUE((*log)->Compact(std::span(&kept, 1)).ok());
    const Record added = Launching(3);
    ASSERT_TRUE((*log)->Append(std::span(&added, 1)).ok());
  }
  const auto log = RecordLog::Open(path_, "boot-3");
  ASSERT_EQ((*log)->found().size(), 2u);
  EXPECT_EQ((*log)->found().at({.epoch = 2}).boot_id, "boot-1");
  EXPECT_EQ((*log)->found().at({.epoch = 3}).boot_id, "boot-2");
}

}  // namespace
}  // namespace switchyard::agent
