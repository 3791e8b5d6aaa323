#include "common/events/lease_page.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include <gtest/gtest.h>

namespace switchyard::events {
namespace {

class LeasePage : public ::testing::Test {
 protected:
  LeasePage() {
    char name[] = "/tmp/switchyard-lease-XXXXXX";
    directory_ = mkdtemp(name);
    path_ = directory_ + "/lease.page";
  }
  ~LeasePage() override { std::filesystem::remove_all(directory_); }

  void Patch(off_t offset, uint64_t word) const {
    const UniqueFd fd(open(path_.c_str(), O_WRONLY));
    ASSERT_EQ(pwrite(fd.get(), &word, 8, offset), 8);
  }

  std::string directory_;
  std::string path_;
};

// The trainer sees a new deadline without a system call; an earlier one never takes effect.
TEST_F(LeasePage, ShowsTheDeadlineWhichNeverFalls) {
  Result<LeaseWriter> writer = LeaseWriter::Create(path_, 77, 1000);
  ASSERT_TRUE(writer.ok()) << writer.status().ToString();
  auto reader = LeaseReader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  EXPECT_EQ((*reader)->Read().epoch, 77u);
  EXPECT_EQ((*reader)->Read().deadline_boottime_ns, 1000u);
  ASSERT_TRUE(writer->SetDeadline(2000).ok());
  ASSERT_TRUE(writer->SetDeadline(1500).ok());
  EXPECT_EQ((*reader)->Read().deadline_boottime_ns, 2000u);
  EXPECT_FALSE((*reader)->Read().IsPast(2000));
  EXPECT_TRUE((*reader)->Read().IsPast(2001));
  EXPECT_EQ(std::filesystem::file_size(path_), 4096u);
}

// Intents only rise and a stop deadline only shortens, whatever order they arrive in.
TEST_F(LeasePage, RaisesTheIntentAndShortensTheStop) {
  Result<LeaseWriter> writer = LeaseWriter::Create(path_, 1, kNever);
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->SetStop(LeaseIntent::kCancel, 5000).ok());
  ASSERT_TRUE(writer->SetStop(LeaseIntent::kDrain, 9000).ok());
  const Result<Lease> lease = ReadLeaseFile(path_);
  ASSERT_TRUE(lease.ok());
  EXPECT_EQ(lease->intent, LeaseIntent::kCancel);
  EXPECT_EQ(lease->stop_deadline_boottime_ns, 5000u);
  EXPECT_TRUE(lease->IsPast(5001));
}

// A page is made once: a second attempt of the same name would be a second launch.
TEST_F(LeasePage, IsCreatedOnce) {
  ASSERT_TRUE(LeaseWriter::Create(path_, 1, 1).ok());
  EXPECT_EQ(LeaseWriter::Create(path_, 1, 1).status().code(), Code::kAlreadyExists);
}

// A restarted agent keeps the deadline that it finds (it has none of its own yet).
TEST_F(LeasePage, IsAdoptedWithItsDeadline) {
  { ASSERT_TRUE(LeaseWriter::Create(path_, 3, 4000).ok()); }
  Result<LeaseWriter> writer = LeaseWriter::Open(path_);
  ASSERT_TRUE(writer.ok()) << writer.status().ToString();
  EXPECT_EQ(writer->lease().deadline_boottime_ns, 4000u);
  ASSERT_TRUE(writer->SetDeadline(3000).ok());
  EXPECT_EQ(ReadLeaseFile(path_)->deadline_boottime_ns, 4000u);
}

// A writer that died inside a change leaves an odd counter: the reader keeps what it last knew.
TEST_F(LeasePage, KeepsTheLastConsistentValue) {
  Result<LeaseWriter> writer = LeaseWriter::Create(path_, 1, 1000);
  ASSERT_TRUE(writer.ok());
  auto reader = LeaseReader::Open(path_);
  ASSERT_TRUE(reader.ok());
  Patch(8, 3);
  Patch(16, 999'999);
  EXPECT_EQ((*reader)->Read().deadline_boottime_ns, 1000u);
  Patch(8, 4);  // even, but the checksum is of another value
  EXPECT_EQ((*reader)->Read().deadline_boottime_ns, 1000u);
  ASSERT_TRUE(writer->SetDeadline(2000).ok());
  EXPECT_EQ((*reader)->Read().deadline_boottime_ns, 2000u);
}

// Foreign files are refused: a link, a short file, another format.
TEST_F(LeasePage, RefusesWhatIsNoPage) {
  EXPECT_EQ(ReadLeaseFile(path_).status().code(), Code::kNotFound);
  ASSERT_TRUE(LeaseWriter::Create(path_, 1, 1).ok());
  const std::string link = directory_ + "/link";
  ASSERT_EQ(symlink(path_.c_str(), link.c_str()), 0);
  EXPECT_FALSE(LeaseWriter::Open(link).ok());
  Patch(0, 42);
  EXPECT_EQ(LeaseReader::Open(path_).status().code(), Code::kDataLoss);
  ASSERT_EQ(truncate(path_.c_str(), 100), 0);
  EXPECT_EQ(LeaseWriter::Open(path_).status().code(), Code::kDataLoss);
}

// Under a busy writer every value read is one that was written whole.
TEST_F(LeasePage, NeverShowsAMixture) {
  Result<LeaseWriter> writer = LeaseWriter::Create(path_, 9, 1);
  ASSERT_TRUE(writer.ok());
  auto reader = LeaseReader::Open(path_);
  ASSERT_TRUE(reader.ok());
  std::atomic<bool> done = false;
  std::thread thread([&] {
    for (uint64_t i = 2; i < 20'000; ++i) {
      if (!writer->SetDeadline(i).ok()) break;
    }
    done = true;
  });
  uint64_t last = 0;
  while (!done) {
    const Lease lease = (*reader)->Read();
    EXPECT_EQ(lease.epoch, 9u);
    EXPECT_GE(lease.deadline_boottime_ns, last);
    last = lease.deadline_boottime_ns;
  }
  thread.join();
  EXPECT_EQ((*reader)->Read().deadline_boottime_ns, 19'999u);
}

// Advice on what to record: read without the checksum, bounded, and kept through lease changes.
TEST_F(LeasePage, CarriesThePressure) {
  Result<LeaseWriter> writer = LeaseWriter::Create(path_, 77, 1000);
  ASSERT_TRUE(writer.ok());
  auto reader = LeaseReader::Open(path_);
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ((*reader)->ReadPressure(), 0u);
  ASSERT_TRUE(writer->SetPressure(3).ok());
  ASSERT_TRUE(writer->SetDeadline(2000).ok());
  EXPECT_EQ((*reader)->ReadPressure(), 3u);
  EXPECT_EQ((*reader)->Read().deadline_boottime_ns, 2000u);
  Patch(56, uint64_t{1} << 40);
  EXPECT_EQ((*reader)->ReadPressure(), kPressureMax);
}

}  // namespace
}  // namespace switchyard::events
