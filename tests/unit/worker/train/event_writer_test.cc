#include "worker/trainer/event_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <map>
#include <thread>

#include "common/base/clock.h"
#include "common/base/strings.h"
#include "common/events/line.h"

namespace switchyard::trainer {
namespace {

using std::chrono::milliseconds;

class EventWriterTest : public testing::Test {
 protected:
  EventWriterTest() {
    std::string pattern = StrCat(testing::TempDir(), "/events-XXXXXX");
    folder_ = mkdtemp(pattern.data());
  }
  ~EventWriterTest() override { std::filesystem::remove_all(folder_); }

  std::string Path() const { return StrCat(folder_, "/events.jsonl"); }
  static EventWriter::Options Options() { return {.start_boottime_ns = BoottimeNanoseconds()}; }
  std::vector<events::ParsedLine> Lines() const {
    std::vector<events::ParsedLine> out;
    for (const std::string& line : StrSplit(*ReadFile(Path()), '\n')) {
      if (line.empty()) continue;
      auto parsed = events::ParseLine(line);
      EXPECT_TRUE(parsed.ok()) << parsed.status().ToString() << " in " << line;
      if (parsed.ok()) out.push_back(*std::move(parsed));
    }
    return out;
  }

  std::string folder_;
};

// The reader counts on numbers without a gap, in the order of the calls.
TEST_F(EventWriterTest, NumbersLinesInOrderFromOne) {
  auto writer = EventWriter::Open(Path(), Options());
  ASSERT_TRUE(writer.ok()) << writer.status().ToString();
  (*writer)->Line("hello", "\"run\":\"r\"");
  for (uint64_t step = 1; step <= 500; ++step) {
    (*writer)->Scalars(step, {{"train/lr", 0.5}, {"train/nats_per_token", std::nan("")}});
    (*writer)->Vector(step, "routing/expert_load", {1, 2}, {0.5f, 1.5f});
  }
  (*writer)->Log("text with \"quotes\"\nand a newline \xff");
  (*writer)->Line("end", "\"code\":0");
  ASSERT_TRUE((*writer)->Close(milliseconds(1000)).ok());

  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 1003u);
  for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i].seq, i + 1);
  EXPECT_EQ(lines.front().type, "hello");
  EXPECT_EQ(lines.back().type, "end");
  EXPECT_EQ((*writer)->last_seq(), 1003u);
  EXPECT_THAT(lines[2].vectors.at(0).values, testing::ElementsAre(0.5f, 1.5f));
}

// A second trainer in one attempt directory would number its lines from 1 again.
TEST_F(EventWriterTest, RefusesAFileThatHoldsLines) {
  ASSERT_TRUE(WriteFileAtomically(Path(), "x\n").ok());
  EXPECT_EQ(EventWriter::Open(Path(), Options()).status().code(), Code::kFailedPrecondition);
}

// Under pressure log lines go first, then metrics; results stay, and what went is counted.
TEST_F(EventWriterTest, DropsLogsThenMetricsAndCountsThem) {
  EventWriter::Options options = Options();
  options.queue_bytes_max = 0;
  auto writer = EventWriter::Open(Path(), options);
  ASSERT_TRUE(writer.ok());
  (*writer)->Log("first");
  (*writer)->Scalars(7, {{"train/lr", 1}});
  (*writer)->Scalars(9, {{"train/lr", 1}});
  (*writer)->Line("result", "\"step\":9");
  ASSERT_TRUE((*writer)->Close(milliseconds(1000)).ok());

  uint64_t dropped = 0;
  bool has_result = false;
  const auto lines = Lines();
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i].seq, i + 1);
    EXPECT_NE(lines[i].type, "m");
    EXPECT_NE(lines[i].type, "log");
    has_result |= lines[i].type == "result";
    if (lines[i].type == "drop") {
      const size_t at = lines[i].json.find("\"n\":");
      dropped += static_cast<uint64_t>(lines[i].json[at + 4] - '0');
    }
  }
  EXPECT_TRUE(has_result);
  EXPECT_EQ(dropped, 3u);
}

// A step behind an earlier one would make a curve that nobody can read: the run ends by it.
TEST_F(EventWriterTest, TakesAStepThatGoesBackForAnError) {
  auto writer = EventWriter::Open(Path(), Options());
  ASSERT_TRUE(writer.ok());
  (*writer)->Scalars(5, {{"train/lr", 1}});
  (*writer)->Scalars(5, {{"valid/nats_per_token", 1}});
  EXPECT_TRUE((*writer)->health().ok());
  (*writer)->Scalars(4, {{"train/lr", 1}});
  EXPECT_THAT((*writer)->health().message(),
              testing::HasSubstr("step 4 is recorded behind step 5"));
  (*writer)->Line("end", "\"code\":70");
  ASSERT_TRUE((*writer)->Close(milliseconds(1000)).ok());
  EXPECT_EQ(Lines().size(), 3u);
}

// With lenient_steps such points are recorded in their place; what the log says of them is one
// line, not one a point.
TEST_F(EventWriterTest, RecordsStepsThatGoBackWhereThatIsAllowed) {
  EventWriter::Options options = Options();
  options.lenient_steps = true;
  auto writer = EventWriter::Open(Path(), options);
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ((*writer)->step_warning(), "");
  for (const uint64_t step : {5, 4, 6, 3, 2, 7}) (*writer)->Scalars(step, {{"train/lr", 1}});
  (*writer)->Vector(1, "routing/expert_load", {1}, {1.0f});
  EXPECT_TRUE((*writer)->health().ok());
  EXPECT_THAT((*writer)->step_warning(), testing::HasSubstr("step 4 is recorded behind step 5"));
  EXPECT_THAT((*writer)->step_warning(), testing::HasSubstr("4 in all"));
  ASSERT_TRUE((*writer)->Close(milliseconds(1000)).ok());
  std::vector<uint64_t> steps;
  for (const events::ParsedLine& line : Lines()) steps.push_back(line.step);
  EXPECT_THAT(steps, testing::ElementsAre(5, 4, 6, 3, 2, 7, 1));
}

// Under the agent's pressure derived series are thinned out, never what a run is judged by.
TEST_F(EventWriterTest, ThinsOutDerivedSeriesUnderPressure) {
  EventWriter::Options options = Options();
  options.pressure = [] { return 2; };
  auto writer = EventWriter::Open(Path(), options);
  ASSERT_TRUE(writer.ok());
  for (uint64_t step = 1; step <= 8; ++step) {
    (*writer)->Scalars(step, {{"train/nats_per_token", 1}, {"train/step_seconds", 2}});
    (*writer)->Vector(step, "routing/expert_load", {1}, {1.0f});
  }
  (*writer)->Log("a word");
  ASSERT_TRUE((*writer)->Close(milliseconds(1000)).ok());
  uint64_t losses = 0;
  uint64_t seconds = 0;
  uint64_t vectors = 0;
  std::string drops;
  for (const events::ParsedLine& line : Lines()) {
    for (const auto& [name, value] : line.scalars) {
      (name == "train/nats_per_token" ? losses : seconds) += 1;
    }
    vectors += line.vectors.size();
    if (line.type == "drop") drops += line.json;
    EXPECT_NE(line.type, "log");
  }
  EXPECT_EQ(losses, 8u);
  EXPECT_EQ(seconds, 2u);
  EXPECT_EQ(vectors, 2u);
  EXPECT_THAT(drops, testing::HasSubstr("\"what\":\"derived\""));
  EXPECT_THAT(drops, testing::HasSubstr("\"what\":\"log\""));
}

// Segments are sealed under their first number; together they hold every line once.
TEST_F(EventWriterTest, SealsFullSegments) {
  EventWriter::Options options = Options();
  options.segment_bytes_max = 2000;
  auto writer = EventWriter::Open(Path(), options);
  ASSERT_TRUE(writer.ok());
  for (uint64_t step = 1; step <= 30; ++step) {
    (*writer)->Scalars(step, {{"train/nats_per_token", 1}});
    // A segment ends where a write ended.
    if (step % 10 == 0) std::this_thread::sleep_for(milliseconds(200));
  }
  (*writer)->Line("result", std::string("\"text\":\"") + std::string(2000, 'x') + "\"");
  ASSERT_TRUE((*writer)->Close(milliseconds(1000)).ok());
  const std::string folder = std::filesystem::path(Path()).parent_path().string();
  std::map<uint64_t, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const uint64_t first =
        name == "events.jsonl" ? UINT64_MAX : std::stoull(name.substr(std::strlen("events.")));
    files[first] = *ReadFile(entry.path().string());
  }
  ASSERT_GE(files.size(), 2u);
  uint64_t seq = 0;
  for (const auto& [first, text] : files) {
    if (first != UINT64_MAX) {
      EXPECT_EQ(first, seq + 1);
    }
    for (const std::string& line : StrSplit(text, '\n')) {
      if (line.empty()) continue;
      const auto parsed = events::ParseLine(line);
      ASSERT_TRUE(parsed.ok());
      EXPECT_EQ(parsed->seq, ++seq);
    }
  }
  EXPECT_EQ(seq, (*writer)->last_seq());
  EXPECT_EQ(seq, 31u);
}

// A file that cannot grow leaves whole lines only, and the caller never waits for it.
TEST_F(EventWriterTest, AFileAtItsLimitKeepsWholeLinesAndSaysSo) {
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 4096;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  auto writer = EventWriter::Open(Path(), Options());
  ASSERT_TRUE(writer.ok());
  for (uint64_t step = 1; step <= 1000; ++step) {
    (*writer)->Scalars(step, {{"train/nats_per_token", 2.25}});
  }
  const Status closed = (*writer)->Close(milliseconds(50));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_FALSE(closed.ok());
  EXPECT_EQ(Lines().size(), (*writer)->last_seq());
}

}  // namespace
}  // namespace switchyard::trainer
