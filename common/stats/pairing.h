#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/stats/bootstrap.h"
#include "common/stats/comparison.h"

// Which values of two arms belong together: the ground that a comparison stands on.
namespace switchyard::stats {

// One arm under one value of `within`: a value for each seed that has all of it.
struct Arm {
  std::map<uint64_t, double> values;
  std::map<uint64_t, std::vector<double>> parts;
  std::map<uint64_t, Absence> absent;
};
using Arms = std::map<std::string, Arm>;

// Children of a (pool, seed) are averaged, then pools; a seed without every pool is absent.
Arms GroupArms(const std::vector<const Observation*>& observations);

// By seed.
std::vector<double> Values(const Arm& arm);
ArmSummary Summarise(const std::vector<double>& values);

struct Pairs {
  std::vector<double> arm;
  std::vector<double> reference;
  std::vector<double> differences;
  std::vector<MissingSeed> missing;
};
// The seeds that both arms have, in order; the others are named.
Pairs PairUp(const std::string& name, const Arm& arm, const std::string& reference_name,
             const Arm& reference);

// Differences of the parts of the seeds that both arms have. kFailedPrecondition: lengths differ,
// or no seed has parts in both.
Result<SeedBatch> PartDifferences(const std::string& name, const Arm& arm,
                                  const std::string& reference_name, const Arm& reference);

}  // namespace switchyard::stats
