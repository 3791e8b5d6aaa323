#include "common/spec/yaml_reader.h"

#include <chrono>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/strings.h"
#include "switchyard/v1/spec.pb.h"
#include "tests/unit/common/spec/spec_builders.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

pb::SweepSpec Read(std::string_view text) {
  pb::SweepSpec sweep;
  EXPECT_EQ(ToString(ReadSweepYaml("sweep.yaml", text, {}, &sweep)), "");
  return sweep;
}

// CF1: one of two values would vanish silently.
TEST(ReadSweepYaml, RefusesAKeyGivenTwiceNamingBothLines) {
  const std::string faults = ReadFaults(R"(name: twice
base:
  train:
    optimizer:
      adam:
        lr: 1e-3
        beta1: 0.9
        beta2: 0.99
        lr: 1e-4
)");
  EXPECT_EQ(faults,
            "sweep.yaml:9:9: key 'lr' is given twice in one mapping: on line 6 and on line 9");
}

// CF1, in flow style and at the top: no style of mapping is exempt, and every pair is reported.
TEST(ReadSweepYaml, RefusesEveryRepeatedKeyInAnyMapping) {
  const std::string faults =
      ReadFaults("name: a\ntags: [x]\nname: b\nbase: {kind: train, kind: train}\n");
  EXPECT_THAT(faults, AllOf(HasSubstr("sweep.yaml:3:1: key 'name'"),
                            HasSubstr("sweep.yaml:4:21: key 'kind'")));
}

// CF2: a mistyped key would leave the default in force.
TEST(ReadSweepYaml, NamesTheNearestKeyForATypo) {
  EXPECT_EQ(ReadFaults(Replaced(kSmallSweep, "experts: 8", "experts: 8, top_kk: 2")),
            "sweep.yaml:7:45: base.model.moe: 'top_kk' is not a field of MoeSpec; nearest: top_k");
}

// CF2: the same typo one level too deep: the hint names where the field is.
TEST(ReadSweepYaml, NamesTheNearestKeyOfAnotherMapping) {
  EXPECT_THAT(ReadFaults(Replaced(kSmallSweep, "router: smoe", "router: {top_kk: 2}")),
              AllOf(StartsWith("sweep.yaml:7:54: base.model.moe.router: 'top_kk'"),
                    HasSubstr("nearest: top_k (in model.moe)")));
}

// CF2: the same typo inside a sweep axis, in its path and in its value.
TEST(ReadSweepYaml, RefusesATypoInsideAnAxis) {
  EXPECT_THAT(ReadFaults(StrCat(kSmallSweep, "space: {grid: {model.moe.top_kk: [1, 2]}}\n")),
              AllOf(StartsWith("sweep.yaml:15:35: model.moe.top_kk: 'top_kk'"),
                    HasSubstr("nearest: top_k")));
  EXPECT_THAT(
      ReadFaults(StrCat(kSmallSweep, "space:\n  grid:\n    model.moe.router: [{top_kk: 2}]\n")),
      AllOf(StartsWith("sweep.yaml:17:"), HasSubstr("nearest: top_k (in model.moe)")));
}

// CF2: a wrong name of a whole part, with nothing below it read.
TEST(ReadSweepYaml, RefusesAnUnknownPart) {
  EXPECT_THAT(ReadFaults(Replaced(kSmallSweep, "optimizer:", "optim:")),
              AllOf(StartsWith("sweep.yaml:13:5: base.train: 'optim' is not a field of TrainSpec"),
                    HasSubstr("nearest: optimizer")));
  EXPECT_THAT(ReadFaults(StrCat(kSmallSweep, "timeuot: 2h\n")), HasSubstr("nearest: timeout"));
  EXPECT_THAT(ReadFaults(StrCat(kSmallSweep, "zzz: 1\n")),
              HasSubstr("known: name, project, base, preset, space, replicates"));
}

// All faults in one reply, so that a file is right after one round of corrections.
TEST(ReadSweepYaml, ReportsEveryFault) {
  const std::string faults = ReadFaults(R"(name: many
bse: {}
base:
  train: {steps: -1, batch: 1.5, precision: fp16}
  eval: {splits: valid}
timeout: 5
)");
  EXPECT_THAT(faults,
              AllOf(HasSubstr("sweep.yaml:2:1: 'bse'"), HasSubstr("base.train.steps: -1 must"),
                    HasSubstr("base.train.batch: '1.5' is not a whole number"),
                    HasSubstr("'fp16' is not a value of Precision; nearest: fp32"),
                    HasSubstr("base.eval.splits: expected a list"),
                    HasSubstr("timeout: '5' is not a duration")));
}

// CF3: four ways to write a learning rate give bit-equal runs.
TEST(ReadSweepYaml, ReadsANumberByItsFieldNotByItsLooks) {
  const std::string key = RunOf(kSmallSweep).run_key;
  for (const char* text : {"0.0007", "7.0e-4", "7E-04", "\"7e-4\"", "'0.0007'"}) {
    EXPECT_EQ(RunOf(Replaced(kSmallSweep, "7e-4", text)).run_key, key) << text;
  }
  EXPECT_THAT(ReadFaults(Replaced(kSmallSweep, "7e-4", "7e-4x")),
              HasSubstr("sweep.yaml:13:28: base.train.optimizer.adam.lr: '7e-4x' is not a number"));
}

// CF3: words that YAML 1.1 takes for booleans are text, and no booleans.
TEST(ReadSweepYaml, ReadsBooleansAndTextByTheirField) {
  EXPECT_EQ(Read(Replaced(kSmallSweep, "small", "no")).name(), "no");
  EXPECT_EQ(Read(Replaced(kSmallSweep, "small", "y")).name(), "y");
  EXPECT_EQ(Read(Replaced(kSmallSweep, "small", "2026-11-30")).name(), "2026-11-30");
  EXPECT_EQ(Read(Replaced(kSmallSweep, "small", "0755")).name(), "0755");
  EXPECT_THAT(ReadFaults(Replaced(kSmallSweep, "layers: 4", "layers: 4, dropout: off")),
              HasSubstr("dropout: 'off' is not a number"));
  EXPECT_THAT(ReadFaults(Replaced(kSmallSweep, "layers: 4", "layers: 4, pre_norm: yes")),
              HasSubstr("pre_norm: 'yes' is not a boolean"));
  const pb::SweepSpec sweep =
      Read(Replaced(kSmallSweep, "layers: 4", "layers: 4, pre_norm: False, same_length: TRUE"));
  EXPECT_TRUE(sweep.base().model().transformer_xl().has_pre_norm());
  EXPECT_FALSE(sweep.base().model().transformer_xl().pre_norm());
  EXPECT_TRUE(sweep.base().model().transformer_xl().same_length());
}

// spec.md: `{mcf: {}}`, `{kind: mcf}` and the word alone are one thing, with shared fields beside.
TEST(ReadSweepYaml, TakesEveryFormOfACase) {
  const std::string key = RunOf(kSmallSweep).run_key;
  for (const char* text : {"{smoe: {}}", "{kind: smoe}", "{kind: smoe, smoe: {}}",
                           "{gate_norm: softmax_topk, smoe: {}}"}) {
    EXPECT_EQ(RunOf(Replaced(kSmallSweep, "router: smoe", StrCat("router: ", text))).run_key, key)
        << text;
  }
  EXPECT_THAT(ReadFaults(Replaced(kSmallSweep, "router: smoe", "router: {smoe: {}, hash: {}}")),
              HasSubstr("both smoe and hash, of which only one can be"));
  EXPECT_THAT(ReadFaults(Replaced(kSmallSweep, "router: smoe", "router: {kind: smoe, hash: {}}")),
              HasSubstr("both smoe and hash"));
  EXPECT_THAT(ReadFaults(Replaced(kSmallSweep, "router: smoe", "router: smo")),
              HasSubstr("'smo' is not a kind of RouterSpec; nearest: smoe"));
}

// Keyed lists: a mapping from ids, or a list of mappings with ids; a domain may be its globs.
TEST(ReadSweepYaml, TakesBothFormsOfAKeyedList) {
  const pb::SweepSpec by_key =
      Read(Replaced(kSmallSweep, "router: smoe",
                    "router: smoe, losses: {z_loss: {coef: 1e-3}, megatron_aux: {coef: 0.01}}"));
  const pb::SweepSpec by_list = Read(
      Replaced(kSmallSweep, "router: smoe",
               "router: smoe, losses: [{id: z_loss, coef: 1e-3}, {coef: 0.01, id: megatron_aux}]"));
  EXPECT_EQ(by_key.SerializeAsString(), by_list.SerializeAsString());
  const pb::SweepSpec weighted = Read(Replaced(kSmallSweep, "c: [\"/usr/include/**/*.h\"]",
                                               "c: {globs: [a], weight: 2}, d: [b, e]"));
  EXPECT_EQ(weighted.base().data().files().domains(0).weight(), 2);
  EXPECT_THAT(weighted.base().data().files().domains(1).globs(), ElementsAre("b", "e"));
  EXPECT_THAT(ReadFaults(Replaced(kSmallSweep, "router: smoe",
                                  "router: smoe, losses: [{id: z_loss}, {id: z_loss}]")),
              HasSubstr("'z_loss' is in the list twice"));
  EXPECT_THAT(
      ReadFaults(Replaced(kSmallSweep, "router: smoe", "router: smoe, losses: [{coef: 1}]")),
      HasSubstr("needs an id"));
}

// The policy stands beside `base`; durations are written with their unit and without `_ms`.
TEST(ReadSweepYaml, ReadsThePolicyAtTheTop) {
  const pb::PolicySpec policy = Read(StrCat(kSmallSweep, R"(resources: {cpu_slots: 2}
priority: -3
max_parallel: 4
timeout: 1.5h
telemetry: {every_steps: 5}
checkpoint: {every: 90s, keep_last: 1, keep_best: 0}
)"))
                                    .policy();
  EXPECT_EQ(policy.resources().cpu_slots(), 2U);
  EXPECT_EQ(policy.priority(), -3);
  EXPECT_EQ(policy.max_parallel(), 4U);
  EXPECT_EQ(policy.timeout_ms(), 5'400'000U);
  EXPECT_EQ(policy.telemetry().every_steps(), 5U);
  EXPECT_EQ(policy.checkpoint().every_ms(), 90'000U);
  EXPECT_TRUE(policy.checkpoint().has_keep_best());
  EXPECT_THAT(ReadFaults(StrCat(kSmallSweep, "timeout_ms: 5\n")), HasSubstr("nearest: timeout"));
}

// What Switchyard fills in cannot be written.
TEST(ReadSweepYaml, RefusesFieldsThatAreFilledIn) {
  EXPECT_THAT(ReadFaults(Replaced(kSmallSweep, "kind: train", "seed: 5")),
              HasSubstr("'seed' is not"));
  EXPECT_THAT(ReadFaults(Replaced(kSmallSweep, "kind: train", "numerics_class: 5")),
              HasSubstr("'numerics_class' is not"));
  EXPECT_THAT(ReadFaults(StrCat(kSmallSweep, "space: {grid: {seed: [1, 2]}}\n")),
              HasSubstr("the seed is never an axis"));
  EXPECT_THAT(ReadFaults(StrCat(kSmallSweep, "policy: {priority: 1}\n")),
              HasSubstr("'policy' is not"));
  EXPECT_THAT(ReadFaults(StrCat(kSmallSweep, "sets: []\n")), HasSubstr("'sets' is not"));
}

// An empty list cannot be told from an absent one, so it would be the default, silently.
TEST(ReadSweepYaml, RefusesEmptyLists) {
  EXPECT_THAT(ReadFaults(StrCat(kSmallSweep, "space: {grid: {train.steps: []}}\n")),
              HasSubstr("the list is empty"));
  EXPECT_THAT(ReadFaults(Replaced(kSmallSweep, "kind: train", "eval: {splits: []}")),
              HasSubstr("base.eval.splits: the list is empty"));
  EXPECT_THAT(ReadFaults(Replaced(kSmallSweep, "seeds: [1]", "seeds: []")),
              HasSubstr("the list is empty"));
  EXPECT_THAT(ReadFaults(Replaced(kSmallSweep, "seeds: [1]", "seeds: 0")),
              HasSubstr("at least one seed"));
}

// A number of seeds stands for 1..n.
TEST(ReadSweepYaml, ReadsANumberOfSeeds) {
  EXPECT_THAT(Read(Replaced(kSmallSweep, "seeds: [1]", "seeds: 3")).replicates().seeds(),
              ElementsAre(1, 2, 3));
}

// Byte order mark and CRLF (an editor on another system) change nothing.
TEST(ReadSweepYaml, TakesByteOrderMarkAndCrLf) {
  const std::string key = RunOf(kSmallSweep).run_key;
  std::string crlf = "\xef\xbb\xbf";
  for (const char c : kSmallSweep) crlf += c == '\n' ? std::string("\r\n") : std::string(1, c);
  EXPECT_EQ(RunOf(crlf).run_key, key);
  EXPECT_THAT(ReadFaults(Replaced(crlf, "7e-4", "x")), StartsWith("sweep.yaml:13:28:"));
}

struct Hostile {
  const char* name;
  std::string text;
  const char* fault;
};

std::string Repeated(std::string_view piece, size_t times) {
  std::string text;
  for (size_t i = 0; i < times; ++i) text += piece;
  return text;
}

// operations.md 6: each is refused with a reason, soon, and never by a crash.
TEST(ReadSweepYaml, RefusesHostileDocuments) {
  std::string bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n";
  for (char c = 'b'; c < 'z'; ++c) {
    const char before = static_cast<char>(c - 1);
    bomb += StrCat(c, ": &", c, " [", Repeated(StrCat("*", before, ", "), 8), "*", before, "]\n");
  }
  const std::vector<Hostile> cases = {
      {"alias bomb", bomb, "anchors are not allowed"},
      {"anchor cycle", "a: &a [*a]\n", "anchors are not allowed"},
      {"unknown alias", "a: *b\n", "not valid YAML"},
      {"anchored key", "&k name: x\n", "anchors are not allowed"},
      {"depth in flow style", Repeated("[", 100'000) + Repeated("]", 100'000),
       "more than 64 levels"},
      {"unclosed depth", Repeated("[", 100'000), "a bracket is not closed"},
      {"depth of mappings", Repeated("{a: ", 100'000), "a bracket is not closed"},
      {"depth in block style", Repeated("- ", 100'000), "more than 64 levels"},
      {"depth of complex keys", Repeated("? ", 100'000), "key must be a plain word"},
      {"nodes", StrCat("tags: [", Repeated("x, ", 100'001), "]"), "more than 100000 nodes"},
      {"size", StrCat("notes: ", std::string(1 << 20, 'x')), "bytes, at most 1048576"},
      {"tab indent", "name: x\nbase:\n\tkind: train\n", "sweep.yaml:3:1: a tab in the indentation"},
      {"tab behind blanks", "base:\n  \tkind: train\n", "sweep.yaml:2:3: a tab"},
      {"merge key", "base:\n  <<: {kind: train}\n", "sweep.yaml:2:3: merge keys are not allowed"},
      {"python object", "name: !!python/object/apply:os.system [id]\n", "tags are not allowed"},
      {"own tag", "name: !x y\n", "tags are not allowed"},
      {"null word", "name: null\n", "null (an empty value) is not allowed"},
      {"tilde", "name: ~\n", "null (an empty value) is not allowed"},
      {"empty value", "name:\nbase: {}\n", "sweep.yaml:1:1: null (an empty value)"},
      {"empty element", "tags: [a, ~]\n", "null"},
      {"two documents", "name: a\n---\nname: b\n", "more than one document"},
      {"empty", "", "the document is empty"},
      {"comment only", "# nothing\n", "the document is empty"},
      {"list at the top", "- a\n", "a sweep file is a mapping"},
      {"word at the top", "hello\n", "a sweep file is a mapping"},
      {"list as a key", "[a, b]: c\n", "a key must be a plain word"},
      {"unclosed", "base: {kind: train\n", "not valid YAML"},
      {"unclosed quote", "name: \"x\n", "not valid YAML"},
      {"UTF-16", std::string("\xff\xfen\0a\0m\0e\0", 10), "control character 0"},
      {"bad UTF-8", "name: \xff\xfe\n", "not valid UTF-8"},
      {"NUL", std::string("name: a\0b\n", 10), "control character 0"},
      {"escape sequence", "name: \x1b[2J\n", "control character 27"},
      {"lone carriage return", "name: a\rbase: {}\n", "carriage return without"},
      {"2^63 seed", Replaced(kSmallSweep, "[1]", "[9223372036854775808]"), "is above"},
      {"2^64", Replaced(kSmallSweep, "steps: 100", "steps: 18446744073709551616"), "in range"},
      {"1e400", Replaced(kSmallSweep, "7e-4", "1e400"), "in the range of a double"},
      {"NaN", Replaced(kSmallSweep, "7e-4", ".nan"), "is not a number"},
      {"Inf", Replaced(kSmallSweep, "7e-4", "inf"), "is not a number"},
      {"octal look", Replaced(kSmallSweep, "steps: 100", "steps: 0100"), "drop the leading zero"},
      {"hexadecimal", Replaced(kSmallSweep, "steps: 100", "steps: 0x64"), "not a whole number"},
      {"date for a number", Replaced(kSmallSweep, "steps: 100", "steps: 2026-11-30"),
       "not a whole number"},
      {"negative GPUs", StrCat(kSmallSweep, "resources: {gpus: -1}\n"), "must not be negative"},
      {"1e9 GPUs", StrCat(kSmallSweep, "resources: {gpus: 1e9}\n"), "not between 0 and 1024"},
  };
  for (const Hostile& hostile : cases) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THAT(PlanFaults(hostile.text), HasSubstr(hostile.fault)) << hostile.name;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5)) << hostile.name;
  }
}

// Random damage to a good file: faults or none, but always an answer. The seed is printed.
TEST(ReadSweepYaml, SurvivesRandomDamage) {
  constexpr unsigned kSeed = 20261130;
  SCOPED_TRACE(kSeed);
  std::mt19937 rng(kSeed);
  const std::string good = StrCat(
      kSmallSweep, "space:\n  grid:\n    model.moe.router: [smoe, {hash: {balanced: true}}]\n");
  constexpr std::string_view kPieces = "{}[]:,-&*!|>'\"#%@`?\n \t0a~<e.\xc3\xa9";
  for (int round = 0; round < 3000; ++round) {
    std::string text = good;
    for (unsigned k = 0; k <= rng() % 4; ++k) {
      const size_t at = rng() % text.size();
      switch (rng() % 3) {
        case 0:
          text[at] = kPieces[rng() % kPieces.size()];
          break;
        case 1:
          text.insert(at, 1, kPieces[rng() % kPieces.size()]);
          break;
        default:
          text.erase(at, 1 + rng() % 5);
      }
    }
    pb::SweepSpec sweep;
    std::vector<Fault> faults = ReadSweepYaml("sweep.yaml", text, {}, &sweep);
    if (faults.empty()) SweepPlan::Make(sweep, &faults);
  }
}

// --set lies over base and preset and under the axes, whatever it looks like on a command line.
TEST(ReadSweepYaml, LaysOverridesOverTheBase) {
  std::vector<Fault> faults;
  const PlannedRun run = PlanOf(kSmallSweep, {{"train.optimizer.adam.lr", "1e-3"},
                                              {"model.moe.router", "{hash: {balanced: true}}"},
                                              {"priority", "7"},
                                              {"train.tokens", "64Ki"},
                                              {"eval.splits", "[valid, train]"}})
                             ->At(1, &faults);
  ASSERT_EQ(ToString(faults), "");
  EXPECT_EQ(run.run->train().optimizer().adam().lr(), 1e-3);
  EXPECT_TRUE(run.run->model().moe().router().hash().balanced());
  EXPECT_EQ(run.policy->priority(), 7);
  EXPECT_EQ(run.run->train().steps(), 64U);  // 65536 / (8 * 128), instead of base's steps
  EXPECT_THAT(run.run->eval().splits(), ElementsAre(pb::SPLIT_TRAIN, pb::SPLIT_VALID));
}

// An axis would hide it: the user would believe in a setting that no run has.
TEST(ReadSweepYaml, RefusesAnOverrideOnAnAxis) {
  const std::string text =
      StrCat(kSmallSweep, "space: {grid: {train.optimizer: [{adam: {lr: 1}}]}}\n");
  for (const char* path : {"train.optimizer", "train.optimizer.adam.lr"}) {
    EXPECT_THAT(ReadFaults(text, {{path, "1e-3"}}), HasSubstr("would have no effect")) << path;
  }
}

// A wrong override names itself, since it stands in no file.
TEST(ReadSweepYaml, NamesAWrongOverride) {
  EXPECT_THAT(ReadFaults(kSmallSweep, {{"train.step", "5"}}),
              AllOf(StartsWith("--set train.step=5: "), HasSubstr("nearest: steps")));
  EXPECT_THAT(ReadFaults(kSmallSweep, {{"train.steps", "five"}}),
              HasSubstr("'five' is not a whole"));
  EXPECT_THAT(ReadFaults(kSmallSweep, {{"model.moe.router", "{smoe: "}}),
              HasSubstr("a bracket is not closed"));
  EXPECT_THAT(ReadFaults(kSmallSweep, {{"", "5"}}), HasSubstr("is not a field of RunSpec"));
}

// Faults found later, by path, get the place of their field in the file.
TEST(LocateFaults, FindsTheLineOfAField) {
  const std::string text =
      StrCat(kSmallSweep, "space: {grid: {train.batch: [4, 8]}}\ntimeout: 2h\n");
  std::vector<Fault> faults = {
      {"", "model.moe.top_k", "x"}, {"", "train.batch", "x"}, {"", "timeout", "x"},
      {"", "eval.batch", "x"},      {"", "name", "x"},        {"at", "name", "x"}};
  LocateFaults("sweep.yaml", text, &faults);
  std::vector<std::string> places;
  for (const Fault& fault : faults) places.push_back(fault.location);
  EXPECT_THAT(places, ElementsAre("sweep.yaml:7:5", "sweep.yaml:15:16", "sweep.yaml:16:1",
                                  "sweep.yaml:2:1", "sweep.yaml:1:1", "at"));
}

}  // namespace
}  // namespace switchyard::spec
