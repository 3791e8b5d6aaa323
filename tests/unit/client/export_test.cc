#include <sys/stat.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "client/exit_code.h"
#include "client/export/export_writer.h"
#include "client/export/names.h"
#include "client/export/staged_folder.h"
#include "client/export/tfrecord.h"
#include "common/base/file.h"
#include "common/base/strings.h"
#include "switchyard/export/tensorboard.pb.h"
#include "tests/unit/client/invoke.h"

namespace switchyard::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kHostile[] = "<script>alert(1)</script>\"'`touch x`/../../etc";

std::vector<std::string> Names(const std::string& folder) {
  const Result<std::vector<std::string>> names = ListDirectory(folder);
  EXPECT_TRUE(names.ok()) << names.status().ToString();
  return names.ok() ? *names : std::vector<std::string>();
}

// Names of series stay where they are plain, and never leave the folder or meet on one path.
TEST(PathTable, GivesEveryNameAPathOfItsOwn) {
  PathTable table;
  EXPECT_EQ(table.PathOf("valid/c/bits_per_byte"), "valid/c/bits_per_byte");
  EXPECT_EQ(table.PathOf("../../etc/passwd"), "_./_./etc/passwd");
  EXPECT_EQ(table.PathOf("/abs"), "_/abs");
  EXPECT_EQ(table.PathOf("a b"), "a_b");
  EXPECT_EQ(table.PathOf("a_b"), "a_b-2");
  EXPECT_EQ(table.PathOf("a b"), "a_b");
  // A file and a folder cannot share a name, whichever comes first.
  EXPECT_EQ(table.PathOf("x/y"), "x/y");
  EXPECT_EQ(table.PathOf("x"), "x-2");
  EXPECT_EQ(table.PathOf("a_b/c"), "a_b-3/c");
  EXPECT_EQ(table.PathOf(""), "_-2");
}

// The framing, against records made by TensorBoard's own functions.
TEST(TfRecord, FramesAsTensorBoardDoes) {
  EXPECT_EQ(HexEncode(TfRecord("")), "000000000000000029039807d8ea82a2");
  EXPECT_EQ(HexEncode(TfRecord("123456789")), "090000000000000037f97139313233343536373839e5b08ac7");
}

// SQ3: narrowing changes no value's class: a large loss is not shown as a diverged one.
TEST(SinglePrecision, KeepsTheClassOfAValue) {
  constexpr float kMax = std::numeric_limits<float>::max();
  EXPECT_EQ(SinglePrecision(1e300), kMax);
  EXPECT_EQ(SinglePrecision(-1e300), -kMax);
  EXPECT_EQ(SinglePrecision(2.5), 2.5F);
  EXPECT_TRUE(std::isnan(SinglePrecision(std::numeric_limits<double>::quiet_NaN())));
  EXPECT_EQ(SinglePrecision(std::numeric_limits<double>::infinity()),
            std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::signbit(SinglePrecision(-0.0)));
}

TEST(IndexOf, CountsTheLastDimensionFastest) {
  EXPECT_THAT(IndexOf(4, {2, 3}), ElementsAre(1, 1));
  EXPECT_THAT(IndexOf(4, {6}), ElementsAre(4));
  EXPECT_EQ(ElementName("load", IndexOf(5, {2, 3})), "load/1/2");
}

// RE3: a folder appears whole or not at all, and replaces nothing.
TEST(StagedFolder, AppearsWholeOrNotAtAll) {
  const TemporaryFolder folder;
  const std::string target = folder.path() + "/out";
  {
    Result<StagedFolder> staged = StagedFolder::Make(target);
    ASSERT_TRUE(staged.ok()) << staged.status().ToString();
    ASSERT_TRUE(WriteNewFile(staged->path() + "/deep/file", "x").ok());
    EXPECT_FALSE(FileExists(target));
  }
  EXPECT_THAT(Names(folder.path()), IsEmpty());
  Result<StagedFolder> staged = StagedFolder::Make(target + "/");
  ASSERT_TRUE(staged.ok());
  ASSERT_TRUE(WriteNewFile(staged->path() + "/file", "x").ok());
  ASSERT_TRUE(staged->Publish().ok());
  EXPECT_THAT(Names(folder.path()), ElementsAre("out"));
  EXPECT_EQ(StagedFolder::Make(target).status().code(), Code::kAlreadyExists);
  EXPECT_EQ(StagedFolder::Make(folder.path() + "/no/out").status().code(), Code::kNotFound);
}

// What a killed export has left goes with the next one; what another one is writing stays.
TEST(StagedFolder, RemovesWhatAKilledOneLeft) {
  const TemporaryFolder folder;
  const std::string left = folder.path() + "/.out.partial-aaaaaa";
  ASSERT_TRUE(MakeDirectories(left + "/x").ok());
  Result<StagedFolder> first = StagedFolder::Make(folder.path() + "/out");
  ASSERT_TRUE(first.ok());
  EXPECT_FALSE(FileExists(left));
  Result<StagedFolder> second = StagedFolder::Make(folder.path() + "/out");
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(FileExists(first->path()));
  ASSERT_TRUE(second->Publish().ok());
  EXPECT_EQ(first->Publish().code(), Code::kAlreadyExists);
}

TEST(Export, WritesTablesAsCsv) {
  const TemporaryFolder folder;
  const FakeServer server({});
  const std::string out = folder.path() + "/csv";
  const Ran ran = RunOn(server, {"export", "demo", "--format", "csv", "--out", out});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(Names(out), ElementsAre("curves.csv", "runs.csv", "summaries.csv", "sweep.json"));
  EXPECT_THAT(folder.Read("csv/runs.csv"),
              HasSubstr("run,number,id,model.moe.router.kind,router,seed,state"));
  const std::string curves = folder.Read("csv/curves.csv");
  EXPECT_THAT(curves, HasSubstr("demo/2,1,train/nats_per_token,10,1000,1,,,4.5\n"));
  EXPECT_THAT(curves, HasSubstr("demo/2,1,train/nats_per_token,30,3000,1,,,Inf\n"));
  EXPECT_THAT(curves, HasSubstr("demo/2,1,routing/expert_load,100,0,1,1,2,0.5\n"));
  const auto sweep = nlohmann::json::parse(folder.Read("csv/sweep.json"));
  EXPECT_EQ(sweep["sweep"]["spec_hash"], "00112233445566778899");
}

TEST(Export, WritesJsonLinesThatParse) {
  const TemporaryFolder folder;
  const FakeServer server({.hostile_text = kHostile});
  const Ran ran = RunOn(server, {"export", "last", "--format", "jsonl", "--out",
                                 folder.path() + "/j", "--series", "train/nats_per_token"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  size_t lines = 0;
  for (const std::string& line : StrSplit(folder.Read("j/curves.jsonl"), '\n')) {
    if (line.empty()) continue;
    const auto point = nlohmann::json::parse(line);
    EXPECT_EQ(point["series"], "train/nats_per_token");
    if (point["step"] == 30) {
      EXPECT_EQ(point["value"], "Inf");
    }
    ++lines;
  }
  EXPECT_EQ(lines, 30U);
  const auto run = nlohmann::json::parse(StrSplit(folder.Read("j/runs.jsonl"), '\n')[0]);
  EXPECT_EQ(run["columns"]["model.moe.router.kind"], StrCat("dense", kHostile));
  EXPECT_EQ(run["spec"]["train"]["steps"], 100);
}

// Records of an event file, unframed.
std::vector<tensorboard::Event> Events(const std::string& data) {
  std::vector<tensorboard::Event> events;
  for (size_t at = 0; at < data.size();) {
    uint64_t size = 0;
    for (size_t i = 0; i < 8; ++i) size |= uint64_t{static_cast<uint8_t>(data[at + i])} << (8 * i);
    const std::string record = data.substr(at, size + 16);
    const std::string content = record.substr(12, size);
    EXPECT_EQ(TfRecord(content), record);
    EXPECT_TRUE(events.emplace_back().ParseFromString(content));
    at += size + 16;
  }
  return events;
}

TEST(Export, WritesAnEventFilePerRun) {
  const TemporaryFolder folder;
  const FakeServer server({});
  const Ran ran =
      RunOn(server, {"export", "demo", "--format", "tensorboard", "--out", folder.path() + "/tb"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const std::vector<std::string> runs = Names(folder.path() + "/tb");
  ASSERT_EQ(runs.size(), 7U);
  EXPECT_EQ(runs[1], "0002-smoe-seed1");
  const std::string place = "tb/" + runs[1] + "/";
  const std::vector<std::string> files = Names(folder.path() + "/" + place);
  ASSERT_EQ(files.size(), 1U);
  EXPECT_THAT(files[0], HasSubstr("tfevents"));
  const std::vector<tensorboard::Event> events = Events(folder.Read(place + files[0]));
  ASSERT_EQ(events.size(), 9U);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_EQ(events[1].summary().value(0).tag(), "_hparams_/session_start_info");
  EXPECT_EQ(events[2].step(), 10);
  EXPECT_EQ(events[2].summary().value(0).tag(), "train/nats_per_token");
  EXPECT_EQ(events[2].summary().value(0).simple_value(), 4.5F);
  EXPECT_EQ(events[7].summary().value(5).tag(), "routing/expert_load/1/2");
  EXPECT_EQ(events[7].summary().value(5).simple_value(), 0.5F);
}

TEST(Export, WritesMlflowsFolders) {
  const TemporaryFolder folder;
  const FakeServer server({.hostile_text = kHostile});
  const Ran ran =
      RunOn(server, {"export", "last", "--format", "mlflow", "--out", folder.path() + "/m"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const std::vector<std::string> experiments = Names(folder.path() + "/m/mlruns");
  ASSERT_EQ(experiments.size(), 1U);
  const std::string experiment = "m/mlruns/" + experiments[0];
  EXPECT_THAT(folder.Read(experiment + "/meta.yaml"),
              HasSubstr("name: \"demo<script>alert(1)</script>\\\"'"));
  const std::vector<std::string> runs = Names(folder.path() + "/" + experiment);
  ASSERT_EQ(runs.size(), 7U);
  EXPECT_THAT(folder.Read(experiment + "/" + runs[0] + "/metrics/train/nats_per_token"),
              HasSubstr("3000 inf 30\n"));
  EXPECT_THAT(folder.Read(experiment + "/" + runs[0] + "/metrics/routing/expert_load/1/2"),
              HasSubstr("0 0.5 100\n"));
  EXPECT_EQ(folder.Read(experiment + "/" + runs[1] + "/params/model.moe.router.kind"),
            StrCat("smoe", kHostile));
}

// No export leaves anything behind that is not whole, and none is written over another.
TEST(Export, LeavesNothingHalfDone) {
  const TemporaryFolder folder;
  const std::string out = folder.path() + "/out";
  EXPECT_EQ(
      RunOn(FakeServer({.refuse_with = 13}), {"export", "demo", "--format", "csv", "--out", out})
          .code,
      kExitInfrastructure);
  const FakeServer server({});
  EXPECT_EQ(RunOn(server, {"export", "other", "--format", "csv", "--out", out}).code, kExitUsage);
  const Ran missing =
      RunOn(server, {"export", "demo", "--format", "csv", "--out", out, "--series", "no/such"});
  EXPECT_EQ(missing.code, kExitUsage);
  EXPECT_THAT(missing.err, HasSubstr("--series no/such"));
  EXPECT_THAT(Names(folder.path()), IsEmpty());
  ASSERT_TRUE(MakeDirectories(out).ok());
  const Ran again = RunOn(server, {"export", "demo", "--format", "csv", "--out", out});
  EXPECT_EQ(again.code, kExitConflict);
  EXPECT_THAT(again.err, HasSubstr(out + " is there already"));
  EXPECT_THAT(Names(out), IsEmpty());
}

}  // namespace
}  // namespace switchyard::client
