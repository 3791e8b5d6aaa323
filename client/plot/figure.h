#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace switchyard::client {

// One place of a curve: the mean over runs, and the band around it (both equal to the mean: none).
// NaN where nothing finite was recorded, which leaves a gap.
struct BandPoint {
  double x = 0;
  double mean = 0;
  double low = 0;
  double high = 0;
};
struct BandLine {
  std::string label;
  std::vector<BandPoint> points;  // by x
  bool is_dashed = false;         // imported ones
};

struct LabelledPoint {
  double x = 0;
  double y = 0;
  std::string label;
};
struct PointGroup {
  std::string label;
  std::vector<LabelledPoint> points;
};

struct Bar {
  std::string label;
  double mean = 0;
  double low = 0;
  double high = 0;
};

// Values by row and column; NaN is drawn grey.
struct Matrix {
  std::string title;
  uint64_t rows = 0;
  uint64_t columns = 0;
  std::vector<double> values;              // row after row
  std::vector<std::string> row_labels;     // empty: numbers from 0
  std::vector<std::string> column_labels;  // empty: numbers from 0
};

// An axis of parallel coordinates: places of its ticks in 0..1.
struct ParallelAxis {
  std::string name;
  std::vector<std::pair<double, std::string>> ticks;
};
struct ParallelLine {
  std::string label;
  std::vector<double> places;  // one per axis, 0..1; NaN: the run has no value there
  double color = 0;            // value of the objective
};

// What is drawn, without how. Texts may hold anything: they are data to every renderer.
struct Figure {
  enum class Kind { kCurves, kPoints, kBars, kHeatMap, kParallel };
  Kind kind = Kind::kCurves;
  std::string title;
  std::string x_label;
  std::string y_label;
  bool has_log_x = false;
  bool has_log_y = false;
  std::vector<BandLine> lines;                   // kCurves
  std::vector<PointGroup> groups;                // kPoints
  std::vector<std::pair<double, double>> front;  // kPoints: the Pareto front by x
  std::vector<Bar> bars;                         // kBars
  std::vector<Matrix> matrices;                  // kHeatMap, all on one scale
  std::vector<ParallelAxis> axes;                // kParallel
  std::vector<ParallelLine> parallel;            // kParallel
};

}  // namespace switchyard::client
