#include "common/spec/expression.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "common/base/check.h"
#include "common/base/strings.h"
#include "common/spec/scalar.h"
#include "common/spec/series.h"

namespace switchyard::spec {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

enum class TokenKind { kEnd, kNumber, kText, kWord, kSymbol };

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  // of a text without its quotes
  double number = 0;
  int column = 0;
};

Status At(int column, std::string_view message) {
  return InvalidArgument(StrCat("column ", column, ": ", message));
}

std::string Quoted(const Token& token) {
  if (token.kind == TokenKind::kEnd) return "the end";
  return StrCat("'", EscapeForTerminal(token.text), "'");
}

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  Status Next(Token* token) {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
    *token = Token{};
    token->column = static_cast<int>(at_) + 1;
    if (at_ == text_.size()) return OkStatus();
    const char c = text_[at_];
    if (IsDigit(c) || (c == '.' && at_ + 1 < text_.size() && IsDigit(text_[at_ + 1]))) {
      return Number(token);
    }
    if (IsLetter(c)) {
      Word(token);
      return OkStatus();
    }
    if (c == '"' || c == '\'') return Text(c, token);
    return Symbol(token);
  }

 private:
  Status Number(Token* token) {
    const size_t start = at_;
    const auto digits = [&] {
      while (at_ < text_.size() && IsDigit(text_[at_])) ++at_;
    };
    digits();
    if (at_ < text_.size() && text_[at_] == '.') {
      ++at_;
      digits();
    }
    if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
      ++at_;
      if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
      digits();
    }
    // What is glued to a number is part of it, and makes it none.
    while (at_ < text_.size() &&
           (IsLetter(text_[at_]) || IsDigit(text_[at_]) || text_[at_] == '.')) {
      ++at_;
    }
    token->kind = TokenKind::kNumber;
    token->text = text_.substr(start, at_ - start);
    const std::optional<double> value = ParseDouble(token->text);
    if (!value || !std::isfinite(*value)) {
      return At(token->column, StrCat(Quoted(*token), " is not a number"));
    }
    token->number = *value;
    return OkStatus();
  }

  void Word(Token* token) {
    const size_t start = at_;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      const char next = at_ + 1 < text_.size() ? text_[at_ + 1] : ' ';
      const bool joins = (c == '/' && (IsLetter(next) || IsDigit(next))) ||
                         (c == '-' && IsLetter(next)) ||
                         (c == '.' && (IsLetter(next) || IsDigit(next)));
      if (!IsLetter(c) && !IsDigit(c) && !joins) break;
      ++at_;
    }
    token->kind = TokenKind::kWord;
    token->text = text_.substr(start, at_ - start);
  }

  Status Text(char quote, Token* token) {
    token->kind = TokenKind::kText;
    for (++at_; at_ < text_.size(); ++at_) {
      char c = text_[at_];
      if (c == quote) {
        ++at_;
        return OkStatus();
      }
      if (c == '\\') {
        if (++at_ == text_.size()) break;
        c = text_[at_];
        if (c != '\\' && c != '"' && c != '\'') {
          return At(static_cast<int>(at_), "after a backslash only \\, \" and ' are known");
        }
      }
      token->text.push_back(c);
    }
    return At(token->column, "the quote is not closed");
  }

  Status Symbol(Token* token) {
    static constexpr std::array<std::string_view, 5> kTwo = {"==", "!=", "<=", ">=", "&&"};
    const std::string_view rest = text_.substr(at_);
    token->kind = TokenKind::kSymbol;
    for (const std::string_view two : kTwo) {
      if (!rest.starts_with(two)) continue;
      token->text = two;
      at_ += two.size();
      if (two == "&&") return At(token->column, "'&&' is written and");
      return OkStatus();
    }
    token->text = rest.substr(0, 1);
    if (std::string_view("+-*/%=<>()[],").find(rest.front()) == std::string_view::npos) {
      const std::string_view hint = rest.front() == '|'   ? "; or is written as a word"
                                    : rest.front() == '!' ? "; not is written as a word"
                                                          : "";
      // A whole character, so that the message is valid UTF-8.
      size_t bytes = 1;
      while (bytes < rest.size() && (static_cast<unsigned char>(rest[bytes]) & 0xc0) == 0x80) {
        ++bytes;
      }
      return At(token->column, StrCat("'", EscapeForTerminal(rest.substr(0, bytes)),
                                      "' is not part of an expression", hint));
    }
    ++at_;
    return OkStatus();
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

class ExpressionParser {
 public:
  explicit ExpressionParser(std::string_view text) : lexer_(text) { out_.text_ = text; }

  Result<Expression> Parse() {
    SWITCHYARD_RETURN_IF_ERROR(lexer_.Next(&token_));
    if (token_.kind == TokenKind::kEnd) return At(1, "the expression is empty");
    SWITCHYARD_ASSIGN_OR_RETURN(const uint32_t root, Or());
    SWITCHYARD_CHECK(root + 1 == out_.nodes_.size()) << "the root is the last node";
    if (token_.kind != TokenKind::kEnd) {
      return At(token_.column, StrCat("an operator was expected, found ", Quoted(token_)));
    }
    return std::move(out_);
  }

 private:
  using Kind = Expression::Kind;

  // Counts a level for as long as it lives.
  class Level {
   public:
    explicit Level(int* depth) : depth_(depth) { ++*depth_; }
    ~Level() { --*depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    int* depth_;
  };

  uint32_t Add(Kind kind, int column, std::vector<uint32_t> children = {}) {
    out_.nodes_.push_back({.kind = kind, .column = column, .children = std::move(children)});
    return static_cast<uint32_t>(out_.nodes_.size() - 1);
  }
  Status Advance() { return lexer_.Next(&token_); }
  bool IsWord(std::string_view word) const {
    return token_.kind == TokenKind::kWord && token_.text == word;
  }
  bool IsSymbol(std::string_view symbol) const {
    return token_.kind == TokenKind::kSymbol && token_.text == symbol;
  }
  Status Expect(std::string_view symbol) {
    if (!IsSymbol(symbol)) {
      return At(token_.column, StrCat("'", symbol, "' was expected, found ", Quoted(token_)));
    }
    return Advance();
  }
  Status CheckLevel() const {
    if (depth_ <= kExpressionLevelsMax) return OkStatus();
    return At(token_.column, StrCat("more than ", kExpressionLevelsMax, " levels"));
  }

  Result<uint32_t> Or() {
    const Level level(&depth_);
    SWITCHYARD_RETURN_IF_ERROR(CheckLevel());
    SWITCHYARD_ASSIGN_OR_RETURN(const uint32_t first, And());
    return Chain(Kind::kOr, "or", first, [this] { return And(); });
  }

  Result<uint32_t> And() {
    SWITCHYARD_ASSIGN_OR_RETURN(const uint32_t first, Not());
    return Chain(Kind::kAnd, "and", first, [this] { return Not(); });
  }

  // One node for the whole of `a and b and c`: a long chain is not deep.
  template <typename Next>
  Result<uint32_t> Chain(Kind kind, std::string_view word, uint32_t first, Next next) {
    if (!IsWord(word)) return first;
    const int column = token_.column;
    std::vector<uint32_t> children = {first};
    while (IsWord(word)) {
      SWITCHYARD_RETURN_IF_ERROR(Advance());
      SWITCHYARD_ASSIGN_OR_RETURN(const uint32_t child, next());
      children.push_back(child);
    }
    return Add(kind, column, std::move(children));
  }

  Result<uint32_t> Not() {
    if (!IsWord("not")) return Comparison();
    const Level level(&depth_);
    SWITCHYARD_RETURN_IF_ERROR(CheckLevel());
    const int column = token_.column;
    SWITCHYARD_RETURN_IF_ERROR(Advance());
    SWITCHYARD_ASSIGN_OR_RETURN(const uint32_t child, Not());
    return Add(Kind::kNot, column, {child});
  }

  static std::optional<Kind> ComparisonOf(std::string_view symbol) {
    if (symbol == "=" || symbol == "==") return Kind::kEqual;
    if (symbol == "!=") return Kind::kNotEqual;
    if (symbol == "<") return Kind::kLess;
    if (symbol == "<=") return Kind::kLessEqual;
    if (symbol == ">") return Kind::kGreater;
    if (symbol == ">=") return Kind::kGreaterEqual;
    return std::nullopt;
  }

  Result<uint32_t> Comparison() {
    SWITCHYARD_ASSIGN_OR_RETURN(const uint32_t left, Sum());
    const int column = token_.column;
    if (IsWord("in") || IsWord("not")) {
      const bool is_negated = IsWord("not");
      if (is_negated) {
        SWITCHYARD_RETURN_IF_ERROR(Advance());
        if (!IsWord("in")) {
          return At(token_.column, StrCat("'in' was expected after not, found ", Quoted(token_)));
        }
      }
      SWITCHYARD_RETURN_IF_ERROR(Advance());
      return List(is_negated ? Kind::kNotIn : Kind::kIn, column, left);
    }
    const std::optional<Kind> kind =
        token_.kind == TokenKind::kSymbol ? ComparisonOf(token_.text) : std::nullopt;
    if (!kind) return left;
    SWITCHYARD_RETURN_IF_ERROR(Advance());
    SWITCHYARD_ASSIGN_OR_RETURN(const uint32_t right, Sum());
    if (token_.kind == TokenKind::kSymbol && ComparisonOf(token_.text)) {
      return At(token_.column, "comparisons do not chain; join them with and");
    }
    return Add(*kind, column, {left, right});
  }

  Result<uint32_t> List(Kind kind, int column, uint32_t left) {
    SWITCHYARD_RETURN_IF_ERROR(Expect("["));
    std::vector<uint32_t> children = {left};
    while (true) {
      SWITCHYARD_ASSIGN_OR_RETURN(const uint32_t item, Literal());
      children.push_back(item);
      if (!IsSymbol(",")) break;
      SWITCHYARD_RETURN_IF_ERROR(Advance());
    }
    SWITCHYARD_RETURN_IF_ERROR(Expect("]"));
    return Add(kind, column, std::move(children));
  }

  // A number, with a sign or without, a text, true or false.
  Result<uint32_t> Literal() {
    const Token token = token_;
    if (token.kind == TokenKind::kWord && token.text != "true" && token.text != "false") {
      return At(token.column, StrCat("a list holds numbers and texts; write \"",
                                     EscapeForTerminal(token.text), "\""));
    }
    double sign = 1;
    if (IsSymbol("-")) {
      sign = -1;
      SWITCHYARD_RETURN_IF_ERROR(Advance());
      if (token_.kind != TokenKind::kNumber) {
        return At(token_.column, StrCat("a number was expected, found ", Quoted(token_)));
      }
    }
    if (token_.kind == TokenKind::kEnd || token_.kind == TokenKind::kSymbol) {
      return At(token_.column, StrCat("a value was expected, found ", Quoted(token_)));
    }
    SWITCHYARD_ASSIGN_OR_RETURN(const uint32_t node, Primary());
    out_.nodes_[node].number *= sign;
    return node;
  }

  template <typename Next, typename KindOf>
  Result<uint32_t> Binary(Next next, KindOf kind_of) {
    SWITCHYARD_ASSIGN_OR_RETURN(uint32_t left, next());
    int operators = 0;
    while (token_.kind == TokenKind::kSymbol) {
      const std::optional<Kind> kind = kind_of(token_.text);
      if (!kind) break;
      // The tree of `1 + 1 + ...` is as deep as the chain is long.
      if (++operators > kExpressionLevelsMax) {
        return At(token_.column, StrCat("more than ", kExpressionLevelsMax, " operators in a row"));
      }
      const int column = token_.column;
      SWITCHYARD_RETURN_IF_ERROR(Advance());
      SWITCHYARD_ASSIGN_OR_RETURN(const uint32_t right, next());
      left = Add(*kind, column, {left, right});
    }
    return left;
  }

  Result<uint32_t> Sum() {
    return Binary([this] { return Product(); },
                  [](std::string_view symbol) -> std::optional<Kind> {
                    if (symbol == "+") return Kind::kAdd;
                    if (symbol == "-") return Kind::kSubtract;
                    return std::nullopt;
                  });
  }

  Result<uint32_t> Product() {
    return Binary([this] { return Unary(); },
                  [](std::string_view symbol) -> std::optional<Kind> {
                    if (symbol == "*") return Kind::kMultiply;
                    if (symbol == "/") return Kind::kDivide;
                    if (symbol == "%") return Kind::kModulo;
                    return std::nullopt;
                  });
  }

  Result<uint32_t> Unary() {
    if (!IsSymbol("-")) return Primary();
    const Level level(&depth_);
    SWITCHYARD_RETURN_IF_ERROR(CheckLevel());
    const int column = token_.column;
    SWITCHYARD_RETURN_IF_ERROR(Advance());
    SWITCHYARD_ASSIGN_OR_RETURN(const uint32_t child, Unary());
    return Add(Kind::kNegate, column, {child});
  }

  Result<uint32_t> Primary() {
    const Token token = token_;
    switch (token.kind) {
      case TokenKind::kNumber: {
        SWITCHYARD_RETURN_IF_ERROR(Advance());
        const uint32_t node = Add(Kind::kNumber, token.column);
        out_.nodes_[node].number = token.number;
        return node;
      }
      case TokenKind::kText: {
        SWITCHYARD_RETURN_IF_ERROR(Advance());
        const uint32_t node = Add(Kind::kText, token.column);
        out_.nodes_[node].text = token.text;
        return node;
      }
      case TokenKind::kWord:
        SWITCHYARD_RETURN_IF_ERROR(Advance());
        return Word(token);
      case TokenKind::kSymbol:
        if (token.text == "(") {
          SWITCHYARD_RETURN_IF_ERROR(Advance());
          SWITCHYARD_ASSIGN_OR_RETURN(const uint32_t inner, Or());
          SWITCHYARD_RETURN_IF_ERROR(Expect(")"));
          return inner;
        }
        break;
      case TokenKind::kEnd:
        break;
    }
    return At(token.column, StrCat("a value was expected, found ", Quoted(token)));
  }

  Result<uint32_t> Word(const Token& token) {
    if (token.text == "true" || token.text == "false") {
      const uint32_t node = Add(Kind::kBool, token.column);
      out_.nodes_[node].number = token.text == "true" ? 1 : 0;
      return node;
    }
    for (const std::string_view reserved : {"and", "or", "not", "in"}) {
      if (token.text == reserved) {
        return At(token.column, StrCat("a value was expected, found ", Quoted(token)));
      }
    }
    if (IsSymbol("(")) return Call(token);
    return Name(token, SeriesValue::kPlain);
  }

  Result<uint32_t> Name(const Token& token, SeriesValue value) {
    const bool is_series = token.text.find('/') != std::string::npos;
    const uint32_t node = Add(is_series ? Kind::kSeries : Kind::kName, token.column);
    out_.nodes_[node].text = token.text;
    out_.nodes_[node].series = value;
    out_.names_.push_back({token.text, token.column, is_series});
    return node;
  }

  Result<uint32_t> Call(const Token& token) {
    SWITCHYARD_RETURN_IF_ERROR(Advance());  // the parenthesis
    if (token.text == "best" || token.text == "last") {
      const Token series = token_;
      if (series.kind != TokenKind::kWord || series.text.find('/') == std::string::npos) {
        return At(series.column,
                  StrCat(token.text, " takes a series such as valid/loss, found ", Quoted(series)));
      }
      if (token.text == "best" && !SeriesDirection(series.text)) {
        return At(series.column,
                  StrCat(Quoted(series), " has no direction, so no best value; use last(...)"));
      }
      SWITCHYARD_RETURN_IF_ERROR(Advance());
      SWITCHYARD_RETURN_IF_ERROR(Expect(")"));
      return Name(series, token.text == "best" ? SeriesValue::kBest : SeriesValue::kLast);
    }
    struct Function {
      std::string_view name;
      Kind kind;
      bool is_variadic;
    };
    static constexpr std::array<Function, 6> kFunctions = {{{"min", Kind::kMin, true},
                                                            {"max", Kind::kMax, true},
                                                            {"abs", Kind::kAbs, false},
                                                            {"floor", Kind::kFloor, false},
                                                            {"ceil", Kind::kCeil, false},
                                                            {"log2", Kind::kLog2, false}}};
    const auto* function = std::ranges::find(kFunctions, token.text, &Function::name);
    if (function == kFunctions.end()) {
      return At(token.column,
                StrCat(Quoted(token),
                       " is not a function; known: min, max, abs, floor, ceil, log2, best, last"));
    }
    std::vector<uint32_t> children;
    while (true) {
      SWITCHYARD_ASSIGN_OR_RETURN(const uint32_t child, Or());
      children.push_back(child);
      if (!IsSymbol(",")) break;
      SWITCHYARD_RETURN_IF_ERROR(Advance());
    }
    SWITCHYARD_RETURN_IF_ERROR(Expect(")"));
    if (function->is_variadic ? children.size() < 2 : children.size() != 1) {
      return At(token.column, StrCat(token.text, " takes ",
                                     function->is_variadic ? "at least two values" : "one value",
                                     ", ", children.size(), " given"));
    }
    return Add(function->kind, token.column, std::move(children));
  }

  Lexer lexer_;
  Token token_;
  Expression out_;
  int depth_ = 0;
};

class ExpressionEvaluator {
 public:
  ExpressionEvaluator(const Expression& expression, const ExpressionNames& names)
      : expression_(expression), names_(names) {}

  Result<ExpressionValue> Value(uint32_t index) {
    const Node& node = expression_.nodes_[index];
    switch (node.kind) {
      case Kind::kNumber:
        return ExpressionValue(node.number);
      case Kind::kText:
        return ExpressionValue(node.text);
      case Kind::kBool:
        return ExpressionValue(node.number != 0);
      case Kind::kName:
        return names_.Name(node.text);
      case Kind::kSeries:
        return names_.Series(node.text, node.series);
      case Kind::kNot:
      case Kind::kAnd:
      case Kind::kOr:
        return Logic(node);
      case Kind::kEqual:
      case Kind::kNotEqual:
      case Kind::kLess:
      case Kind::kLessEqual:
      case Kind::kGreater:
      case Kind::kGreaterEqual:
        return Compare(node);
      case Kind::kIn:
      case Kind::kNotIn:
        return Contains(node);
      default:
        return Arithmetic(node);
    }
  }

  Result<Truth> Condition(uint32_t index) {
    SWITCHYARD_ASSIGN_OR_RETURN(const ExpressionValue value, Value(index));
    if (std::holds_alternative<std::monostate>(value)) return Truth::kUnknown;
    if (const bool* is_true = std::get_if<bool>(&value)) {
      return *is_true ? Truth::kTrue : Truth::kFalse;
    }
    return At(expression_.nodes_[index].column,
              StrCat(Describe(value), " is not true or false; compare it with something"));
  }

 private:
  using Kind = Expression::Kind;
  using Node = Expression::Node;

  static std::string Describe(const ExpressionValue& value) {
    if (const double* number = std::get_if<double>(&value)) return FormatDouble(*number);
    if (const std::string* text = std::get_if<std::string>(&value)) {
      return StrCat("\"", EscapeForTerminal(*text), "\"");
    }
    if (const bool* is_true = std::get_if<bool>(&value)) return *is_true ? "true" : "false";
    return "nothing";
  }

  static ExpressionValue FromTruth(Truth truth) {
    if (truth == Truth::kUnknown) return std::monostate{};
    return truth == Truth::kTrue;
  }

  Result<ExpressionValue> Logic(const Node& node) {
    if (node.kind == Kind::kNot) {
      SWITCHYARD_ASSIGN_OR_RETURN(const Truth inner, Condition(node.children.front()));
      if (inner == Truth::kUnknown) return FromTruth(inner);
      return FromTruth(inner == Truth::kTrue ? Truth::kFalse : Truth::kTrue);
    }
    const Truth deciding = node.kind == Kind::kAnd ? Truth::kFalse : Truth::kTrue;
    Truth result = node.kind == Kind::kAnd ? Truth::kTrue : Truth::kFalse;
    for (const uint32_t child : node.children) {
      SWITCHYARD_ASSIGN_OR_RETURN(const Truth truth, Condition(child));
      if (truth == deciding) return FromTruth(deciding);
      if (truth == Truth::kUnknown) result = Truth::kUnknown;
    }
    return FromTruth(result);
  }

  // kUnknown where a side is absent or not finite; a fault where the types differ.
  Result<Truth> Same(const Node& node, const ExpressionValue& left, const ExpressionValue& right) {
    if (left.index() == 0 || right.index() == 0) return Truth::kUnknown;
    if (left.index() != right.index()) {
      return At(node.column,
                StrCat(Describe(left), " and ", Describe(right), " are of different types"));
    }
    if (const double* number = std::get_if<double>(&left)) {
      const double other = std::get<double>(right);
      if (!std::isfinite(*number) || !std::isfinite(other)) return Truth::kUnknown;
    }
    return left == right ? Truth::kTrue : Truth::kFalse;
  }

  Result<ExpressionValue> Compare(const Node& node) {
    SWITCHYARD_ASSIGN_OR_RETURN(const ExpressionValue left, Value(node.children[0]));
    SWITCHYARD_ASSIGN_OR_RETURN(const ExpressionValue right, Value(node.children[1]));
    SWITCHYARD_ASSIGN_OR_RETURN(const Truth same, Same(node, left, right));
    if (same == Truth::kUnknown) return FromTruth(same);
    if (node.kind == Kind::kEqual) return FromTruth(same);
    if (node.kind == Kind::kNotEqual) return ExpressionValue(same == Truth::kFalse);
    const double* x = std::get_if<double>(&left);
    if (x == nullptr) {
      return At(node.column, StrCat(Describe(left), " and ", Describe(right),
                                    " have no order; only = and != are known for them"));
    }
    const double y = std::get<double>(right);
    switch (node.kind) {
      case Kind::kLess:
        return ExpressionValue(*x < y);
      case Kind::kLessEqual:
        return ExpressionValue(*x <= y);
      case Kind::kGreater:
        return ExpressionValue(*x > y);
      default:
        return ExpressionValue(*x >= y);
    }
  }

  Result<ExpressionValue> Contains(const Node& node) {
    SWITCHYARD_ASSIGN_OR_RETURN(const ExpressionValue left, Value(node.children[0]));
    Truth found = Truth::kFalse;
    for (size_t i = 1; i < node.children.size(); ++i) {
      SWITCHYARD_ASSIGN_OR_RETURN(const ExpressionValue item, Value(node.children[i]));
      SWITCHYARD_ASSIGN_OR_RETURN(const Truth same, Same(node, left, item));
      if (same == Truth::kUnknown) return FromTruth(same);
      if (same == Truth::kTrue) found = Truth::kTrue;
    }
    return ExpressionValue((found == Truth::kTrue) == (node.kind == Kind::kIn));
  }

  Result<ExpressionValue> Arithmetic(const Node& node) {
    std::vector<double> values;
    bool is_absent = false;
    for (const uint32_t child : node.children) {
      SWITCHYARD_ASSIGN_OR_RETURN(const ExpressionValue value, Value(child));
      if (value.index() == 0) {
        is_absent = true;
      } else if (const double* number = std::get_if<double>(&value)) {
        values.push_back(*number);
      } else {
        return At(node.column, StrCat(Describe(value), " is not a number"));
      }
    }
    if (is_absent) return ExpressionValue();
    // A minimum of NaN and 1 is no number, whatever std::min makes of it.
    const bool has_nan =
        std::ranges::any_of(values, [](double value) { return std::isnan(value); });
    if (has_nan) return ExpressionValue(std::nan(""));
    const double x = values.front();
    const double y = values.back();
    switch (node.kind) {
      case Kind::kNegate:
        return ExpressionValue(-x);
      case Kind::kAdd:
        return ExpressionValue(x + y);
      case Kind::kSubtract:
        return ExpressionValue(x - y);
      case Kind::kMultiply:
        return ExpressionValue(x * y);
      case Kind::kDivide:
        // IEEE 754 division; written out because dividing by zero is undefined for the language.
        if (y == 0) return ExpressionValue(std::nan(""));
        return ExpressionValue(x / y);
      case Kind::kModulo:
        return ExpressionValue(std::fmod(x, y));
      case Kind::kMin:
        return ExpressionValue(*std::ranges::min_element(values));
      case Kind::kMax:
        return ExpressionValue(*std::ranges::max_element(values));
      case Kind::kAbs:
        return ExpressionValue(std::abs(x));
      case Kind::kFloor:
        return ExpressionValue(std::floor(x));
      case Kind::kCeil:
        return ExpressionValue(std::ceil(x));
      default:
        return ExpressionValue(std::log2(x));
    }
  }

  const Expression& expression_;
  const ExpressionNames& names_;
};

Result<Expression> Expression::Parse(std::string_view text) {
  if (text.size() > kExpressionBytesMax) {
    return InvalidArgument(StrCat("the expression has ", text.size(), " bytes, at most ",
                                  kExpressionBytesMax, " are read"));
  }
  if (!IsValidUtf8(text)) return InvalidArgument("the expression is not valid UTF-8");
  return ExpressionParser(text).Parse();
}

Result<Truth> Expression::Test(const ExpressionNames& names) const {
  return ExpressionEvaluator(*this, names).Condition(static_cast<uint32_t>(nodes_.size() - 1));
}

Result<ExpressionValue> Expression::Evaluate(const ExpressionNames& names) const {
  return ExpressionEvaluator(*this, names).Value(static_cast<uint32_t>(nodes_.size() - 1));
}

}  // namespace switchyard::spec
