#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "server/results/comparison.h"

// How many seeds a comparison needs, and what they cost, from the spread over a pilot's seeds
// (analyses N17). The difference that the pilot shows is never used.
namespace switchyard::results {

struct PowerQuestion {
  CompareQuestion compare;
  // To detect, in the metric's unit; 0: as large as each margin.
  double difference = 0;
  double power = 0.8;
};

struct PowerGoal {
  bool is_equivalence = false;  // else detecting a difference
  double effect = 0;            // margin or difference, in the metric's unit
  // Pairs with the pilot's deviation, and with its upper 80 % limit, which a plan should take;
  // none: more than stats::kMostPairs.
  std::optional<uint64_t> pairs_at_sd;
  std::optional<uint64_t> pairs;
};

struct PowerEstimate {
  std::string arm;
  std::string reference;
  std::string within;
  uint64_t pilot_pairs = 0;
  double sd = 0;  // of the paired differences
  double sd_upper = 0;
  double correlation = 0;  // of the arms over seeds
  std::vector<PowerGoal> goals;
};

struct ArmCost {
  std::string arm;
  uint64_t runs = 0;      // succeeded
  double slot_hours = 0;  // mean of one
};

struct PowerAnswer {
  ComparisonSetup setup;
  double alpha_each = 0.05;  // of one comparison of the family at one look
  std::vector<PowerEstimate> estimates;
  std::vector<ArmCost> costs;
  bool is_gpu = false;
  // Enough for every goal of every pair; none: a goal is out of reach.
  std::optional<uint64_t> seeds;
  double slot_hours = 0;  // of all arms and cells with that many seeds
};

// As SetUp, and
//   kInvalidArgument     neither a margin nor a difference; a test without pairs
//   kFailedPrecondition  fewer than two pairs, or pairs without any spread
Result<PowerAnswer> EstimatePower(store::ReadStore& store, const store::SweepInfo& sweep,
                                  const PowerQuestion& question);

}  // namespace switchyard::results
