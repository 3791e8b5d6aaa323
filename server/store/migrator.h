#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "common/base/status.h"
#include "server/store/sqlite.h"

namespace switchyard::store {

// One numbered file of migrations/, embedded at build.
struct Migration {
  int64_t version = 0;
  std::string_view name;  // "0001_initial"
  std::string_view sql;
};

// All, by version from 1 without gaps.
std::span<const Migration> EmbeddedMigrations();

// Brings the schema to the newest version, each migration in one immediate transaction with its
// checksum and `user_version`. A file that has rows already is copied to
// `<path>.before-<version>` first. Refused with kFailedPrecondition, changing nothing: a file of
// another program, a schema newer than `migrations`, a migration whose text differs from the one
// that was applied.
Status Migrate(Connection& writer, std::span<const Migration> migrations, int64_t now_unix_ms);

}  // namespace switchyard::store
