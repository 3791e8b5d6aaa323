#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/status.h"

namespace switchyard::spec {

// The expression language of constraints, `where` and result filters (docs/spec-reference.md):
//   paths and axis names          model.moe.top_k   arm
//   series                        valid/bits_per_byte   (`a/b` is a series, `a / b` a division)
//   numbers, "text", true, false  -7.5e-05
//   + - * / %                     of numbers; % takes the sign of its left side
//   = == != < <= > >=             numbers; = and != texts and booleans as well
//   x in ["a", "b"], not in       literals of one type
//   and, or, not, parentheses
//   min(..) max(..) abs floor ceil log2, best(series) last(series)
inline constexpr size_t kExpressionBytesMax = 4096;
inline constexpr int kExpressionLevelsMax = 64;

// Absent (monostate): what the name stands for does not exist there.
using ExpressionValue = std::variant<std::monostate, bool, double, std::string>;

enum class SeriesValue { kPlain, kBest, kLast };

// What names stand for, for one cell or one run.
class ExpressionNames {
 public:
  virtual ~ExpressionNames() = default;
  // A path or an axis name.
  virtual ExpressionValue Name(std::string_view name) const = 0;
  // A series; kPlain where it stands outside best() and last().
  virtual ExpressionValue Series(std::string_view series, SeriesValue value) const = 0;
};

// kUnknown: something that decides is absent or not finite.
enum class Truth { kFalse, kTrue, kUnknown };

// A parsed expression. Immutable.
class Expression {
 public:
  struct NameUse {
    std::string name;
    int column = 0;  // from 1
    bool is_series = false;
  };

  // kInvalidArgument with "column N: ...". Time and memory are linear in the text.
  static Result<Expression> Parse(std::string_view text);

  // As a condition. Absent values and comparisons with numbers that are not finite are kUnknown;
  // `and`, `or`, `not` go on by three-valued logic. kInvalidArgument, with the column, when the
  // types do not fit or the whole is no condition.
  Result<Truth> Test(const ExpressionNames& names) const;
  // As a value of any type.
  Result<ExpressionValue> Evaluate(const ExpressionNames& names) const;

  // Every name used, in order; one name may be there twice.
  const std::vector<NameUse>& names() const { return names_; }
  const std::string& text() const { return text_; }

 private:
  friend class ExpressionParser;
  friend class ExpressionEvaluator;

  enum class Kind : uint8_t {
    kNumber,
    kText,
    kBool,
    kName,
    kSeries,
    kNot,
    kNegate,
    kAnd,
    kOr,
    kAdd,
    kSubtract,
    kMultiply,
    kDivide,
    kModulo,
    kEqual,
    kNotEqual,
    kLess,
    kLessEqual,
    kGreater,
    kGreaterEqual,
    kIn,
    kNotIn,
    kMin,
    kMax,
    kAbs,
    kFloor,
    kCeil,
    kLog2,
  };
  struct Node {
    Kind kind = Kind::kNumber;
    SeriesValue series = SeriesValue::kPlain;
    int column = 0;
    double number = 0;  // kBool: 0 or 1
    std::string text;
    std::vector<uint32_t> children;  // indices, all below this node's own
  };

  std::string text_;
  std::vector<Node> nodes_;  // the root is the last
  std::vector<NameUse> names_;
};

}  // namespace switchyard::spec
