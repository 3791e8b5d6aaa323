#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace switchyard::client {

// What a trainer reported, without its timings: series -> step -> bits of the values (one for a
// scalar).
class ReportedCurves {
 public:
  // Takes one line of the event stream; lines that are no metrics pass. A step that comes again
  // must say the same: what differs is kept as a difference in words.
  Status Add(std::string_view line);

  // In words, where the two first differ; empty when every point of one is in the other with the
  // same bits.
  std::string FirstDifference(const ReportedCurves& other) const;
  // Of points that came twice with different values; empty when there is none.
  const std::string& contradiction() const { return contradiction_; }
  uint64_t points() const;
  uint64_t last_step() const { return last_step_; }
  // Steps of the checkpoints that were announced.
  const std::set<uint64_t>& checkpoints() const { return checkpoints_; }
  // Of a scalar series, by step.
  std::map<uint64_t, double> Scalars(const std::string& series) const;

 private:
  std::map<std::string, std::map<uint64_t, std::vector<uint64_t>>> series_;
  std::set<uint64_t> checkpoints_;
  std::string contradiction_;
  uint64_t last_step_ = 0;
};

struct TensorComparison {
  uint64_t tensors = 0;
  uint64_t bytes = 0;
  // In words: file, tensor, element and both values. Empty when every bit is the same.
  std::string first_difference;
};

// The tensors (parameters, buffers, optimizer state, segment memory) of two checkpoint folders,
// byte by byte. Errors as SafetensorsFile::Open.
Result<TensorComparison> CompareCheckpoints(const std::string& left, const std::string& right);

}  // namespace switchyard::client
