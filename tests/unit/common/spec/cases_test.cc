#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/strings.h"
#include "common/spec/canonical.h"
#include "switchyard/v1/spec.pb.h"
#include "tests/unit/common/spec/spec_builders.h"

// Kinds 4 and 14 of the catalogue of faults, at every depth of a sweep file: keys given twice,
// mistyped keys, and scalars whose looks deceive.
namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Every mapping that a sweep file can have; % is where keys stand.
constexpr std::string_view kMappings[] = {
    "space: {%}",
    "space: {grid: {%}}",
    "space: {zip: {%}}",
    "space: {zip: {rows: {%}}}",
    "space: {choice: {%}}",
    "space: {choice: {arm: {%}}}",
    "space: {choice: {arm: {a: {%}}}}",
    "space: {choice: {arm: {a: {set: {%}}}}}",
    "space: {choice: {arm: {a: {match: {%}}}}}",
    "space: {choice: {arm: {a: {choice: {inner: {b: {%}}}}}}}",
    "space: {log_uniform: {%}}",
    "space: {uniform: {train.clip_norm: {%}}}",
    "strategy: {%}",
    "strategy: {asha: {%}}",
    "early_stop: {median_stop: {%}}",
    "budget: {%}",
    "stages: {%}",
    "stages: {a: {%}}",
    "stages: {a: {base: {%}}}",
    "stages: {a: {base: {train: {%}}}}",
    "stages: {a: {needs: {%}}}",
    "stages: {a: {select: {%}}}",
    "stages: {a: {space: {grid: {%}}}}",
    "report: {%}",
    "report: {compare: [{%}]}",
    "report: {compare: [{match: {%}}]}",
    "report: {table: [{%}]}",
    "report: {plot: [{%}]}",
    "report: {analysis: [{essi: {%}}]}",
    "resources: {%}",
    "resources: {alternatives: [{%}]}",
    "retry: {%}",
    "objective: {%}",
    "replicates: {%}",
};

std::string Filled(std::string_view mapping, std::string_view keys) {
  std::string text = Replaced(kSmallSweep, "replicates: {seeds: [1]}\n", "");
  return StrCat(text, Replaced(mapping, "%", keys), "\n");
}

// CF1: the file is refused with the key and both lines.
TEST(Cases, RefusesKeysGivenTwiceAtEveryDepth) {
  for (const std::string_view mapping : kMappings) {
    EXPECT_THAT(ReadFaults(Filled(mapping, "twice: 1,\n  twice: 2")),
                AllOf(HasSubstr("sweep.yaml:15:"), HasSubstr("key 'twice' is given twice"),
                      HasSubstr("on line 14 and on line 15")))
        << mapping;
  }
}

// CF2: a mistyped key is an error with the nearest known one, wherever keys are fixed words.
TEST(Cases, RefusesMistypedKeysAtEveryDepth) {
  const std::vector<std::pair<std::string_view, std::string>> cases = {
      {"space: {grdi: {}}", "nearest: grid"},
      {"space: {grid: {train.optimizer.adm.lr: [1]}}", "nearest: adam"},
      {"space: {zip: {rows: {model.moe.expertss: [1]}}}", "nearest: experts"},
      {"space: {choice: {arm: {a: {mtach: {}}}}}", "nearest: match"},
      {"space: {choice: {arm: {a: {set: {trian.batch: 4}}}}}", "nearest: train"},
      {"space: {choice: {arm: {a: {match: {quantitiy: x}}}}}", "nearest: quantity"},
      {"space: {choice: {arm: {a: {choice: {in: {b: {gird: {}}}}}}}}", "nearest: grid"},
      {"space: {log_uniform: {train.clip_nrm: [1, 2]}}\nstrategy: external", "nearest: clip_norm"},
      {"space: {uniform: {train.clip_norm: {loww: 1}}}", "nearest: low"},
      {"space: {constriants: []}", "nearest: constraints"},
      {"strategy: {asah: {}}", "nearest: asha"},
      {"strategy: {tpe: {startpu: 1}}", "nearest: startup"},
      {"early_stop: {median_stop: {grce: 1}}", "nearest: grace"},
      {"budget: {slot_hour: 1}", "nearest: slot_hours"},
      {"stages: {a: {neds: b}}", "nearest: needs"},
      {"stages: {a: {base: {trian: {}}}}", "nearest: train"},
      {"stages: {a: {base: {train: {bacth: 1}}}}", "nearest: batch"},
      {"stages: {a: {select: {topp: 1}}}", "nearest: top"},
      {"stages: {a: {each: runn}}", "nearest: run"},
      {"stages: {a: {from: bst}}", "nearest: best"},
      {"stages: {a: {prioritty: 1}}", "nearest: priority"},
      {"report: {compares: []}", "nearest: compare"},
      {"report: {compare: [{agianst: a}]}", "nearest: against"},
      {"report: {compare: [{correction: hlm}]}", "nearest: holm"},
      {"report: {table: [{rws: []}]}", "nearest: rows"},
      {"report: {plot: [{bnad: sd}]}", "nearest: band"},
      {"resources: {gpu: 1}", "nearest: gpus"},
      {"resources: {alternatives: [{memry: 1}]}", "nearest: memory"},
      {"retry: {exit_code: [1]}", "nearest: exit_codes"},
      {"objective: {metrc: valid/loss}", "nearest: metric"},
      {"replicates: {seed: [1]}", "nearest: seeds"},
  };
  for (const auto& [text, hint] : cases) {
    const std::string file =
        StrCat(Replaced(kSmallSweep, "replicates: {seeds: [1]}\n", ""), text, "\n");
    EXPECT_THAT(ReadFaults(file), AllOf(HasSubstr("sweep.yaml:14:"), HasSubstr(hint))) << text;
  }
}

// CF3: what a scalar is comes from its field.
TEST(Cases, ReadsScalarsByTheirField) {
  pb::SweepSpec sweep;
  const std::vector<Fault> faults =
      ReadSweepYaml("sweep.yaml", StrCat(kSmallSweep, R"(tags: [no, off, y]
space:
  choice: {arm: {no: {}, yes: {set: {train.batch: 1.6e1}}, 1e3: {set: {train.batch: 0x}}}}
)"),
                    {}, &sweep);
  EXPECT_THAT(ToString(faults), HasSubstr("'0x' is not a whole number"));
  const auto hash = [](std::string_view margin) {
    pb::SweepSpec read;
    EXPECT_THAT(ReadSweepYaml("sweep.yaml",
                              StrCat(kSmallSweep,
                                     "space: {choice: {arm: {no: {}, yes: {set: {train.batch: "
                                     "4}}}}}\nreport: {compare: [{by: arm, against: no, margins: [",
                                     margin, "]}]}\n"),
                              {}, &read),
                IsEmpty());
    EXPECT_EQ(read.report().compare(0).against(), "no");
    EXPECT_EQ(read.space().choice(0).alternatives(1).id(), "yes");
    return SweepHash(read);
  };
  for (const std::string_view margin : {"3.0e-4", "3E-04", "0.0003"}) {
    EXPECT_EQ(hash(margin), hash("3e-4"));
  }
  for (const std::string_view text :
       {"replicates: {seeds: [1], paired: off}", "resources: {exclusive: y}",
        "report: {compare: [{tune: on}]}", "report: {table: [{mean: no}]}"}) {
    EXPECT_THAT(
        ReadFaults(StrCat(Replaced(kSmallSweep, "replicates: {seeds: [1]}\n", ""), text, "\n")),
        HasSubstr("is not a boolean"))
        << text;
  }
  EXPECT_THAT(ReadFaults(StrCat(kSmallSweep, "report: {compare: [{margins: [3e-4x]}]}\n")),
              HasSubstr("'3e-4x' is not a number"));
}

// Options of jobs are the jobs' own; a number has one form all the same.
TEST(Cases, ReadsOptionsOfJobsByValue) {
  const auto key = [](std::string_view options) {
    std::string text =
        Replaced(kSmallSweep, "  kind: train\n",
                 StrCat("  kind: analyze\n  init: {run: a}\n  analyze: {jobs: [", options, "]}\n"));
    const size_t train = text.find("  train:");
    text.erase(train, text.find("replicates:") - train);
    return RunOf(text).run_key;
  };
  EXPECT_EQ(key("{essi: {rank: 1e2, window: 3}}"), key("{essi: {window: 3.0, rank: 100}}"));
  EXPECT_NE(key("{essi: {rank: 100}}"), key("{essi: {rank: 101}}"));
  EXPECT_NE(key("{essi: {\"null\": exact}}"), key("{essi: {\"null\": none}}"));
  EXPECT_THAT(ReadFaults(StrCat(kSmallSweep, "report: {analysis: [{essi: {null: exact}}]}\n")),
              HasSubstr("a key is null; if the word is meant, write \"null\""));
  EXPECT_EQ(key("essi"), key("{essi: {}}"));
  EXPECT_EQ(key("essi"), key("{id: essi}"));
  EXPECT_NE(key("essi, factorial"), key("factorial, essi"));  // results come in this order
}

}  // namespace
}  // namespace switchyard::spec
