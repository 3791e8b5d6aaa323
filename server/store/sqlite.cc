#include "server/store/sqlite.h"

#include <sqlite3.h>
#include <sys/stat.h>

#include <array>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/base/clock.h"
#include "common/base/strings.h"

namespace switchyard::store {
namespace {

constexpr int kBusyTimeoutMs = 5000;
constexpr int kProgressOps = 20000;
constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kWalFrameBytes = kPageBytes + 24;

Code CodeOf(int extended) {
  switch (extended) {
    case SQLITE_CONSTRAINT_UNIQUE:
    case SQLITE_CONSTRAINT_PRIMARYKEY:
    case SQLITE_CONSTRAINT_ROWID:
      return Code::kAlreadyExists;
    default:
      break;
  }
  switch (extended & 0xff) {
    case SQLITE_CONSTRAINT:
      return Code::kFailedPrecondition;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_IOERR:
      return Code::kUnavailable;
    case SQLITE_FULL:
    case SQLITE_TOOBIG:
    case SQLITE_NOMEM:
      return Code::kResourceExhausted;
    case SQLITE_INTERRUPT:
      return Code::kDeadlineExceeded;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return Code::kDataLoss;
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH:
      return Code::kPermissionDenied;
    default:
      return Code::kInternal;
  }
}

}  // namespace

struct Connection::Cache {
  struct Entry {
    sqlite3_stmt* stmt = nullptr;
    bool is_lent = false;
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  std::unordered_map<std::string, Entry, Hash, std::equal_to<>> entries;
  std::unordered_map<sqlite3_stmt*, Entry*> by_stmt;
};

Statement::~Statement() {
  if (stmt_ == nullptr) return;
  sqlite3_reset(stmt_);
  sqlite3_clear_bindings(stmt_);
  if (const auto it = connection_->cache_->by_stmt.find(stmt_);
      it != connection_->cache_->by_stmt.end()) {
    it->second->is_lent = false;
  }
}

void Statement::Note(int code) {
  if (code != SQLITE_OK && error_.ok()) error_ = connection_->Error(code, "bind");
}

Statement& Statement::Bind(int index, int64_t value) {
  if (stmt_ != nullptr) Note(sqlite3_bind_int64(stmt_, index, value));
  return *this;
}

Statement& Statement::Bind(int index, std::string_view text) {
  if (stmt_ != nullptr) {
    Note(sqlite3_bind_text64(stmt_, index, text.data() == nullptr ? "" : text.data(), text.size(),
                             SQLITE_STATIC, SQLITE_UTF8));
  }
  return *this;
}

Statement& Statement::BindBlob(int index, std::string_view bytes) {
  if (stmt_ != nullptr) {
    Note(bytes.empty()
             ? sqlite3_bind_zeroblob(stmt_, index, 0)
             : sqlite3_bind_blob64(stmt_, index, bytes.data(), bytes.size(), SQLITE_STATIC));
  }
  return *this;
}

Statement& Statement::Bind(int index, const Uuid& id) {
  std::array<unsigned char, 16> bytes;
  for (unsigned i = 0; i < 8; ++i) {
    bytes[i] = static_cast<unsigned char>(id.high >> (56 - 8 * i));
    bytes[8 + i] = static_cast<unsigned char>(id.low >> (56 - 8 * i));
  }
  if (stmt_ != nullptr) {
    Note(sqlite3_bind_blob(stmt_, index, bytes.data(), bytes.size(), SQLITE_TRANSIENT));
  }
  return *this;
}

Statement& Statement::BindNull(int index) {
  if (stmt_ != nullptr) Note(sqlite3_bind_null(stmt_, index));
  return *this;
}

Status Statement::Run() {
  SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, Step());
  Reset();
  if (has_row) return Internal("a statement without rows gave one");
  return OkStatus();
}

Result<bool> Statement::Step() {
  if (!error_.ok()) return error_;
  const int code = sqlite3_step(stmt_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  Status error = connection_->Error(code, sqlite3_sql(stmt_));
  sqlite3_reset(stmt_);
  return error;
}

void Statement::Reset() {
  if (stmt_ != nullptr) sqlite3_reset(stmt_);
}

int64_t Statement::Int(int column) const { return sqlite3_column_int64(stmt_, column); }

bool Statement::IsNull(int column) const {
  return sqlite3_column_type(stmt_, column) == SQLITE_NULL;
}

std::string_view Statement::Bytes(int column) const {
  const auto* data = static_cast<const char*>(sqlite3_column_blob(stmt_, column));
  const auto size = static_cast<size_t>(sqlite3_column_bytes(stmt_, column));
  return data == nullptr ? std::string_view() : std::string_view(data, size);
}

Uuid Statement::Id(int column) const {
  const std::string_view bytes = Bytes(column);
  if (bytes.size() != 16) return {};
  Uuid id;
  for (unsigned i = 0; i < 8; ++i) {
    id.high = id.high << 8 | static_cast<unsigned char>(bytes[i]);
    id.low = id.low << 8 | static_cast<unsigned char>(bytes[8 + i]);
  }
  return id;
}

Connection::Connection(std::string path, sqlite3* db)
    : path_(std::move(path)), db_(db), cache_(std::make_unique<Cache>()) {}

Connection::~Connection() {
  for (auto& [sql, entry] : cache_->entries) sqlite3_finalize(entry.stmt);
  sqlite3_close_v2(db_);
}

Status Connection::Error(int extended_code, std::string_view what) const {
  const Code code = CodeOf(extended_code);
  return {code, StrCat("database ", path_, ": ", sqlite3_errmsg(db_), " (", extended_code, ") in ",
                       what.substr(0, 160))};
}

Result<std::unique_ptr<Connection>> Connection::Open(const std::string& path, Mode mode) {
  const bool is_writer = mode == Mode::kWriter;
  // Each connection stays with one thread at a time: no mutexes inside.
  const int flags = SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE |
                    (is_writer ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE : SQLITE_OPEN_READONLY);
  sqlite3* db = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &db, flags, nullptr);
  std::unique_ptr<Connection> self(new Connection(path, db));
  if (code != SQLITE_OK) return self->Error(code, "open");
  sqlite3_busy_timeout(db, kBusyTimeoutMs);
  sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  struct Setting {
    const char* set;
    const char* read;
    const char* expected;
  };
  static constexpr Setting kWriterSettings[] = {
      {"PRAGMA page_size=4096", "PRAGMA page_size", "4096"},
      {"PRAGMA journal_mode=WAL", "PRAGMA journal_mode", "wal"},
      {"PRAGMA synchronous=FULL", "PRAGMA synchronous", "2"},
      {"PRAGMA wal_autocheckpoint=0", "PRAGMA wal_autocheckpoint", "0"},
      {"PRAGMA cache_size=-16384", "PRAGMA cache_size", "-16384"},
  };
  static constexpr Setting kReaderSettings[] = {
      {"PRAGMA query_only=1", "PRAGMA query_only", "1"},
      {"PRAGMA cache_size=-2048", "PRAGMA cache_size", "-2048"},
  };
  static constexpr Setting kCommonSettings[] = {
      {"PRAGMA foreign_keys=1", "PRAGMA foreign_keys", "1"},
      {"PRAGMA cell_size_check=1", "PRAGMA cell_size_check", "1"},
      {"PRAGMA temp_store=MEMORY", "PRAGMA temp_store", "2"},
  };
  const auto apply = [&](std::span<const Setting> settings) -> Status {
    for (const Setting& setting : settings) {
      SWITCHYARD_RETURN_IF_ERROR(self->Execute(setting.set));
      Statement read = self->Prepare(setting.read);
      SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
      if (!has_row || read.Text(0) != setting.expected) {
        return FailedPrecondition(StrCat("database ", path, ": ", setting.set, " gives ",
                                         has_row ? read.Text(0) : "nothing", ", expected ",
                                         setting.expected));
      }
    }
    return OkStatus();
  };
  SWITCHYARD_RETURN_IF_ERROR(is_writer ? apply(kWriterSettings) : apply(kReaderSettings));
  SWITCHYARD_RETURN_IF_ERROR(apply(kCommonSettings));
  if (is_writer) {
    struct stat info {};
    if (stat((path + "-wal").c_str(), &info) == 0) {
      self->wal_bytes_ = static_cast<uint64_t>(info.st_size);
    }
    sqlite3_wal_hook(db, &Connection::OnWal, self.get());
  }
  // A reader that checkpoints while it closes would be a second writer of the main file; the writer
  // checkpoints where it can report a failure.
  sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
  return self;
}

void Connection::RemoveLogOnClose() {
  sqlite3_db_config(db_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, nullptr);
}

int Connection::OnWal(void* self, sqlite3*, const char*, int pages) {
  static_cast<Connection*>(self)->wal_bytes_ = static_cast<uint64_t>(pages) * kWalFrameBytes;
  return SQLITE_OK;
}

Statement Connection::Prepare(std::string_view sql) {
  auto it = cache_->entries.find(sql);
  if (it == cache_->entries.end()) {
    sqlite3_stmt* stmt = nullptr;
    const int code = sqlite3_prepare_v3(db_, sql.data(), static_cast<int>(sql.size()),
                                        SQLITE_PREPARE_PERSISTENT, &stmt, nullptr);
    if (code != SQLITE_OK) return {this, nullptr, Error(code, sql)};
    it = cache_->entries.emplace(std::string(sql), Cache::Entry{stmt, false}).first;
    cache_->by_stmt.emplace(stmt, &it->second);
  }
  SWITCHYARD_CHECK(!it->second.is_lent) << "statement in use twice: " << std::string(sql);
  it->second.is_lent = true;
  return {this, it->second.stmt, OkStatus()};
}

Status Connection::Execute(const std::string& sql) {
  const int code = sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? OkStatus() : Error(code, sql);
}

Status Connection::Bracket(const char* begin, const std::function<Status()>& body) {
  SWITCHYARD_RETURN_IF_ERROR(Prepare(begin).Run());
  Status status = body();
  if (status.ok()) {
    Statement commit = Prepare("COMMIT");
    const int code = sqlite3_step(commit.stmt_);
    if (code == SQLITE_DONE) return OkStatus();
    status = Error(code, "COMMIT");
    // An I/O error while the commit record was written or synced: whether a later reader finds it
    // depends on what the disk kept. A full disk or a lock is found before the record.
    if ((code & 0xff) == SQLITE_IOERR && code != SQLITE_IOERR_NOMEM) {
      status = DataLoss(StrCat("outcome of a commit unknown: ", status.message()));
    }
  }
  // SQLite itself rolls back on some errors; only an open transaction is left to us.
  if (sqlite3_get_autocommit(db_) == 0) {
    if (const Status undo = Execute("ROLLBACK"); !undo.ok()) {
      return DataLoss(StrCat(status.message(), "; roll-back failed: ", undo.message()));
    }
  }
  return status;
}

Status Connection::Transact(const std::function<Status()>& body) {
  return Bracket("BEGIN IMMEDIATE", body);
}

Status Connection::ReadSnapshot(const std::function<Status()>& body) {
  return Bracket("BEGIN", body);
}

Status Connection::Nested(const std::function<Status()>& body) {
  SWITCHYARD_RETURN_IF_ERROR(Prepare("SAVEPOINT nested").Run());
  const Status status = body();
  if (!status.ok()) {
    // Gone when SQLite rolled the whole transaction back (disk full, I/O).
    if (sqlite3_get_autocommit(db_) != 0) return status;
    SWITCHYARD_RETURN_IF_ERROR(Prepare("ROLLBACK TO nested").Run());
  }
  SWITCHYARD_RETURN_IF_ERROR(Prepare("RELEASE nested").Run());
  return status;
}

int64_t Connection::changes() const { return sqlite3_changes64(db_); }

int64_t Connection::last_insert_rowid() const { return sqlite3_last_insert_rowid(db_); }

Result<bool> Connection::Checkpoint(CheckpointMode mode) {
  int log_frames = 0;
  int copied = 0;
  // A truncating one waits for readers as long as the busy timeout says: the writer must not.
  sqlite3_busy_timeout(db_, 0);
  const int code = sqlite3_wal_checkpoint_v2(
      db_, nullptr,
      mode == CheckpointMode::kTruncate ? SQLITE_CHECKPOINT_TRUNCATE : SQLITE_CHECKPOINT_PASSIVE,
      &log_frames, &copied);
  sqlite3_busy_timeout(db_, kBusyTimeoutMs);
  if ((code & 0xff) == SQLITE_BUSY) return false;
  if (code != SQLITE_OK) return Error(code, "checkpoint");
  if (mode == CheckpointMode::kTruncate) wal_bytes_ = 0;
  return copied == log_frames;
}

void Connection::SetTimeBudget(int64_t budget_ms) {
  deadline_ms_ = budget_ms == 0 ? 0 : MonotonicNow().ms + budget_ms;
  sqlite3_progress_handler(db_, budget_ms == 0 ? 0 : kProgressOps, &Connection::OnProgress, this);
}

int Connection::OnProgress(void* self) {
  return MonotonicNow().ms > static_cast<Connection*>(self)->deadline_ms_ ? 1 : 0;
}

}  // namespace switchyard::store
