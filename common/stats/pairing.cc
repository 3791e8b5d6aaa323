#include "common/stats/pairing.h"

#include <algorithm>
#include <set>

#include "common/base/strings.h"

namespace switchyard::stats {

Arms GroupArms(const std::vector<const Observation*>& observations) {
  std::set<std::string> pools;
  std::map<std::string, std::map<uint64_t, std::map<std::string, std::vector<double>>>> cells;
  Arms arms;
  for (const Observation* o : observations) {
    pools.insert(o->pool);
    Arm& arm = arms[o->arm];
    if (o->absence != Absence::kNone) {
      Absence& absence = arm.absent[o->seed];
      absence = std::max(absence, o->absence);
      continue;
    }
    cells[o->arm][o->seed][o->pool].push_back(o->value);
    if (!o->parts.empty()) arm.parts[o->seed] = o->parts;
  }
  for (auto& [name, seeds] : cells) {
    Arm& arm = arms[name];
    for (auto& [seed, by_pool] : seeds) {
      if (arm.absent.contains(seed)) continue;
      if (by_pool.size() != pools.size()) {
        arm.absent[seed] = Absence::kUnfinished;
        continue;
      }
      std::vector<double> means;
      for (const auto& [pool, values] : by_pool) means.push_back(Mean(values));
      arm.values[seed] = Mean(means);
    }
  }
  return arms;
}

std::vector<double> Values(const Arm& arm) {
  std::vector<double> values;
  for (const auto& [seed, value] : arm.values) values.push_back(value);
  return values;
}

ArmSummary Summarise(const std::vector<double>& values) {
  return {.n = values.size(), .mean = Mean(values), .sd = StandardDeviation(values)};
}

Pairs PairUp(const std::string& name, const Arm& arm, const std::string& reference_name,
             const Arm& reference) {
  Pairs pairs;
  std::set<uint64_t> seeds;
  for (const Arm* side : {&arm, &reference}) {
    for (const auto& [seed, value] : side->values) seeds.insert(seed);
    for (const auto& [seed, absence] : side->absent) seeds.insert(seed);
  }
  const auto note = [&](const std::string& side_name, const Arm& side, uint64_t seed) {
    if (side.values.contains(seed)) return true;
    const auto it = side.absent.find(seed);
    pairs.missing.push_back(
        {.seed = seed,
         .arm = side_name,
         .absence = it == side.absent.end() ? Absence::kUnfinished : it->second});
    return false;
  };
  for (const uint64_t seed : seeds) {
    const bool has_arm = note(name, arm, seed);
    const bool has_reference = note(reference_name, reference, seed);
    if (!has_arm || !has_reference) continue;
    pairs.arm.push_back(arm.values.at(seed));
    pairs.reference.push_back(reference.values.at(seed));
    pairs.differences.push_back(pairs.arm.back() - pairs.reference.back());
  }
  return pairs;
}

Result<SeedBatch> PartDifferences(const std::string& name, const Arm& arm,
                                  const std::string& reference_name, const Arm& reference) {
  SeedBatch out;
  for (const auto& [seed, parts] : arm.parts) {
    const auto other = reference.parts.find(seed);
    if (other == reference.parts.end()) continue;
    if (parts.size() != other->second.size() || (out.seeds > 0 && parts.size() != out.batches)) {
      return FailedPrecondition(StrCat("seed ", seed, ": ", name, " has ", parts.size(),
                                       " batches or examples and ", reference_name, " has ",
                                       other->second.size(),
                                       "; they must be the same ones in the same order"));
    }
    out.batches = parts.size();
    ++out.seeds;
    for (size_t i = 0; i < parts.size(); ++i) out.values.push_back(parts[i] - other->second[i]);
  }
  if (out.seeds == 0) {
    return FailedPrecondition(
        StrCat("no seed has values by batch or example in both ", name, " and ", reference_name));
  }
  return out;
}

}  // namespace switchyard::stats
