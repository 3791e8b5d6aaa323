#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/ids.h"
#include "common/base/status.h"

struct sqlite3;
struct sqlite3_stmt;

// The only door to SQLite: connections, statements, transactions, error codes.
namespace switchyard::store {

class Connection;

// A prepared statement, borrowed from its connection's cache until it goes out of scope. One at a
// time per SQL text. The connection's thread only. A failed bind shows in the next Run or Step.
//
// Codes, by SQLite's extended code: kAlreadyExists a unique or primary key; kFailedPrecondition any
// other constraint; kUnavailable busy, locked, or an I/O error; kResourceExhausted disk full, too
// big, or out of memory; kDeadlineExceeded interrupted by the progress limit; kDataLoss corrupt or
// not a database; kPermissionDenied read-only; kInternal the rest.
class Statement {
 public:
  Statement(Statement&& other) noexcept
      : connection_(other.connection_),
        stmt_(std::exchange(other.stmt_, nullptr)),
        error_(std::move(other.error_)) {}
  Statement& operator=(Statement&&) = delete;
  ~Statement();

  // Parameters count from 1. Text and blobs must outlive the next Run or Step.
  Statement& Bind(int index, int64_t value);
  Statement& Bind(int index, uint64_t value) { return Bind(index, static_cast<int64_t>(value)); }
  Statement& Bind(int index, uint32_t value) { return Bind(index, static_cast<int64_t>(value)); }
  Statement& Bind(int index, int32_t value) { return Bind(index, static_cast<int64_t>(value)); }
  Statement& Bind(int index, bool value) { return Bind(index, static_cast<int64_t>(value)); }
  Statement& Bind(int index, std::string_view text);
  Statement& Bind(int index, const std::string& text) {
    return Bind(index, std::string_view(text));
  }
  Statement& Bind(int index, const char* text) { return Bind(index, std::string_view(text)); }
  Statement& BindBlob(int index, std::string_view bytes);
  // 16 bytes, most significant first, so that the order of blobs is the order of ids.
  Statement& Bind(int index, const Uuid& id);
  Statement& BindNull(int index);

  // Runs a statement without rows and makes it ready to bind and run again.
  Status Run();
  // True while there is a row.
  Result<bool> Step();
  void Reset();

  // Columns of the current row, from 0.
  int64_t Int(int column) const;
  uint64_t Uint(int column) const { return static_cast<uint64_t>(Int(column)); }
  bool IsNull(int column) const;
  // Valid until the next Step, Reset or destruction. Text or blob.
  std::string_view Bytes(int column) const;
  std::string Text(int column) const { return std::string(Bytes(column)); }
  // Nil unless it is a blob of 16 bytes.
  Uuid Id(int column) const;

 private:
  friend class Connection;
  Statement(Connection* connection, sqlite3_stmt* stmt, Status error)
      : connection_(connection), stmt_(stmt), error_(std::move(error)) {}
  void Note(int code);

  Connection* connection_;
  sqlite3_stmt* stmt_;
  Status error_;
};

// One connection to one file. One thread at a time.
class Connection {
 public:
  enum class Mode { kWriter, kReader };

  // kWriter creates the file, and reads back what it asked for: WAL, synchronous FULL, foreign keys
  // on, no automatic checkpoints. kReader opens read-only with query_only, and never checkpoints.
  static Result<std::unique_ptr<Connection>> Open(const std::string& path, Mode mode);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // `sql` must be one statement; it is compiled once per connection.
  Statement Prepare(std::string_view sql);
  // One or more statements without parameters or rows.
  Status Execute(const std::string& sql);

  // BEGIN IMMEDIATE, `body`, COMMIT; or ROLLBACK when `body` or the commit fails. A commit whose
  // outcome is unknown (an I/O error while it was written) is kDataLoss: the caller must stop.
  Status Transact(const std::function<Status()>& body);
  // BEGIN (deferred), `body`, COMMIT: one snapshot for several reads.
  Status ReadSnapshot(const std::function<Status()>& body);
  // SAVEPOINT inside a transaction: undone when `body` fails, whose status is returned.
  Status Nested(const std::function<Status()>& body);

  int64_t changes() const;
  int64_t last_insert_rowid() const;
  const std::string& path() const { return path_; }

  enum class CheckpointMode {
    kPassive,   // the log stays as long as it is, and is written from its start again
    kTruncate,  // the log is empty afterwards
  };
  // Copies the log into the main file and syncs it. False: a reader holds some of it back.
  Result<bool> Checkpoint(CheckpointMode mode);
  // The log file goes with this connection if it is the last one: for the writer's orderly end.
  void RemoveLogOnClose();
  // Bytes of the write-ahead log in use.
  uint64_t WalBytes() const { return wal_bytes_; }

  // Every statement started from now on is interrupted after `budget_ms` (0: never).
  void SetTimeBudget(int64_t budget_ms);

 private:
  friend class Statement;
  struct Cache;
  Connection(std::string path, sqlite3* db);
  Status Error(int extended_code, std::string_view what) const;
  Status Bracket(const char* begin, const std::function<Status()>& body);
  static int OnWal(void* self, sqlite3*, const char*, int pages);
  static int OnProgress(void* self);

  std::string path_;
  sqlite3* db_;
  std::unique_ptr<Cache> cache_;
  uint64_t wal_bytes_ = 0;
  int64_t deadline_ms_ = 0;
};

}  // namespace switchyard::store
