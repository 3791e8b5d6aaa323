#include "worker/model/routers/balanced_assignment.h"

#include <cstddef>
#include <limits>
#include <queue>
#include <utility>

namespace switchyard::model {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

class Assigner {
 public:
  Assigner(const std::vector<double>& scores, int64_t rows, int64_t columns)
      : scores_(scores),
        columns_(columns),
        column_of_(static_cast<size_t>(rows), -1),
        room_(static_cast<size_t>(columns)),
        moves_(static_cast<size_t>(columns * columns)) {
    for (int64_t c = 0; c < columns; ++c) {
      room_[Index(c)] = rows / columns + (c < rows % columns ? 1 : 0);
    }
  }

  std::vector<int64_t> Run() {
    for (size_t row = 0; row < column_of_.size(); ++row) Insert(static_cast<int64_t>(row));
    return std::move(column_of_);
  }

 private:
  using Move = std::pair<double, int64_t>;  // gain, row

  static size_t Index(int64_t i) { return static_cast<size_t>(i); }
  double Score(int64_t row, int64_t column) const {
    return scores_[Index(row * columns_ + column)];
  }

  // What changing one row from column `from` to `to` gains at best; drops moves of rows that left.
  Move BestMove(int64_t from, int64_t to) {
    auto& queue = moves_[Index(from * columns_ + to)];
    while (!queue.empty() && column_of_[Index(queue.top().second)] != from) queue.pop();
    return queue.empty() ? Move{kNone, -1} : queue.top();
  }

  void Place(int64_t row, int64_t column) {
    column_of_[Index(row)] = column;
    for (int64_t to = 0; to < columns_; ++to) {
      if (to == column) continue;
      moves_[Index(column * columns_ + to)].emplace(Score(row, to) - Score(row, column), row);
    }
  }

  // The path (row -> column -> ... -> a column with room) with the largest gain. There is no cycle
  // with a positive gain, because the assignment so far is the best one.
  void Insert(int64_t row) {
    std::vector<double> gain(Index(columns_));
    std::vector<int64_t> before(Index(columns_), -1);
    for (int64_t c = 0; c < columns_; ++c) gain[Index(c)] = Score(row, c);
    // No path visits a column twice. The margin keeps rounding from turning in a circle.
    constexpr double kMargin = 1e-12;
    bool has_changed = true;
    for (int64_t round = 0; has_changed && round < columns_; ++round) {
      has_changed = false;
      for (int64_t from = 0; from < columns_; ++from) {
        for (int64_t to = 0; to < columns_; ++to) {
          if (from == to) continue;
          const double through = gain[Index(from)] + BestMove(from, to).first;
          if (through > gain[Index(to)] + kMargin) {
            gain[Index(to)] = through;
            before[Index(to)] = from;
            has_changed = true;
          }
        }
      }
    }
    int64_t end = -1;
    for (int64_t c = 0; c < columns_; ++c) {
      if (room_[Index(c)] > 0 && (end < 0 || gain[Index(c)] > gain[Index(end)])) end = c;
    }
    --room_[Index(end)];
    int64_t steps = 0;
    while (before[Index(end)] >= 0 && steps++ < columns_) {
      const int64_t from = before[Index(end)];
      const int64_t moved = BestMove(from, end).second;
      Place(moved, end);
      end = from;
    }
    Place(row, end);
  }

  const std::vector<double>& scores_;
  const int64_t columns_;
  std::vector<int64_t> column_of_;
  std::vector<int64_t> room_;
  std::vector<std::priority_queue<Move>> moves_;  // [columns, columns]
};

}  // namespace

std::vector<int64_t> AssignBalanced(const std::vector<double>& scores, int64_t rows,
                                    int64_t columns) {
  return Assigner(scores, rows, columns).Run();
}

}  // namespace switchyard::model
