#include <algorithm>
#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/rng.h"
#include "common/base/strings.h"
#include "common/spec/sweep_plan.h"
#include "common/spec/yaml_reader.h"
#include "switchyard/v1/spec.pb.h"
#include "tests/unit/common/spec/spec_builders.h"

// The sweep compiler against a small expander that makes every cell by nested loops.
namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;

// What a cell is, as far as both know: columns in order, and the fields that were laid.
struct ReferenceCell {
  std::vector<std::pair<std::string, std::string>> columns;
  std::vector<std::pair<std::string, uint64_t>> laid;  // field -> value
};
using Cells = std::vector<ReferenceCell>;

// Fields that may have any small number, each used at most once in a space.
constexpr std::string_view kFields[] = {"train.warmup_steps", "train.memory_len",
                                        "train.batch",        "train.target_len",
                                        "model.moe.experts",  "model.transformer_xl.d_inner",
                                        "eval.every_steps",   "model.transformer_xl.clamp_len",
                                        "eval.max_tokens",    "eval.batch"};

uint64_t FieldOf(const pb::RunSpec& run, std::string_view field) {
  if (field == "train.warmup_steps") return run.train().warmup_steps();
  if (field == "train.memory_len") return run.train().memory_len();
  if (field == "train.batch") return run.train().batch();
  if (field == "train.target_len") return run.train().target_len();
  if (field == "model.moe.experts") return run.model().moe().experts();
  if (field == "model.transformer_xl.d_inner") return run.model().transformer_xl().d_inner();
  if (field == "eval.every_steps") return run.eval().every_steps();
  if (field == "model.transformer_xl.clamp_len") return run.model().transformer_xl().clamp_len();
  if (field == "eval.max_tokens") return run.eval().max_tokens();
  return run.eval().batch();
}

// Makes a random space as text, and its cells the slow way.
class RandomSpace {
 public:
  explicit RandomSpace(uint64_t seed) : key_(RandomKey::For(seed, "differential")) {
    for (const std::string_view field : kFields) free_.emplace_back(field);
  }

  std::string text;
  Cells cells;

  void Make() {
    cells = Space("  ", 0);
    if (Below(2) == 0) Constrain();
  }

 private:
  uint64_t Below(uint64_t bound) { return RandomBelow(key_, counter_++, bound); }

  std::string TakeField() {
    const size_t at = Below(free_.size());
    std::string field = free_[at];
    free_.erase(free_.begin() + static_cast<int64_t>(at));
    return field;
  }

  // Distinct numbers that every field takes together with every other.
  std::vector<uint64_t> Values() {
    std::vector<uint64_t> values;
    const uint64_t count = 1 + Below(3);
    while (values.size() < count) {
      const uint64_t value = 4 + Below(20);
      if (std::ranges::find(values, value) == values.end()) values.push_back(value);
    }
    return values;
  }

  static std::string ListText(const std::vector<uint64_t>& values) {
    std::vector<std::string> parts;
    for (const uint64_t value : values) parts.push_back(std::to_string(value));
    return StrCat("[", StrJoin(parts, ", "), "]");
  }

  static Cells Product(const Cells& left, const Cells& right) {
    Cells out;
    for (const ReferenceCell& a : left) {
      for (const ReferenceCell& b : right) {
        ReferenceCell cell = a;
        cell.columns.insert(cell.columns.end(), b.columns.begin(), b.columns.end());
        cell.laid.insert(cell.laid.end(), b.laid.begin(), b.laid.end());
        out.push_back(std::move(cell));
      }
    }
    return out;
  }

  Cells Space(const std::string& indent, int level) {
    Cells all = {{}};
    std::vector<std::string> kinds = {"grid", "zip", "choice"};
    for (size_t i = kinds.size(); i > 1; --i) std::swap(kinds[i - 1], kinds[Below(i)]);
    for (const std::string& kind : kinds) {
      if (free_.size() < 3 || (level > 0 && Below(2) == 0) || level > 2) continue;
      text += StrCat(indent, kind, ":\n");
      const uint64_t axes = kind == "grid" ? 1 + Below(2) : 1;
      for (uint64_t i = 0; i < axes && !free_.empty(); ++i) {
        all = Product(all, kind == "grid"  ? Grid(indent + "  ")
                           : kind == "zip" ? Zip(indent + "  ")
                                           : Choice(indent + "  ", level));
      }
    }
    return all;
  }

  Cells Grid(const std::string& indent) {
    const std::string field = TakeField();
    const std::vector<uint64_t> values = Values();
    text += StrCat(indent, field, ": ", ListText(values), "\n");
    Cells out;
    for (const uint64_t value : values) {
      out.push_back({.columns = {{field, std::to_string(value)}}, .laid = {{field, value}}});
    }
    return out;
  }

  Cells Zip(const std::string& indent) {
    const std::string name = StrCat("zip", ++names_);
    const std::string first = TakeField();
    const std::string second = TakeField();
    const std::vector<uint64_t> rows = Values();
    std::vector<uint64_t> others;
    for (const uint64_t row : rows) others.push_back(row + 1);
    text += StrCat(indent, name, ": {", first, ": ", ListText(rows), ", ", second, ": ",
                   ListText(others), "}\n");
    Cells out;
    for (const uint64_t row : rows) {
      out.push_back({.columns = {{name, StrCat("[", row, ", ", row + 1, "]")}},
                     .laid = {{first, row}, {second, row + 1}}});
    }
    return out;
  }

  Cells Choice(const std::string& indent, int level) {
    const std::string name = StrCat("choice", ++names_);
    text += StrCat(indent, name, ":\n");
    Cells out;
    const uint64_t count = 1 + Below(3);
    for (uint64_t i = 0; i < count; ++i) {
      const std::string alternative = StrCat("a", i);
      text += StrCat(indent, "  ", alternative, ":\n");
      const size_t before = text.size();
      ReferenceCell own{.columns = {{name, alternative}}};
      if (Below(2) == 0 && !free_.empty()) {
        const std::string field = TakeField();
        const uint64_t value = 4 + Below(20);
        text += StrCat(indent, "    set: {", field, ": ", value, "}\n");
        own.laid.emplace_back(field, value);
      }
      const Cells inner = Space(indent + "    ", level + 1);
      if (text.size() == before) {
        text.pop_back();
        text += " {}\n";
      }
      const Cells made = Product({own}, inner);
      out.insert(out.end(), made.begin(), made.end());
    }
    return out;
  }

  // `FIELD <= NUMBER`: drops the cells where something larger was laid on it.
  void Constrain() {
    std::vector<std::string> laid;
    for (const ReferenceCell& cell : cells) {
      for (const auto& [field, value] : cell.laid) laid.push_back(field);
    }
    if (laid.empty()) return;
    const std::string field = laid[Below(laid.size())];
    const uint64_t bound = 4 + Below(20);
    text += StrCat("  constraints: [\"", field, " <= ", bound, " or ", field, " > 30\"]\n");
    std::erase_if(cells, [&](const ReferenceCell& cell) {
      return std::ranges::any_of(
          cell.laid, [&](const auto& each) { return each.first == field && each.second > bound; });
    });
  }

  RandomKey key_;
  uint64_t counter_ = 0;
  uint64_t names_ = 0;
  std::vector<std::string> free_;
};

// The base has numbers above 30 in all of the fields, so that a constraint never drops a cell for
// what was not laid.
std::string BaseText() {
  std::string text(kSmallSweep);
  text = Replaced(text, "experts: 8", "experts: 32");
  text = Replaced(text, "batch: 8", "batch: 32\n    micro_batch: 1\n    warmup_steps: 40");
  text = Replaced(text, "d_inner: 128", "d_inner: 128, clamp_len: 64");
  return Replaced(text, "  train:\n",
                  "  eval: {every_steps: 50, max_tokens: 1000, batch: 32}\n  train:\n");
}

// 10,000 specs when SWITCHYARD_LONG_TESTS is set, 400 otherwise. A failure prints its seed.
TEST(Differential, ExpandsLikeNestedLoops) {
  const uint64_t count = std::getenv("SWITCHYARD_LONG_TESTS") != nullptr ? 10'000 : 400;
  const std::string base = BaseText();
  uint64_t cells_seen = 0;
  for (uint64_t seed = 1; seed <= count && !::testing::Test::HasFailure(); ++seed) {
    RandomSpace space(seed);
    space.Make();
    const std::string text = StrCat(base, space.text.empty() ? "" : "space:\n", space.text);
    SCOPED_TRACE(StrCat("seed ", seed, "\n", text));
    pb::SweepSpec sweep;
    std::vector<Fault> faults = ReadSweepYaml("sweep.yaml", text, {}, &sweep);
    const auto plan = faults.empty() ? SweepPlan::Make(sweep, &faults, 50) : nullptr;
    if (space.cells.empty()) {
      EXPECT_THAT(ToString(faults), ::testing::HasSubstr("drop all of the"));
      continue;
    }
    ASSERT_NE(plan, nullptr) << ToString(faults);
    ASSERT_EQ(plan->cell_count(), space.cells.size());
    // Large spaces at both ends and here and there: any cell comes without the others.
    const uint64_t step = std::max<uint64_t>(1, plan->cell_count() / 40);
    for (uint64_t cell = 1; cell <= plan->cell_count(); cell += step) {
      const PlannedRun run = plan->At(cell, &faults);
      ASSERT_TRUE(faults.empty()) << ToString(faults);
      const ReferenceCell& expected = space.cells[cell - 1];
      ASSERT_EQ(run.columns, expected.columns) << "cell " << cell;
      for (const auto& [field, value] : expected.laid) {
        ASSERT_EQ(FieldOf(*run.run, field), value) << "cell " << cell << " " << field;
      }
      ++cells_seen;
    }
  }
  EXPECT_GT(cells_seen, count);
}

}  // namespace
}  // namespace switchyard::spec
