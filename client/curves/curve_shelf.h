#pragma once

#include <functional>
#include <string>
#include <vector>

#include "client/curves/curve_file.h"
#include "common/base/status.h"

namespace switchyard::client {

// Imported curves of this user, a file per set below
// ${XDG_DATA_HOME:-~/.local/share}/switchyard/curves.
class CurveShelf {
 public:
  // `getenv` as the function of that name. kFailedPrecondition: neither variable is set.
  static Result<CurveShelf> Open(const std::function<const char*(const char*)>& getenv);

  // kInvalidArgument: no name that a sweep could have. kAlreadyExists: there is a set of this name
  // and `replaces` is false.
  Status Put(const CurveSet& set, bool replaces) const;
  // kNotFound names the sets there are.
  Result<CurveSet> Get(const std::string& name) const;
  Status Remove(const std::string& name) const;
  // Sorted; empty when nothing was ever imported.
  Result<std::vector<std::string>> Names() const;
  const std::string& folder() const { return folder_; }

 private:
  explicit CurveShelf(std::string folder) : folder_(std::move(folder)) {}
  Result<std::string> PathOf(const std::string& name) const;
  Status NotThere(const std::string& name) const;

  std::string folder_;
};

}  // namespace switchyard::client
