#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "client/connection.h"
#include "client/console.h"
#include "client/output/table.h"
#include "common/base/status.h"

namespace switchyard::client {

// What every verb gets: where to write, in which form, and how to reach the coordinator.
// One thread only.
struct Context {
  Console console;
  Format format = Format::kTable;
  std::string server;  // --server
  double timeout_seconds = 30;
  std::function<const char*(const char*)> getenv;

  // Chooses the server; no call is made yet.
  Result<std::unique_ptr<Connection>> Connect() const;
  void Print(std::string_view text) const;
  // A line to standard error that is not an error.
  void Note(std::string_view text) const;
  // "switchyard: message" to standard error; returns the exit code.
  int Fail(const Status& status) const;
  void Show(const Listing& listing) const;
  bool is_for_people() const { return format == Format::kTable; }
};

}  // namespace switchyard::client
