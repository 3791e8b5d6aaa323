#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/check.h"

namespace switchyard {

// gRPC's numbers, so that the edge converts by value.
enum class Code : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
};

// "OK", "INVALID_ARGUMENT", ... as in gRPC's documentation.
std::string_view CodeName(Code code);

// An expected outcome: success, or a code and a message for a person (lower case, with the values
// that matter and what was expected, no full stop). Retryable are kUnavailable and kAborted only.
// Immutable.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  bool is_retryable() const { return code_ == Code::kUnavailable || code_ == Code::kAborted; }
  // "INVALID_ARGUMENT: message".
  std::string ToString() const;

  friend bool operator==(const Status&, const Status&) = default;

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

inline Status OkStatus() { return {}; }
Status InvalidArgument(std::string message);
Status NotFound(std::string message);
Status AlreadyExists(std::string message);
Status FailedPrecondition(std::string message);
Status Aborted(std::string message);
Status Internal(std::string message);
Status Unavailable(std::string message);
Status ResourceExhausted(std::string message);
Status DataLoss(std::string message);
Status DeadlineExceeded(std::string message);
Status Unimplemented(std::string message);
Status PermissionDenied(std::string message);

// A value, or why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    SWITCHYARD_CHECK(!status_.ok()) << "a Result without a value needs an error";
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  const T& operator*() const& {
    SWITCHYARD_CHECK(ok()) << status_.ToString();
    return *value_;
  }
  T& operator*() & {
    SWITCHYARD_CHECK(ok()) << status_.ToString();
    return *value_;
  }
  T&& operator*() && {
    SWITCHYARD_CHECK(ok()) << status_.ToString();
    return *std::move(value_);
  }
  const T* operator->() const { return &**this; }
  T* operator->() { return &**this; }

 private:
  Status status_;
  std::optional<T> value_;
};

#define SWITCHYARD_RETURN_IF_ERROR(expr)                                            \
  do {                                                                              \
    if (::switchyard::Status switchyard_status = (expr); !switchyard_status.ok()) { \
      return switchyard_status;                                                     \
    }                                                                               \
  } while (false)

#define SWITCHYARD_CONCAT_INNER(a, b) a##b
#define SWITCHYARD_CONCAT(a, b) SWITCHYARD_CONCAT_INNER(a, b)
// SWITCHYARD_ASSIGN_OR_RETURN(auto x, MakeX());
#define SWITCHYARD_ASSIGN_OR_RETURN(lhs, expr) \
  SWITCHYARD_ASSIGN_OR_RETURN_IMPL(SWITCHYARD_CONCAT(switchyard_result_, __LINE__), lhs, expr)
#define SWITCHYARD_ASSIGN_OR_RETURN_IMPL(result, lhs, expr) \
  auto result = (expr);                                     \
  if (!result.ok()) return result.status();                 \
  lhs = *std::move(result)

}  // namespace switchyard
