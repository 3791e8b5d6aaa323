#include "server/results/query.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>

#include "common/base/strings.h"
#include "common/spec/series.h"
#include "server/results/order_cache.h"
#include "server/store/page_token.h"
#include "server/store/store.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::results {
namespace {

namespace pb = ::switchyard::v1;
using spec::ExpressionValue;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

pb::ObjectiveSpec ReadObjective(const store::SweepInfo& sweep) {
  pb::ObjectiveSpec objective;
  objective.ParseFromString(sweep.row.objective);
  return objective;
}

// 0: finite number, 1: text or boolean, 2: not finite, 3: absent.
int Rank(const ExpressionValue& value) {
  if (value.index() == 0) return 3;
  const auto* number = std::get_if<double>(&value);
  if (number == nullptr) return 1;
  return std::isfinite(*number) ? 0 : 2;
}

// What stands last stands last in both directions.
bool IsBefore(const ExpressionValue& a, const ExpressionValue& b, bool descending) {
  const int rank_a = Rank(a);
  const int rank_b = Rank(b);
  if (rank_a != rank_b) return rank_a < rank_b;
  if (rank_a >= 2) return false;
  return descending ? b < a : a < b;
}

struct Ordered {
  ExpressionValue value;
  uint64_t number = 0;
};

Result<std::optional<spec::Expression>> ParseFilter(std::string_view field,
                                                    const std::string& text) {
  if (text.empty()) return std::optional<spec::Expression>();
  Result<spec::Expression> parsed = spec::Expression::Parse(text);
  if (!parsed.ok()) return InvalidArgument(StrCat(field, ": ", parsed.status().message()));
  return std::optional<spec::Expression>(*std::move(parsed));
}

Status InField(std::string_view field, const Status& status) {
  if (status.ok() || status.code() != Code::kInvalidArgument) return status;
  return InvalidArgument(StrCat(field, ": ", status.message()));
}

// Whether a run may satisfy a condition, as far as everything but its series says: by three-valued
// logic, what is false with absent values is true with none.
class MayBeTrue final : public spec::ExpressionNames {
 public:
  MayBeTrue(const RunNames& names, const spec::Expression& condition)
      : names_(names.Fork()), condition_(condition) {}

  // True where the condition cannot be answered: whoever asks it in full reports why.
  bool Test(const store::RunFacts& run) {
    if (!names_.SetRun(run)) return true;
    const Result<spec::Truth> truth = condition_.Test(*this);
    return !truth.ok() || *truth != spec::Truth::kFalse;
  }

  ExpressionValue Name(std::string_view name) const override { return names_.Name(name); }
  ExpressionValue Series(std::string_view, spec::SeriesValue) const override {
    return std::monostate{};
  }

 private:
  RunNames names_;
  const spec::Expression& condition_;
};

// Mean and squared deviations in one pass (Welford).
struct Moments {
  GroupValue value;
  double mean = 0;
  double squares = 0;

  void Add(double x, std::optional<bool> is_maximized, uint64_t number) {
    if (!std::isfinite(x)) {
      ++value.non_finite;
      return;
    }
    ++value.n;
    const double delta = x - mean;
    mean += delta / static_cast<double>(value.n);
    squares += delta * (x - mean);
    if (!is_maximized) return;
    if (value.best_run == 0 || (*is_maximized ? x > value.best : x < value.best)) {
      value.best = x;
      value.best_run = number;
    }
  }

  GroupValue Take() {
    value.mean = value.n > 0 ? mean : kNaN;
    value.sd = value.n > 1 ? std::sqrt(squares / static_cast<double>(value.n - 1)) : kNaN;
    if (value.best_run == 0) value.best = kNaN;
    return value;
  }
};

struct OpenGroup {
  Group group;
  std::vector<Moments> moments;
};

// The group of a run. Runs of one cell that share their columns are of one group where nothing but
// these decides.
class GroupFinder {
 public:
  GroupFinder(const GroupQuery& query, const RunNames& names, std::vector<OpenGroup>* open)
      : query_(query),
        names_(names),
        open_(*open),
        is_by_cell_(std::ranges::all_of(
            query.by, [&](const std::string& name) { return names.IsOfCell(name); })),
        texts_(query.by.size()) {}

  Result<size_t> Find(const store::RunFacts& run) {
    if (!is_by_cell_) return FindByText(run);
    const auto known = by_cell_.find(run.cell);
    if (known != by_cell_.end() && known->second.columns == run.columns) return known->second.at;
    SWITCHYARD_ASSIGN_OR_RETURN(const size_t at, FindByText(run));
    if (known != by_cell_.end()) {
      known->second = {.columns = run.columns, .at = at};
    } else if (by_cell_.size() < kGroupsMax) {
      by_cell_.emplace(run.cell, OfCell{.columns = run.columns, .at = at});
    }
    return at;
  }

 private:
  struct OfCell {
    std::shared_ptr<const store::Columns> columns;  // of the cell's run seen last
    size_t at = 0;
  };

  Result<size_t> FindByText(const store::RunFacts& run) {
    key_.clear();
    for (size_t i = 0; i < texts_.size(); ++i) {
      texts_[i] = names_.Text(query_.by[i]);
      // Length before text: no two keys look alike.
      key_.append(std::to_string(texts_[i].size())).append(":").append(texts_[i]);
    }
    const auto [at, is_new] = by_key_.try_emplace(key_, open_.size());
    if (is_new) {
      if (open_.size() == kGroupsMax) {
        return ResourceExhausted(
            StrCat("by: more than ", kGroupsMax, " groups; group by fewer names or filter"));
      }
      open_.push_back({.group = {.key = texts_, .first_number = run.number, .values = {}},
                       .moments = std::vector<Moments>(query_.series.size())});
    }
    return at->second;
  }

  const GroupQuery& query_;
  const RunNames& names_;
  std::vector<OpenGroup>& open_;
  const bool is_by_cell_;
  std::vector<std::string> texts_;
  std::string key_;
  std::unordered_map<std::string, size_t> by_key_;
  std::unordered_map<uint64_t, OfCell> by_cell_;
};

}  // namespace

Pick ObjectivePick(const store::SweepInfo& sweep) {
  return ReadObjective(sweep).value() == pb::OBJECTIVE_VALUE_LAST ? Pick::kLast : Pick::kBest;
}

std::optional<bool> IsMaximized(const store::SweepInfo& sweep, std::string_view series) {
  const pb::ObjectiveSpec objective = ReadObjective(sweep);
  if (objective.metric() == series) return objective.goal() == pb::GOAL_MAXIMIZE;
  const std::optional<spec::Direction> direction = spec::SeriesDirection(series);
  if (!direction) return std::nullopt;
  return *direction == spec::Direction::kMaximize;
}

Status ForEachRun(store::ReadStore& store, const store::SweepInfo& sweep, const std::string& filter,
                  RunNames* names, const std::function<Status(const store::RunFacts&)>& visit) {
  SWITCHYARD_ASSIGN_OR_RETURN(const std::optional<spec::Expression> condition,
                              ParseFilter("filter", filter));
  if (condition) SWITCHYARD_RETURN_IF_ERROR(InField("filter", names->Use(*condition)));
  SWITCHYARD_RETURN_IF_ERROR(names->Load(store));
  Status status;
  uint64_t after = 0;
  bool lacks_document = false;
  const auto take = [&](const store::RunFacts& run) {
    lacks_document = !names->SetRun(run);
    if (lacks_document) return false;
    after = run.number;
    if (condition) {
      const Result<spec::Truth> truth = condition->Test(*names);
      if (!truth.ok()) {
        status = InField("filter", truth.status());
        return false;
      }
      if (*truth != spec::Truth::kTrue) return true;
    }
    status = visit(run);
    return status.ok();
  };
  while (true) {
    lacks_document = false;
    // Threads copy this one while `names` changes from run to run.
    const RunNames pristine = names->Fork();
    std::function<std::function<bool(const store::RunFacts&)>()> make_hint;
    if (condition) {
      make_hint = [&] {
        return [may_be = std::make_shared<MayBeTrue>(pristine, *condition)](
                   const store::RunFacts& run) { return may_be->Test(run); };
      };
    }
    SWITCHYARD_RETURN_IF_ERROR(store.ScanRuns({.sweep = sweep.row.id,
                                               .series = names->series(),
                                               .after = after,
                                               .run_facts = names->run_facts(),
                                               .make_hint = make_hint},
                                              take));
    if (!lacks_document) return status;
    // A cell that came after the sweep was read; a scan that is under way cannot be asked for it.
    SWITCHYARD_RETURN_IF_ERROR(names->LoadMore(store, after));
  }
}

namespace {

// The numbers of the runs that satisfy the filter, as ordered.
Result<std::vector<uint64_t>> FindInOrder(store::ReadStore& store, const store::SweepInfo& sweep,
                                          const ListQuery& query) {
  RunNames names(sweep, ObjectivePick(sweep));
  SWITCHYARD_ASSIGN_OR_RETURN(const std::optional<spec::Expression> order,
                              ParseFilter("order_by", query.order_by));
  if (order) SWITCHYARD_RETURN_IF_ERROR(InField("order_by", names.Use(*order)));
  std::vector<Ordered> found;
  SWITCHYARD_RETURN_IF_ERROR(
      ForEachRun(store, sweep, query.filter, &names, [&](const store::RunFacts& run) -> Status {
        Ordered one{.value = static_cast<double>(run.number), .number = run.number};
        if (order) {
          Result<ExpressionValue> value = order->Evaluate(names);
          if (!value.ok()) return InField("order_by", value.status());
          one.value = *std::move(value);
        }
        found.push_back(std::move(one));
        return OkStatus();
      }));
  std::ranges::sort(found, [&](const Ordered& a, const Ordered& b) {
    if (IsBefore(a.value, b.value, query.descending)) return true;
    if (IsBefore(b.value, a.value, query.descending)) return false;
    return a.number < b.number;
  });
  std::vector<uint64_t> numbers;
  numbers.reserve(found.size());
  for (const Ordered& one : found) numbers.push_back(one.number);
  return numbers;
}

}  // namespace

Result<store::RunPage> ListRuns(store::ReadStore& store, const store::SweepInfo& sweep,
                                const ListQuery& query) {
  if (query.filter.empty() && query.order_by.empty() && !query.descending) {
    return store.ListRuns({.sweep = sweep.row.id, .states = {}, .series = query.series}, query.page,
                          query.limit);
  }
  const std::string question = StrCat("results ", sweep.row.id.value.ToString(), " ",
                                      query.descending, " ", query.filter, "\n", query.order_by);
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<uint64_t> token,
                              store::ReadPageToken(query.page, question, 2));
  uint64_t id = token.empty() ? 0 : token[1];
  OrderCache::Numbers order;
  if (query.cache != nullptr) {
    order = token.empty() ? query.cache->FindFinal(question, &id) : query.cache->Find(question, id);
  }
  if (order == nullptr) {
    SWITCHYARD_ASSIGN_OR_RETURN(std::vector<uint64_t> found, FindInOrder(store, sweep, query));
    order = std::make_shared<const std::vector<uint64_t>>(std::move(found));
    if (query.cache != nullptr) {
      id = query.cache->Put(question, order, scheduler::IsTerminal(sweep.status.state));
    }
  }
  const size_t first = token.empty() ? 0 : std::min<size_t>(token[0], order->size());
  const size_t last = std::min(order->size(), first + query.limit);
  store::RunPage page;
  page.total = order->size();
  SWITCHYARD_ASSIGN_OR_RETURN(
      page.runs,
      store.GetRuns(sweep.row.id, std::span(*order).subspan(first, last - first), query.series));
  if (last < order->size()) {
    page.next = store::MakePageToken(question, std::vector<uint64_t>{last, id});
  }
  return page;
}

Result<GroupResult> GroupRuns(store::ReadStore& store, const store::SweepInfo& sweep,
                              const GroupQuery& query) {
  if (query.series.size() > kGroupSeriesMax) {
    return InvalidArgument(StrCat("series: ", query.series.size(), " are asked for, at most ",
                                  kGroupSeriesMax, " are grouped at once"));
  }
  RunNames names(sweep, ObjectivePick(sweep));
  for (const std::string& name : query.by) {
    SWITCHYARD_RETURN_IF_ERROR(InField("by", names.UseName(name)));
  }
  std::vector<std::optional<bool>> directions;
  for (const std::string& series : query.series) {
    names.UseSeries(series);
    directions.push_back(IsMaximized(sweep, series));
  }
  const Pick pick = query.pick.value_or(names.pick());

  std::vector<OpenGroup> open;
  GroupFinder finder(query, names, &open);
  GroupResult result;
  SWITCHYARD_RETURN_IF_ERROR(
      ForEachRun(store, sweep, query.filter, &names, [&](const store::RunFacts& run) -> Status {
        ++result.runs;
        SWITCHYARD_ASSIGN_OR_RETURN(const size_t at, finder.Find(run));
        OpenGroup& one = open[at];
        ++one.group.runs;
        one.group.succeeded += run.state == scheduler::RunState::kSucceeded ? 1 : 0;
        for (size_t i = 0; i < query.series.size(); ++i) {
          const double* value = names.Value(query.series[i], pick);
          if (value != nullptr) one.moments[i].Add(*value, directions[i], run.number);
        }
        return OkStatus();
      }));
  for (OpenGroup& one : open) {
    for (Moments& moments : one.moments) one.group.values.push_back(moments.Take());
    result.groups.push_back(std::move(one.group));
  }
  const bool descending = !directions.empty() && directions[0].value_or(false);
  std::ranges::sort(result.groups, [&](const Group& a, const Group& b) {
    if (!a.values.empty()) {
      const ExpressionValue mean_a = a.values[0].mean;
      const ExpressionValue mean_b = b.values[0].mean;
      if (IsBefore(mean_a, mean_b, descending)) return true;
      if (IsBefore(mean_b, mean_a, descending)) return false;
    }
    return a.first_number < b.first_number;
  });
  return result;
}

}  // namespace switchyard::results
