#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace switchyard::client {

struct Member;

// What a verb says, before a format is chosen: nothing, a scalar, a list, or named members in
// order. A plain value.
struct Value {
  using List = std::vector<Value>;
  using Members = std::vector<Member>;

  Value() = default;
  Value(bool flag) : data(flag) {}                           // NOLINT(google-explicit-constructor)
  Value(int number) : data(static_cast<int64_t>(number)) {}  // NOLINT(google-explicit-constructor)
  Value(unsigned number) : data(static_cast<uint64_t>(number)) {}  // NOLINT
  Value(int64_t number) : data(number) {}               // NOLINT(google-explicit-constructor)
  Value(uint64_t number) : data(number) {}              // NOLINT(google-explicit-constructor)
  Value(double number) : data(number) {}                // NOLINT(google-explicit-constructor)
  Value(std::string text) : data(std::move(text)) {}    // NOLINT(google-explicit-constructor)
  Value(const char* text) : data(std::string(text)) {}  // NOLINT(google-explicit-constructor)
  Value(List list) : data(std::move(list)) {}           // NOLINT(google-explicit-constructor)
  Value(Members members) : data(std::move(members)) {}  // NOLINT(google-explicit-constructor)

  bool is_absent() const { return std::holds_alternative<std::monostate>(data); }
  bool is_number() const;
  const std::string* text() const { return std::get_if<std::string>(&data); }
  const List* list() const { return std::get_if<List>(&data); }
  const Members* members() const { return std::get_if<Members>(&data); }

  // Scalars as plain text: numbers in shortest round-trip form, "NaN", "Inf", "-Inf"; absent: "".
  // Lists: "a b c"; members: "k=v k=v".
  std::string ToText() const;

  std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string, List, Members> data;
};

struct Member {
  std::string name;
  Value value;
};

}  // namespace switchyard::client
