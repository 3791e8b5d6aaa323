#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace switchyard::model {

// Reads the fields of one JSON object and keeps what is wrong with them. A field that nobody asked
// for is a fault too, unless it is null, false or known to be without effect.
class ConfigFields {
 public:
  // kInvalidArgument: not JSON, not an object, a key twice, over 1 MiB.
  static Result<std::unique_ptr<ConfigFields>> Parse(std::string_view text, std::string_view label);
  ~ConfigFields();

  // Present and not null.
  bool Has(std::string_view name) const;
  // A whole number in [min, max]. Absent or null: a fault.
  uint32_t Count(std::string_view name, uint32_t min, uint32_t max);
  // The same, `otherwise` when absent or null.
  uint32_t CountOr(std::string_view name, uint32_t min, uint32_t max, uint32_t otherwise);
  // A finite number.
  double Number(std::string_view name);
  double NumberOr(std::string_view name, double otherwise);
  bool FlagOr(std::string_view name, bool otherwise);
  std::string TextOr(std::string_view name, std::string_view otherwise);
  // Whole numbers; empty when absent or null.
  std::vector<uint32_t> Counts(std::string_view name);
  // Texts; empty when absent or null.
  std::vector<std::string> Texts(std::string_view name);
  // The object of that name, with faults and labels of its own; null when absent or null.
  std::unique_ptr<ConfigFields> Object(std::string_view name);

  // Notes a fault of a field.
  void Fail(std::string_view name, std::string_view what);
  // Takes over the faults of an object inside this one.
  void Adopt(ConfigFields& inner);
  // Asked for, whatever its value.
  void Ignore(std::string_view name);
  // Notes fields that nobody asked for.
  void FailUnread();

  // kInvalidArgument with all faults, one a line.
  Status status() const;

 private:
  struct Document;
  ConfigFields(std::unique_ptr<Document> document, std::string label);
  std::string Shown(std::string_view name) const;

  std::unique_ptr<Document> document_;
  std::string label_;
  std::vector<std::string> faults_;
};

}  // namespace switchyard::model
