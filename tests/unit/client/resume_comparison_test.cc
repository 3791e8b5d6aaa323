#include "client/resume_comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <filesystem>

#include "common/base/strings.h"
#include "common/events/line.h"
#include "worker/data/safetensors.h"

namespace switchyard::client {
namespace {

using testing::HasSubstr;

std::string Scalars(uint64_t step, std::vector<events::Scalar> values) {
  std::string line;
  events::AppendScalarLine(1, step, 0, values, &line);
  line.pop_back();
  return line;
}

ReportedCurves Curves(const std::vector<std::string>& lines) {
  ReportedCurves curves;
  for (const std::string& line : lines) EXPECT_TRUE(curves.Add(line).ok()) << line;
  return curves;
}

TEST(ReportedCurves, EqualBitsAreEqualWhateverTheClockSays) {
  const auto left = Curves({Scalars(1, {{"train/lr", 0.1}, {"train/step_seconds", 1}}),
                            Scalars(2, {{"train/lr", std::nan("")}})});
  const auto right =
      Curves({Scalars(1, {{"train/lr", 0.1}, {"train/step_seconds", 2}}),
              Scalars(1, {{"model/params_total", 7}}), Scalars(2, {{"train/lr", std::nan("")}})});
  EXPECT_EQ(left.FirstDifference(right), "");
  EXPECT_EQ(left.points(), 2U);
  EXPECT_EQ(left.last_step(), 2U);
  EXPECT_EQ(left.Scalars("train/lr").at(1), 0.1);
}

TEST(ReportedCurves, SaysWhereTheyDiffer) {
  const auto left = Curves({Scalars(1, {{"a", 1}}), Scalars(2, {{"a", 2}})});
  EXPECT_EQ(left.FirstDifference(Curves({Scalars(1, {{"a", 1}}), Scalars(2, {{"a", 2.5}})})),
            "a at step 2 is 2 and 2.5");
  EXPECT_EQ(left.FirstDifference(Curves({Scalars(1, {{"a", 1}})})),
            "a has step 2 in one of them only");
  EXPECT_EQ(Curves({Scalars(1, {{"a", 1}})}).FirstDifference(left),
            "a has step 2 in one of them only");
  EXPECT_EQ(left.FirstDifference(Curves({})), "a is missing in one of them");
  EXPECT_EQ(Curves({}).FirstDifference(left), "a is missing in one of them");
  // Minus zero is another value.
  EXPECT_NE(Curves({Scalars(1, {{"a", 0.0}})}).FirstDifference(Curves({Scalars(1, {{"a", -0.0}})})),
            "");
}

TEST(ReportedCurves, APointThatComesTwiceMustSayTheSame) {
  EXPECT_EQ(Curves({Scalars(1, {{"a", 1}}), Scalars(1, {{"a", 1}})}).contradiction(), "");
  EXPECT_EQ(Curves({Scalars(1, {{"a", 1}}), Scalars(1, {{"a", 3}})}).contradiction(),
            "a at step 1 was reported as 1 and again as 3");
}

TEST(ReportedCurves, KnowsAnnouncedCheckpointsAndVectors) {
  std::string ckpt, vector;
  events::AppendOtherLine(1, "ckpt", "\"step\":12,\"digest\":\"x\"", &ckpt);
  const std::vector<uint32_t> shape = {2};
  const std::vector<float> values = {1, 2}, others = {1, 3};
  events::AppendVectorLine(2, 12, 0, "load", shape, values, &vector);
  ckpt.pop_back();
  vector.pop_back();
  const auto curves = Curves({ckpt, vector, ""});
  EXPECT_EQ(curves.checkpoints(), std::set<uint64_t>{12});
  std::string other;
  events::AppendVectorLine(2, 12, 0, "load", shape, others, &other);
  other.pop_back();
  EXPECT_EQ(curves.FirstDifference(Curves({other})), "load at step 12 is 1, 2 and 1, 3");
  ReportedCurves broken;
  EXPECT_FALSE(broken.Add("not a line").ok());
}

class Checkpoints : public testing::Test {
 protected:
  Checkpoints() {
    std::string pattern = testing::TempDir() + "/compare-XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~Checkpoints() override { std::filesystem::remove_all(folder_); }

  // A checkpoint of one matrix and one moment.
  std::string Write(const std::string& name, std::vector<float> weights,
                    std::vector<int64_t> shape = {2, 3}, const std::string& moment = "m") {
    const std::string path = StrCat(folder_, "/", name);
    std::filesystem::create_directory(path);
    const std::string_view bytes(reinterpret_cast<const char*>(weights.data()),
                                 weights.size() * sizeof(float));
    EXPECT_TRUE(data::WriteSafetensors(path + "/model.safetensors",
                                       {{"w", data::DType::kF32, shape, bytes}}, {})
                    .ok());
    EXPECT_TRUE(data::WriteSafetensors(path + "/state.safetensors",
                                       {{moment, data::DType::kF32, shape, bytes}}, {})
                    .ok());
    return path;
  }
  std::string Difference(const std::string& left, const std::string& right) {
    const auto compared = CompareCheckpoints(left, right);
    EXPECT_TRUE(compared.ok()) << compared.status().message();
    return compared.ok() ? compared->first_difference : "";
  }

  std::string folder_;
};

TEST_F(Checkpoints, NameTheFirstElementThatDiffers) {
  const std::string a = Write("a", {1, 2, 3, 4, 5, 6}), b = Write("b", {1, 2, 3, 4, 5.5, 6});
  EXPECT_EQ(Difference(a, a), "");
  EXPECT_EQ(CompareCheckpoints(a, a)->tensors, 2U);
  EXPECT_EQ(CompareCheckpoints(a, a)->bytes, 48U);
  EXPECT_EQ(Difference(a, b), "model.safetensors: w: element [1, 1] is 5 and 5.5");
}

TEST_F(Checkpoints, NameWhatIsMissingOrOfAnotherShape) {
  const std::string a = Write("a", {1, 2, 3, 4, 5, 6});
  EXPECT_THAT(Difference(a, Write("b", {1, 2, 3, 4, 5, 6}, {3, 2})),
              HasSubstr("w: F32 [2, 3] and F32 [3, 2]"));
  EXPECT_THAT(Difference(a, Write("c", {1, 2, 3, 4, 5, 6}, {2, 3}, "n")),
              HasSubstr("state.safetensors: m: is missing in the second"));
  EXPECT_FALSE(CompareCheckpoints(a, folder_ + "/none").ok());
}

}  // namespace
}  // namespace switchyard::client
