#pragma once

#include <functional>
#include <string>

#include "client/commands/commands.h"
#include "client/commands/compare.h"

namespace CLI {
class App;
}

namespace switchyard::client {

// Options of the verbs that ask for results.
struct AnswerOptions {
  ResultsOptions results;
  MetricsOptions metrics;
  CompareOptions compare;
  PowerOptions power;
};

// Makes a verb from its name, summary, examples and what it does.
using AddVerbFunction = std::function<CLI::App*(const std::string&, const std::string&,
                                                const std::string&, std::function<int()>)>;

// `results`, `metrics`, `compare` and `power`. `context` and `options` outlive the verbs.
void AddAnswerVerbs(const AddVerbFunction& add, const Context& context, AnswerOptions* options);

}  // namespace switchyard::client
