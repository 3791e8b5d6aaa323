// Quality and speed of the strategies on synthetic objectives, one JSON object a line: the mean
// over seeds of the best value of CELLS evaluations (the minimum of each objective is 0), and
// milliseconds per proposal.
//
// usage: search_bench [CELLS [SEEDS]]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "server/search/search.h"
#include "tests/suites/search_problems.h"

namespace switchyard::search {
namespace {

void Measure(const SearchProblem& problem, Method method, uint64_t cells, uint64_t seeds) {
  double sum = 0;
  const auto start = std::chrono::steady_clock::now();
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    const auto search =
        *Search::Make({.method = method, .seed = seed, .cells = cells, .steps = 1, .eval_steps = 1},
                      problem.space, [](const Point&) { return true; });
    double best = std::numeric_limits<double>::infinity();
    while (!search->is_exhausted()) {
      for (const Action& action : search->Propose(1)) {
        const double value = problem.objective(action.point);
        best = std::min(best, value);
        search->Finish(action.cell, 1, {.kind = RunEnd::Kind::kSucceeded, .value = value});
      }
    }
    sum += best;
  }
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  std::printf(
      "{\"objective\":\"%s\",\"strategy\":\"%s\",\"cells\":%llu,\"seeds\":%llu,\"best_mean\":%.6g,"
      "\"ms_per_cell\":%.4g}\n",
      problem.name, std::string(MethodName(method)).c_str(), static_cast<unsigned long long>(cells),
      static_cast<unsigned long long>(seeds), sum / static_cast<double>(seeds),
      took.count() / static_cast<double>(cells * seeds));
}

}  // namespace
}  // namespace switchyard::search

int main(int argc, char** argv) {
  using switchyard::search::Method;
  const uint64_t cells = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 100;
  const uint64_t seeds = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 20;
  if (cells == 0 || seeds == 0) {
    std::fprintf(stderr, "usage: search_bench [CELLS [SEEDS]], both above 0\n");
    return 64;
  }
  for (const switchyard::search::SearchProblem& problem : switchyard::search::SearchProblems()) {
    for (const Method method : {Method::kRandom, Method::kSobol, Method::kTpe}) {
      switchyard::search::Measure(problem, method, cells, seeds);
    }
  }
  return 0;
}
