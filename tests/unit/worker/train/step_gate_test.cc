#include "worker/trainer/step_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace switchyard::trainer {
namespace {

using train::StopIntent;

class MockSink : public train::EventSink {
 public:
  using Values = std::vector<std::pair<std::string, double>>;
  MOCK_METHOD(void, Scalars, (uint64_t, Values), (override));
  MOCK_METHOD(void, Vector, (uint64_t, std::string, std::vector<uint32_t>, std::vector<float>),
              (override));
  MOCK_METHOD(void, Line, (std::string, std::string), (override));
  MOCK_METHOD(void, Phase, (std::string), (override));
  MOCK_METHOD(void, Log, (std::string), (override));
  MOCK_METHOD(Status, health, (), (const, override));
};

class MockStop : public train::StopSource {
 public:
  MOCK_METHOD(StopIntent, Poll, (), (override));
  MOCK_METHOD(void, ExitIfPast, (), (override));
};

// Asks for a stop once the step is there, and not before.
TEST(StepGate, StopsAtItsStep) {
  testing::NiceMock<MockSink> sink;
  testing::NiceMock<MockStop> stop;
  ON_CALL(stop, Poll).WillByDefault(testing::Return(StopIntent::kNone));
  EXPECT_CALL(sink, Scalars(testing::_, testing::_)).Times(3);
  StepGate gate(sink, stop, 3);
  EXPECT_EQ(gate.Poll(), StopIntent::kNone);
  gate.Scalars(1, {{"train/lr", 0.1}});
  gate.Scalars(2, {{"train/lr", 0.1}});
  EXPECT_EQ(gate.Poll(), StopIntent::kNone);
  gate.Scalars(3, {{"train/lr", 0.1}});
  EXPECT_EQ(gate.Poll(), StopIntent::kStop);
}

// What was asked from outside comes first, and everything goes through.
TEST(StepGate, PassesEverythingOn) {
  testing::NiceMock<MockSink> sink;
  testing::NiceMock<MockStop> stop;
  ON_CALL(stop, Poll).WillByDefault(testing::Return(StopIntent::kKill));
  ON_CALL(sink, health).WillByDefault(testing::Return(Internal("broken")));
  EXPECT_CALL(sink, Line("ckpt", "x"));
  EXPECT_CALL(sink, Phase("train"));
  EXPECT_CALL(sink, Log("text"));
  EXPECT_CALL(sink, Vector(5, "load", testing::_, testing::_));
  EXPECT_CALL(stop, ExitIfPast);
  StepGate gate(sink, stop, 0);
  gate.Scalars(9, {});
  EXPECT_EQ(gate.Poll(), StopIntent::kKill);
  gate.Line("ckpt", "x");
  gate.Phase("train");
  gate.Log("text");
  gate.Vector(5, "load", {1}, {2});
  gate.ExitIfPast();
  EXPECT_EQ(gate.health().message(), "broken");
}

// Without a step there is no gate.
TEST(StepGate, WithoutAStepItNeverStops) {
  testing::NiceMock<MockSink> sink;
  testing::NiceMock<MockStop> stop;
  ON_CALL(stop, Poll).WillByDefault(testing::Return(StopIntent::kNone));
  StepGate gate(sink, stop, 0);
  gate.Scalars(1000, {});
  EXPECT_EQ(gate.Poll(), StopIntent::kNone);
}

}  // namespace
}  // namespace switchyard::trainer
