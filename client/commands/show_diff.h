#pragma once

#include <string>
#include <vector>

#include "client/output/value.h"

namespace switchyard::client {

struct FieldDifference {
  std::string path;  // dotted, as in a sweep file
  std::string left;  // as text; "-": not there, which is the default
  std::string right;
};

// Fields of two documents whose values differ, in the order of the documents: those of the left
// one, then what only the right one has. Lists of scalars are one value each.
std::vector<FieldDifference> DiffDocuments(const Value& left, const Value& right);

}  // namespace switchyard::client
