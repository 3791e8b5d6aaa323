#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/spec/document.h"
#include "common/spec/fault.h"

namespace switchyard::v1 {
class PolicySpec;
class RunSpec;
class SweepSpec;
}  // namespace switchyard::v1

namespace switchyard::spec {

inline constexpr uint64_t kRunCountMax = 1'000'000;
inline constexpr size_t kAxisCountMax = 64;

struct Axis {
  std::string path;
  bool is_policy = false;
  std::vector<Node> values;
};

// A sweep with preset, base and --set laid over each other, its axes ready to be laid on top.
// Immutable once made.
class SweepLayout {
 public:
  // Null, with faults, when the base or an axis is wrong in itself: unknown paths, values of the
  // wrong type or given twice, overlapping axes, more than kRunCountMax runs. `axes`: the grid with
  // its places in the file, or null to take the sweep's.
  static std::unique_ptr<SweepLayout> Make(const v1::SweepSpec& sweep,
                                           const std::vector<Axis>* axes,
                                           std::string_view file_name, std::vector<Fault>* faults);
  ~SweepLayout();

  const v1::RunSpec& base() const { return *base_; }
  const std::vector<Axis>& axes() const { return axes_; }
  const std::vector<uint64_t>& seeds() const { return seeds_; }
  bool is_paired() const { return is_paired_; }
  uint64_t cell_count() const { return cell_count_; }
  uint64_t run_count() const { return cell_count_ * seeds_.size(); }

  // True when the sweep itself sets something at or below `path` of the RunSpec: by `base` or
  // --set, not by a preset or an axis.
  bool IsWritten(std::string_view path) const;

  // Index of the value that each axis has in `cell` (from 0), the last axis fastest.
  std::vector<size_t> Choice(uint64_t cell) const;
  // Base and policy with the chosen values laid on them; as written, without defaults.
  void Lay(const std::vector<size_t>& choice, v1::RunSpec* run, v1::PolicySpec* policy,
           std::vector<Fault>* faults) const;

 private:
  SweepLayout();

  bool LayBase(const v1::SweepSpec& sweep, std::vector<Fault>* faults);
  bool TakeAxes(const v1::SweepSpec& sweep, const std::vector<Axis>* axes,
                std::string_view file_name, std::vector<Fault>* faults);
  void CheckValues(std::string_view file_name, std::vector<Fault>* faults) const;

  std::unique_ptr<v1::RunSpec> base_;
  std::unique_ptr<v1::RunSpec> own_base_;  // without the preset
  std::unique_ptr<v1::PolicySpec> policy_;
  std::vector<Axis> axes_;
  std::vector<size_t> order_;  // in which axes are laid: kinds first, then wholes before parts
  std::vector<uint64_t> seeds_;
  bool is_paired_ = true;
  uint64_t cell_count_ = 1;
};

// The layout of a sweep that ValidateSweep finds right; else null, with its faults.
std::unique_ptr<SweepLayout> CheckSweep(const v1::SweepSpec& sweep, std::vector<Fault>* faults);

// "a.b" lies at or below "a".
bool IsAtOrBelow(std::string_view path, std::string_view ancestor);

}  // namespace switchyard::spec
