// Runs where there is a GPU; elsewhere it says why not.
#include "worker/dist/gpu.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "worker/dist/gpu_api.h"
#include "worker/dist/process_group.h"

namespace switchyard::dist {
namespace {

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status loaded = LoadGpuSupport(); !loaded.ok()) GTEST_SKIP() << loaded.message();
  }
};

// The kernel gathers, scales, and writes zeros where a row has no source.
TEST_F(GpuTest, GathersAndScalesRows) {
  const at::Device device(at::kCUDA, 0);
  const at::Tensor hidden = at::arange(12, at::kFloat).view({4, 3}).to(device);
  const at::Tensor index = at::tensor(std::vector<int64_t>{2, -1, 0}).to(device);
  const at::Tensor scale = at::tensor(std::vector<float>{2.0F, 5.0F, 0.5F}).to(device);
  const at::Tensor got = LoadedGpuApi()->gather_scale(hidden, index, scale).cpu();
  const at::Tensor want =
      at::tensor(std::vector<float>{12, 14, 16, 0, 0, 0, 0, 0.5F, 1}).view({3, 3});
  EXPECT_TRUE(at::allclose(got, want));
}

// A group of one member over NCCL reduces to itself.
TEST_F(GpuTest, ReducesOverNccl) {
  auto group = MakeProcessGroup(
      {.kind = ProcessGroupKind::kNccl, .store_port = 29571, .rank = 0, .size = 1});
  ASSERT_TRUE(group.ok()) << group.status().ToString();
  at::Tensor ones = at::ones({8}, at::TensorOptions().device(at::kCUDA, 0));
  ASSERT_EQ((*group)->AllReduceSum(ones), OkStatus());
  EXPECT_TRUE(at::allclose(ones.cpu(), at::ones({8})));
}

}  // namespace
}  // namespace switchyard::dist
