#include "common/spec/fault.h"

namespace switchyard::spec {

std::string Fault::ToString() const {
  std::string text;
  for (const std::string* part : {&location, &path}) {
    if (!part->empty()) text += *part + ": ";
  }
  return text + message;
}

std::string ToString(const std::vector<Fault>& faults) {
  std::string text;
  for (const Fault& fault : faults) {
    if (!text.empty()) text += '\n';
    text += fault.ToString();
  }
  return text;
}

}  // namespace switchyard::spec
