#include "worker/agent/housekeeping.h"

#include <cstdlib>
#include <filesystem>

#include <gtest/gtest.h>

#include "common/base/file.h"

namespace switchyard::agent {
namespace {

constexpr const char* kStore = "01970000-0000-7000-8000-00000000000a";
constexpr const char* kRun = "01970000-0000-7000-8000-000000000001";

TEST(Housekeeping, ReservesAShareOfTheDisk) {
  EXPECT_EQ(DiskReserveBytes(uint64_t{20} << 30), uint64_t{1} << 30);
  EXPECT_EQ(DiskReserveBytes(uint64_t{1} << 40), uint64_t{2} << 30);
}

// What a coordinator names is a checkpoint of this store, never another path.
TEST(Housekeeping, BuildsCheckpointPathsFromIdsOnly) {
  const Result<std::string> path =
      CheckpointPath("/c", kStore, {.run_id = kRun, .epoch = 7, .step = 9, .store = kStore});
  ASSERT_TRUE(path.ok());
  EXPECT_EQ(*path, std::string("/c/") + kRun + "/7-9");
  EXPECT_EQ(CheckpointPath("/c", kStore, {.run_id = "../x", .store = kStore}).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(CheckpointPath("/c", kStore, {.run_id = kRun, .store = kRun}).status().code(),
            Code::kFailedPrecondition);
}

// Workers that see the same folder register the same store.
TEST(Housekeeping, KeepsTheStoreOfAFolder) {
  char name[] = "/tmp/switchyard-store-XXXXXX";
  const std::string folder = std::string(mkdtemp(name)) + "/checkpoints";
  const Result<std::string> first = OpenCheckpointStore(folder);
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  EXPECT_EQ(*OpenCheckpointStore(folder), *first);
  ASSERT_TRUE(WriteFileAtomically(folder + "/store.id", "not an id\n").ok());
  EXPECT_EQ(OpenCheckpointStore(folder).status().code(), Code::kDataLoss);
  std::filesystem::remove_all(name);
}

// Records and locks need a local file system; the kernel's own are local.
TEST(Housekeeping, TakesLocalFileSystems) {
  EXPECT_TRUE(RefuseNetworkFileSystem("/proc").ok());
  EXPECT_EQ(RefuseNetworkFileSystem("/nonexistent").code(), Code::kNotFound);
}

}  // namespace
}  // namespace switchyard::agent
