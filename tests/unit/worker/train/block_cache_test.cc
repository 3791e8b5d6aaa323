#include "worker/train/block_cache.h"

#include <unistd.h>

#include <fstream>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace switchyard::train {
namespace {

constexpr int64_t kMebi = int64_t{1} << 20;

at::Tensor Bytes(int64_t bytes) { return at::full({bytes}, 1, at::kByte); }

int64_t ResidentBytes() {
  int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// A freed tensor's memory is the next one's of about its size, whatever small thing was left behind
// it; what is not used goes back to the system once it is more than what is.
TEST(BlockCache, GivesFreedBlocksToTensorsOfTheirSize) {
  KeepLargeBlocks();
  KeepLargeBlocks();
  at::Tensor first = Bytes(kMebi);
  const void* const place = first.const_data_ptr();
  first = at::Tensor();
  const at::Tensor left_behind = Bytes(100);
  const at::Tensor second = Bytes(kMebi - 5000);
  EXPECT_EQ(second.const_data_ptr(), place);
  EXPECT_EQ(second.sum().item<int64_t>(), kMebi - 5000);
  EXPECT_NE(Bytes(kMebi).const_data_ptr(), place);

  const int64_t before = ResidentBytes();
  {
    std::vector<at::Tensor> many;
    for (int i = 0; i < 20; ++i) many.push_back(Bytes(8 * kMebi));
    EXPECT_GT(ResidentBytes() - before, 150 * kMebi);
  }
  EXPECT_GT(ResidentBytes() - before, 150 * kMebi);
  const at::Tensor other = Bytes(3 * kMebi);
  EXPECT_LT(ResidentBytes() - before, 20 * kMebi);
}

}  // namespace
}  // namespace switchyard::train
