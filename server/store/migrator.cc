#include "server/store/migrator.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string>

#include "common/base/failpoint.h"
#include "common/base/file.h"
#include "common/base/sha256.h"
#include "common/base/strings.h"

namespace switchyard::store {
namespace {

// "swyd", in the file's header: what `file` shows and what tells our files from others.
constexpr int64_t kApplicationId = 0x73777964;

Result<int64_t> ReadInt(Connection& connection, std::string_view sql) {
  Statement read = connection.Prepare(sql);
  SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
  if (!has_row) return Internal(StrCat("no row from ", sql));
  return read.Int(0);
}

Status CheckApplied(Connection& writer, std::span<const Migration> migrations, int64_t version) {
  Statement read = writer.Prepare("SELECT version, sha256 FROM migrations ORDER BY version");
  int64_t seen = 0;
  while (true) {
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    if (!has_row) break;
    const int64_t applied = read.Int(0);
    if (applied != ++seen || applied > static_cast<int64_t>(migrations.size())) {
      return FailedPrecondition(StrCat("database ", writer.path(), ": migration ", applied,
                                       " is recorded where ", seen, " was expected"));
    }
    const Migration& migration = migrations[static_cast<size_t>(applied - 1)];
    if (read.Text(1) != Sha256Hex(migration.sql)) {
      return FailedPrecondition(StrCat("database ", writer.path(), ": migration ", migration.name,
                                       " was applied with another text (", read.Text(1), ")"));
    }
  }
  if (seen != version) {
    return FailedPrecondition(StrCat("database ", writer.path(), ": schema version ", version,
                                     " but ", seen, " migrations recorded"));
  }
  return OkStatus();
}

// The database as it is before the upgrade. Always a new copy: one that is there may be of an
// earlier try, after which the older program went on. It gets its name once it is whole.
Status CopyAside(Connection& writer, int64_t version) {
  const std::string target = StrCat(writer.path(), ".before-", version + 1);
  const std::string aside = target + ".tmp";
  unlink(aside.c_str());
  {
    Statement copy = writer.Prepare("VACUUM INTO ?1");
    SWITCHYARD_RETURN_IF_ERROR(copy.Bind(1, aside).Run());
  }
  const UniqueFd fd(open(aside.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.is_valid()) return ErrnoStatus("open", aside, errno);
  if (fsync(fd.get()) != 0) return ErrnoStatus("sync", aside, errno);
  if (rename(aside.c_str(), target.c_str()) != 0) return ErrnoStatus("rename", aside, errno);
  const std::string parent = std::filesystem::path(target).parent_path().string();
  return SyncDirectory(parent.empty() ? "." : parent);
}

}  // namespace

Status Migrate(Connection& writer, std::span<const Migration> migrations, int64_t now_unix_ms) {
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t version, ReadInt(writer, "PRAGMA user_version"));
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t application, ReadInt(writer, "PRAGMA application_id"));
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t objects,
                              ReadInt(writer, "SELECT count(*) FROM sqlite_master"));
  if (application != kApplicationId && (application != 0 || objects != 0)) {
    return FailedPrecondition(StrCat("database ", writer.path(),
                                     " belongs to another program (application id ", application,
                                     ")"));
  }
  const auto newest = static_cast<int64_t>(migrations.size());
  if (version > newest) {
    return FailedPrecondition(StrCat("database ", writer.path(), " has schema ", version,
                                     ", newer than this program's ", newest));
  }
  if (version > 0) SWITCHYARD_RETURN_IF_ERROR(CheckApplied(writer, migrations, version));
  if (version > 0 && version < newest) SWITCHYARD_RETURN_IF_ERROR(CopyAside(writer, version));
  for (const Migration& migration : migrations.subspan(static_cast<size_t>(version))) {
    SWITCHYARD_RETURN_IF_ERROR(writer.Transact([&]() -> Status {
      if (migration.version == 1) {
        SWITCHYARD_RETURN_IF_ERROR(
            writer.Execute(StrCat("PRAGMA application_id=", kApplicationId)));
        SWITCHYARD_RETURN_IF_ERROR(
            writer.Execute("CREATE TABLE migrations(version INTEGER PRIMARY KEY, name TEXT NOT "
                           "NULL, sha256 TEXT NOT NULL, applied_ms INTEGER NOT NULL) STRICT"));
      }
      SWITCHYARD_FAILPOINT("migrate.begin");
      SWITCHYARD_RETURN_IF_ERROR(writer.Execute(std::string(migration.sql)));
      SWITCHYARD_FAILPOINT("migrate.applied");
      Statement insert = writer.Prepare(
          "INSERT INTO migrations(version, name, sha256, applied_ms) VALUES (?1, ?2, ?3, ?4)");
      const std::string digest = Sha256Hex(migration.sql);
      insert.Bind(1, migration.version).Bind(2, migration.name).Bind(3, digest);
      insert.Bind(4, now_unix_ms);
      SWITCHYARD_RETURN_IF_ERROR(insert.Run());
      SWITCHYARD_FAILPOINT("migrate.recorded");
      return writer.Execute(StrCat("PRAGMA user_version=", migration.version));
    }));
  }
  return OkStatus();
}

}  // namespace switchyard::store
