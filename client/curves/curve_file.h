#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace switchyard::client {

// One curve that was not recorded by a coordinator.
struct ImportedCurve {
  std::string run;
  uint64_t seed = 0;  // curves of one run that differ in it are repetitions
  std::string metric;
  std::vector<std::pair<uint64_t, double>> points;  // (step, value) by step
};

// What one import has kept, under a name.
struct CurveSet {
  std::string name;
  std::vector<ImportedCurve> curves;  // by run, seed, metric

  std::vector<std::string> Metrics() const;  // each once, sorted
};

struct CurveFileOptions {
  std::vector<std::string> metrics;  // the ones that are read, by the file's names; empty: all
  std::map<std::string, std::string> renames;  // the file's name of a metric -> its name here
};

struct CurveFileNotes {
  std::vector<std::string> ignored_columns;
  uint64_t vector_rows = 0;  // elements of vectors, which are no curves of their own
};

// Reads curves of a CSV text in one of two forms (docs/exports.md):
//   long  columns step, metric (or series), value; maybe run, seed
//   wide  column step; maybe run, seed; every further column is a metric, an empty cell no value
// Names of these columns are taken in any case. `file` is for messages, `name` the run of rows
// without one. kInvalidArgument: the faults, one a line, as "FILE:LINE: column NAME: VALUE …".
Result<CurveSet> ReadCurveFile(const std::string& file, std::string_view text,
                               const std::string& name, const CurveFileOptions& options,
                               CurveFileNotes* notes);

// The set in the long form.
std::string WriteCurveFile(const CurveSet& set);

}  // namespace switchyard::client
