#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace switchyard {

// SHA-256 in parts (OpenSSL). One thread at a time.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Update(std::string_view data);
  // 32 raw bytes; the object is spent.
  std::string Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// 64 lower-case hex digits.
std::string Sha256Hex(std::string_view data);

}  // namespace switchyard
