#include "common/spec/canonical.h"

#include <functional>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include "common/base/strings.h"
#include "common/spec/lay.h"
#include "common/spec/presets.h"
#include "common/spec/unused.h"
#include "common/spec/validate.h"
#include "common/spec/written.h"
#include "switchyard/v1/spec.pb.h"
#include "tests/unit/common/spec/spec_builders.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;
using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Byte by byte: number, then 8 bytes little endian, a double's bits, or a length and the bytes.
TEST(CanonicalEncoding, IsWhatTheDocumentationSays) {
  pb::LossSpec loss;
  loss.set_id("z");
  loss.set_coef(1.0);
  EXPECT_EQ(HexEncode(CanonicalEncoding(loss)),
            "0100000000000000"    // field 1
            "0100000000000000"    // one byte
            "7a"                  // z
            "0200000000000000"    // field 2
            "000000000000f03f");  // 1.0
  pb::MoeSpec moe;
  moe.add_layers(2);
  moe.mutable_router()->mutable_smoe();
  EXPECT_EQ(HexEncode(CanonicalEncoding(moe)),
            "0100000000000000"    // layers
            "0100000000000000"    // one value
            "0200000000000000"    // 2
            "0500000000000000"    // router
            "1000000000000000"    // 16 bytes
            "0200000000000000"    // smoe
            "0000000000000000");  // 0 bytes
  EXPECT_EQ(CanonicalEncoding(pb::RunSpec()), "");
}

// A present zero and an absent field differ; the two zeros of a double do not.
TEST(CanonicalEncoding, TellsPresenceAndNotTheSignOfZero) {
  pb::LossSpec absent;
  pb::LossSpec zero;
  zero.set_coef(0.0);
  pb::LossSpec negative;
  negative.set_coef(-0.0);
  EXPECT_NE(CanonicalEncoding(absent), CanonicalEncoding(zero));
  EXPECT_EQ(CanonicalEncoding(zero), CanonicalEncoding(negative));
  pb::PolicySpec policy;
  policy.set_priority(-1);
  EXPECT_EQ(HexEncode(CanonicalEncoding(policy)), "0200000000000000ffffffffffffffff");
}

// Filling in twice is filling in once: the coordinator and the trainer both do it.
TEST(FillDefaults, IsIdempotent) {
  for (const std::string& name : PresetNames()) {
    pb::RunSpec run;
    ASSERT_TRUE(LoadPreset(name, &run));
    FillDefaults(&run);
    pb::RunSpec again = run;
    FillDefaults(&again);
    EXPECT_EQ(CanonicalEncoding(run), CanonicalEncoding(again)) << name;
  }
  pb::RunSpec empty;
  FillDefaults(&empty);
  EXPECT_EQ(empty.numerics_class(), kNumericsClass);
}

// What is filled in is used: no default of one kind is written into another kind's document.
TEST(FillDefaults, WritesNothingWithoutUse) {
  constexpr std::string_view kDecoder =
      "name: a\nbase: {kind: train, data: {wikitext: {path: /x}}, model: {decoder: {layers: 1, "
      "d_model: 8, heads: 2, d_inner: 8}, moe: {layers: [0], router: dense}}, train: {steps: 1, "
      "batch: 1, target_len: 8, optimizer: {adam: {lr: 1}}}}\n";
  for (const std::string& text :
       {std::string(kDecoder), Replaced(kDecoder, "router: dense", "experts: 2, router: hash"),
        Replaced(kDecoder, "d_inner: 8", "d_inner: 8, position: learned"),
        std::string(kSmallSweep)}) {
    pb::RunSpec run = *RunOf(text).run;
    EXPECT_THAT(DropUnused(&run), IsEmpty()) << text;
    EXPECT_THAT(ValidateRun(run), IsEmpty()) << text;
  }
}

// The defaults that the comments of spec.proto promise.
TEST(FillDefaults, FollowsTheComments) {
  const PlannedRun planned = RunOf(Replaced(kSmallSweep, "router: smoe",
                                            "router: smoe, losses: {hf_mixtral: {coef: 1}, "
                                            "megablocks: {coef: 1}, megatron_global: {coef: 1}, "
                                            "deepseek_seq: {coef: 1}}"));
  const pb::RunSpec& run = *planned.run;
  EXPECT_THAT(run.data().files().split().shares(), ElementsAre(0.9, 0.1, 0));
  EXPECT_EQ(run.data().files().split().by(), pb::SPLIT_BY_RECORD_ORDER);
  EXPECT_EQ(run.model().transformer_xl().dropout(), 0.1);
  EXPECT_EQ(run.model().moe().top_k(), 2U);
  EXPECT_EQ(run.model().moe().expert().width(), 128U);
  EXPECT_EQ(run.model().moe().router().gate_norm(), pb::GATE_NORM_SOFTMAX_TOPK);
  EXPECT_EQ(run.model().vocab(), 256U);
  EXPECT_EQ(run.train().micro_batch(), 8U);
  EXPECT_FALSE(run.train().has_clip_norm());
  EXPECT_EQ(run.eval().target_len(), 128U);
  EXPECT_EQ(run.eval().memory_len(), 128U);
  EXPECT_EQ(run.eval().batch(), 8U);
  EXPECT_TRUE(run.guards().non_finite());
  std::vector<std::string> losses;
  for (const pb::LossSpec& loss : run.model().moe().losses()) {
    losses.push_back(StrCat(loss.id(), " ", static_cast<int>(loss.scope()), " ",
                            static_cast<int>(loss.layer_reduce())));
  }
  EXPECT_THAT(losses, ElementsAre("deepseek_seq 2 1", "hf_mixtral 1 3", "megablocks 1 2",
                                  "megatron_global 3 1"));
  const PlannedRun hash = RunOf(Replaced(kSmallSweep, "router: smoe", "router: hash"));
  EXPECT_EQ(hash.run->model().moe().top_k(), 1U);
  EXPECT_EQ(hash.run->model().moe().router().gate_norm(), pb::GATE_NORM_UNIFORM);
}

// Identities of stored runs: a change here makes every old run a stranger, so it must be meant.
TEST(RunKey, IsStable) {
  EXPECT_EQ(RunOf(kSmallSweep).run_key,
            "952d05e56ffb4cd926d5d1c39ac2da08b563d9dcda926e953f2b71ff5ab16b2b");
  EXPECT_EQ(RunOf(Replaced(kSmallSweep, "router: smoe", "router: hash")).run_key,
            "30771d5f69c64d9f2db65d3a18e6ae93f0d64dfd028cd4ff29a2b5e3fb557d79");
  EXPECT_EQ(RunOf("name: a\npreset: txl_official_enwik8_base\nbase: {data: {enwik8: {path: /d}}}\n")
                .run_key,
            "85f9bf7436fcf3d4daacac841e5ad5c88ea1b8d5f9571a29393a831e81cfd00f");
  pb::SweepSpec sweep;
  ASSERT_THAT(ReadSweepYaml("sweep.yaml", kSmallSweep, {}, &sweep), IsEmpty());
  EXPECT_EQ(SweepHash(sweep), "771bdaa4920e35b4354bdf00f617839baef45c789a06f1fb95c64463c1fc7124");
}

// Notes are for people; everything else makes another sweep.
TEST(SweepHash, LeavesOutNotesOnly) {
  pb::SweepSpec sweep;
  ASSERT_THAT(ReadSweepYaml("sweep.yaml", kSmallSweep, {}, &sweep), IsEmpty());
  pb::SweepSpec other = sweep;
  other.set_notes("hello");
  EXPECT_EQ(SweepHash(other), SweepHash(sweep));
  other.add_tags("x");
  EXPECT_NE(SweepHash(other), SweepHash(sweep));
}

// One text that every field of a kind can be laid with.
std::string Sample(const FieldDescriptor* field) {
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true";
    case FieldDescriptor::CPPTYPE_ENUM: {
      const std::string& first = field->enum_type()->value(0)->name();
      std::string name = field->enum_type()->value(1)->name().substr(first.size() - 11);
      for (char& c : name) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
      return name;
    }
    case FieldDescriptor::CPPTYPE_STRING:
      return "text";
    default:
      return IsDuration(field) ? "7s" : "7";
  }
}

// Kind 4: every field that can be written reaches the encoding, and with it the run's identity. A
// new field of spec.proto is tested by being there.
TEST(LayValue, ReachesEveryFieldOfTheSpec) {
  size_t count = 0;
  std::function<void(const google::protobuf::Message&, const Descriptor*, const std::string&)>
      walk = [&](const google::protobuf::Message& root, const Descriptor* at,
                 const std::string& path) {
        for (int i = 0; i < at->field_count(); ++i) {
          const FieldDescriptor* field = at->field(i);
          const std::string name = WrittenName(field);
          if (FindWritten(at, name) == nullptr) continue;
          const std::string field_path = path.empty() ? name : StrCat(path, ".", name);
          if (field->message_type() != nullptr && !field->is_repeated()) {
            walk(root, field->message_type(), field_path);
            continue;
          }
          pb::Value value;
          if (field->message_type() != nullptr && IdField(field) == nullptr) {
            value.mutable_list()->add_items()->mutable_map();
          } else if (field->message_type() != nullptr) {
            pb::ValueEntry* entry = value.mutable_map()->add_entries();
            entry->set_key("name");
            entry->mutable_value()->mutable_map();
          } else if (field->is_repeated()) {
            value.mutable_list()->add_items()->set_scalar(Sample(field));
          } else {
            value.set_scalar(Sample(field));
          }
          std::unique_ptr<google::protobuf::Message> message(root.New());
          EXPECT_THAT(LayValue(message.get(), field_path, value, "here"), IsEmpty()) << field_path;
          EXPECT_NE(CanonicalEncoding(*message), "") << field_path;
          ++count;
        }
      };
  walk(pb::RunSpec(), pb::RunSpec::descriptor(), "");
  walk(pb::PolicySpec(), pb::PolicySpec::descriptor(), "");
  EXPECT_GT(count, 90U);
}

// The location that the caller gives stands before the path.
TEST(LayValue, ReportsTheLocation) {
  pb::RunSpec run;
  pb::Value value;
  value.set_scalar("x");
  EXPECT_EQ(ToString(LayValue(&run, "train.batch", value, "--set")),
            "--set: train.batch: 'x' is not a whole number");
}

}  // namespace
}  // namespace switchyard::spec
