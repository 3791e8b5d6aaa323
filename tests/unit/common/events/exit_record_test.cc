#include "common/events/exit_record.h"

#include <unistd.h>

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/file.h"

namespace switchyard::events {
namespace {

using ::testing::HasSubstr;

class ExitRecordFile : public ::testing::Test {
 protected:
  ExitRecordFile() {
    char name[] = "/tmp/switchyard-exit-XXXXXX";
    directory_ = mkdtemp(name);
    path_ = directory_ + "/exit.json";
  }
  ~ExitRecordFile() override { std::filesystem::remove_all(directory_); }

  std::string directory_;
  std::string path_;
  ExitRecord record_{.code = 77,
                     .end_class = "guard",
                     .complete = false,
                     .last_seq = 123456789012345,
                     .final_step = 500,
                     .epoch = 281474976710712,
                     .rank = 1,
                     .reason = "non_finite: loss is \"NaN\" at step 500",
                     .objective_json = "{\"series\":\"valid/loss\",\"value\":\"NaN\"}"};
};

// What a trainer says of its end is what the agent reads.
TEST_F(ExitRecordFile, RoundTrips) {
  ASSERT_TRUE(WriteExitRecord(path_, record_).ok());
  const Result<ExitRecord> read = ReadExitRecord(path_, record_.epoch, 1);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(*read, record_);
  EXPECT_FALSE(FileExists(path_ + ".tmp"));
}

// Without a file there is no end on record, which is another thing than a broken file.
TEST_F(ExitRecordFile, TellsMissingFromBroken) {
  EXPECT_EQ(ReadExitRecord(path_, 1, 0).status().code(), Code::kNotFound);
  ASSERT_TRUE(WriteFileAtomically(path_, "{}").ok());
  EXPECT_EQ(ReadExitRecord(path_, 1, 0).status().code(), Code::kDataLoss);
}

// A record counts for its own attempt and rank only.
TEST_F(ExitRecordFile, RefusesAnotherEpochOrRank) {
  ASSERT_TRUE(WriteExitRecord(path_, record_).ok());
  EXPECT_THAT(ReadExitRecord(path_, record_.epoch + 1, 1).status().message(), HasSubstr("epoch"));
  EXPECT_EQ(ReadExitRecord(path_, record_.epoch, 0).status().code(), Code::kDataLoss);
}

// Any changed byte, a link, a folder and an oversized file are refused: tenants write here.
TEST_F(ExitRecordFile, RefusesForgedFiles) {
  ASSERT_TRUE(WriteExitRecord(path_, record_).ok());
  const std::string good = *ReadFile(path_);
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    ASSERT_TRUE(WriteFileAtomically(path_, bad).ok());
    EXPECT_EQ(ReadExitRecord(path_, record_.epoch, 1).status().code(), Code::kDataLoss) << bad;
  }
  ASSERT_TRUE(WriteFileAtomically(path_, good + std::string(kExitRecordBytesMax, ' ')).ok());
  EXPECT_FALSE(ReadExitRecord(path_, record_.epoch, 1).ok());
  ASSERT_TRUE(WriteFileAtomically(directory_ + "/real", good).ok());
  std::filesystem::remove(path_);
  ASSERT_EQ(symlink("real", path_.c_str()), 0);
  EXPECT_EQ(ReadExitRecord(path_, record_.epoch, 1).status().code(), Code::kDataLoss);
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  EXPECT_EQ(ReadExitRecord(path_, record_.epoch, 1).status().code(), Code::kDataLoss);
}

// However much a trainer has to say, its end is recorded: a reason is cut, between characters.
TEST_F(ExitRecordFile, CutsALongReason) {
  record_.reason = "x";
  while (record_.reason.size() < 200'000) record_.reason += "\u00e4";
  ASSERT_TRUE(WriteExitRecord(path_, record_).ok());
  const Result<ExitRecord> read = ReadExitRecord(path_, record_.epoch, 1);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->reason, record_.reason.substr(0, 4095));
  // Control characters take six bytes each in JSON.
  record_.reason = std::string(200'000, '\x01');
  ASSERT_TRUE(WriteExitRecord(path_, record_).ok());
  EXPECT_EQ(ReadExitRecord(path_, record_.epoch, 1)->reason.size(), 4096u);
}

// A record that could not be read back is not written.
TEST_F(ExitRecordFile, RefusesToWriteNonsense) {
  record_.code = 256;
  EXPECT_EQ(WriteExitRecord(path_, record_).code(), Code::kInvalidArgument);
  record_.code = 0;
  record_.objective_json = "[1]";
  EXPECT_EQ(WriteExitRecord(path_, record_).code(), Code::kInvalidArgument);
  record_.objective_json = "{\"metric\":\"" + std::string(kExitRecordBytesMax, 'x') + "\"}";
  EXPECT_EQ(WriteExitRecord(path_, record_).code(), Code::kInvalidArgument);
  EXPECT_FALSE(FileExists(path_));
}

}  // namespace
}  // namespace switchyard::events
