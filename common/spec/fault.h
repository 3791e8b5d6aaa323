#pragma once

#include <string>
#include <vector>

namespace switchyard::spec {

// One thing wrong with a document. All faults are reported, not only the first.
struct Fault {
  // "sweep.yaml:12:7" where there is a text, else empty.
  std::string location;
  // Dotted path of the field: "base.train.optimizer.adam.lr".
  std::string path;
  // With the value and what would be right: "top_kk is not a field of MoeSpec; nearest: top_k".
  std::string message;

  // "sweep.yaml:12:7: base.model.moe.top_kk: ..."
  std::string ToString() const;
  bool operator==(const Fault&) const = default;
};

// One line each.
std::string ToString(const std::vector<Fault>& faults);

}  // namespace switchyard::spec
