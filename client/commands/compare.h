#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/commands/context.h"

namespace switchyard::client {

// What is compared: fields as in the sweep file's report.compare. What is left out comes from the
// comparison that the sweep registered.
struct ArmsOptions {
  std::string sweep;
  std::string by;                 // axis
  std::vector<std::string> arms;  // NAME=EXPR each, instead of an axis
  std::string against;
  bool wants_all_pairs = false;
  std::string metric;
  std::string where;
  std::vector<std::string> within;
  std::vector<std::string> pool;
  bool tunes = false;
  std::vector<double> margins;
  std::optional<double> alpha;
  std::string correction;  // holm, bh, none
  std::string test;        // paired_t, ...
  std::optional<uint32_t> looks;
  std::vector<std::string> at;     // NAME=NUMBER
  std::vector<std::string> match;  // NAME=NUMBER each
  uint32_t registered = 0;
};

struct CompareOptions {
  ArmsOptions arms;
  uint32_t look = 0;                // 0: the last planned one
  std::vector<uint64_t> chosen_on;  // seeds
};
// A verdict for each pair. Without any field every registered comparison is answered.
int RunCompare(const Context& context, const CompareOptions& options);

struct PowerOptions {
  ArmsOptions arms;
  double difference = 0;  // to detect; 0: as large as each margin
  double power = 0.8;
};
int RunPower(const Context& context, const PowerOptions& options);

}  // namespace switchyard::client
