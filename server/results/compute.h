#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "server/results/arms.h"

namespace switchyard::v1 {
class CompareSpec;
class RunSpec;
}  // namespace switchyard::v1
namespace switchyard::store {
class ReadStore;
}

// What arms were trained with: tokens, FLOPs, data, causality. Read before a difference between
// them is believed.
namespace switchyard::results {

using CellDocuments = std::map<uint64_t, v1::RunSpec>;

// The documents of the cells of `runs`; the runs of a cell differ by their seed only. kDataLoss:
// one cannot be read.
Result<CellDocuments> ReadDocuments(store::ReadStore& store, const ArmRuns& runs);

// Tokens of one update, all sequences.
double TokensPerStep(const v1::RunSpec& run);

// Warnings about the arms: tokens or active FLOPs of training more than 1 % apart, other data or
// evaluation, other kinds of devices, routers whose scores of a token depend on later tokens.
// kFailedPrecondition: arms are further apart than `compare.match` allows.
Result<std::vector<std::string>> CheckArms(const v1::CompareSpec& compare,
                                           const CellDocuments& documents, const ArmRuns& runs);

// The value of each run's metric at the last evaluation up to `compare.at` (tokens, train.flops, or
// seconds of training along the canonical curve) in place of the best or last one. Where
// eval.max_tokens caps evaluations, the one of the last step is left out: it scores other text. A
// run that has not come so far and has not ended stays unfinished.
//   kResourceExhausted  more than kCurvesMax runs
inline constexpr size_t kCurvesMax = 10'000;
Status TakeValuesAt(store::ReadStore& store, const v1::CompareSpec& compare,
                    const CellDocuments& documents, ArmRuns* runs);

}  // namespace switchyard::results
