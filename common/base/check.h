#pragma once

#include <sstream>

namespace switchyard::internal {

// Prints the collected message and aborts when it goes out of scope.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();
  std::ostringstream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

struct Voidify {
  void operator&(std::ostream&) const {}
};

}  // namespace switchyard::internal

// A broken invariant ends the process, in release builds too. Input must not be able to reach it.
#define SWITCHYARD_CHECK(condition)                 \
  (condition) ? static_cast<void>(0)                \
              : ::switchyard::internal::Voidify() & \
                    ::switchyard::internal::CheckFailure(__FILE__, __LINE__, #condition).stream()
