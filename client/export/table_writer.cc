// CSV and JSON lines: tables of runs, summaries and points.
#include <set>
#include <utility>

#include "client/commands/runs.h"
#include "client/export/export_writer.h"
#include "client/export/staged_folder.h"
#include "client/output/csv.h"
#include "client/output/json.h"
#include "client/output/message_value.h"
#include "common/base/strings.h"
#include "switchyard/v1/results_service.pb.h"
#include "switchyard/v1/run_service.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

// Facts of a run that are columns of the table of runs; axes stand behind the first three.
Value::Members RunFacts(const pb::Run& run) {
  return {{"router", run.router()},
          {"seed", run.seed()},
          {"state", StateText(run.state())},
          {"reason", run.reason()},
          {"attempts", static_cast<uint64_t>(run.attempts())},
          {"step", run.step()},
          {"steps_total", run.steps_total()},
          {"created_ms", run.created_ms()},
          {"started_ms", run.started_ms()},
          {"ended_ms", run.ended_ms()},
          {"run_key", run.run_key()}};
}

Value::Members SummaryFacts(const pb::SeriesSummary& summary) {
  const bool has_best = summary.has_best();
  return {{"count", summary.count()},
          {"non_finite", summary.non_finite()},
          {"last", summary.last()},
          {"last_step", summary.last_step()},
          {"best", has_best ? Value(summary.best()) : Value()},
          {"best_step", has_best ? Value(summary.best_step()) : Value()}};
}

std::string AxisValue(const pb::Run& run, const std::string& axis) {
  for (const pb::AxisValue& column : run.columns()) {
    if (column.axis() == axis) return column.value();
  }
  return {};
}

std::vector<Value> Values(const Value::Members& members) {
  std::vector<Value> values;
  for (const Member& member : members) values.push_back(member.value);
  return values;
}

std::vector<Value> Names(const Value::Members& members) {
  std::vector<Value> names;
  for (const Member& member : members) names.emplace_back(member.name);
  return names;
}

std::vector<Value> Joined(std::vector<Value> a, const std::vector<Value>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class CsvWriter final : public ExportWriter {
 public:
  explicit CsvWriter(std::string folder) : folder_(std::move(folder)) {}

  Status Begin(const pb::Sweep& sweep) override {
    sweep_ = sweep;
    SWITCHYARD_RETURN_IF_ERROR(Open("runs.csv", &runs_));
    SWITCHYARD_RETURN_IF_ERROR(Open("summaries.csv", &summaries_));
    SWITCHYARD_RETURN_IF_ERROR(Open("curves.csv", &curves_));
    const std::vector<Value> facts = Names(RunFacts({}));
    std::vector<Value> heading = {"run", "number", "id"};
    std::set<std::string> taken = {"run", "number", "id"};
    for (const Value& name : facts) taken.insert(name.ToText());
    for (const std::string& axis : sweep.axes()) {
      heading.emplace_back(taken.insert(axis).second ? axis : StrCat("axis.", axis));
    }
    heading = Joined(std::move(heading), facts);
    const std::string& metric = sweep.objective().metric();
    if (!metric.empty()) {
      heading.emplace_back(taken.contains(metric) ? StrCat("objective.", metric) : metric);
    }
    SWITCHYARD_RETURN_IF_ERROR(runs_->Append(CsvLine(heading)));
    SWITCHYARD_RETURN_IF_ERROR(
        summaries_->Append(CsvLine(Joined({"run", "series"}, Names(SummaryFacts({}))))));
    return curves_->Append("run,seed,series,step,ms,attempt,i0,i1,value\n");
  }

  Status BeginRun(const pb::RunDetail& detail) override {
    run_ = detail.run();
    std::vector<Value> cells = {run_.name(), run_.number(), run_.id()};
    for (const std::string& axis : sweep_.axes()) {
      cells.push_back(AxisCellValue(AxisValue(run_, axis)));
    }
    cells = Joined(std::move(cells), Values(RunFacts(run_)));
    if (!sweep_.objective().metric().empty()) cells.push_back(ObjectiveOf(sweep_, run_));
    SWITCHYARD_RETURN_IF_ERROR(runs_->Append(CsvLine(cells)));
    for (const pb::SeriesSummary& summary : run_.summary()) {
      SWITCHYARD_RETURN_IF_ERROR(summaries_->Append(
          CsvLine(Joined({run_.name(), summary.name()}, Values(SummaryFacts(summary))))));
    }
    return OkStatus();
  }

  Status AddPage(const std::string& series, const pb::GetCurveResponse& page) override {
    const std::string start =
        StrCat(CsvCell(run_.name()), ",", run_.seed(), ",", CsvCell(series), ",");
    const std::vector<uint32_t> shape(page.shape().begin(), page.shape().end());
    for (const pb::Point& point : page.points()) {
      const std::string place =
          StrCat(start, point.step(), ",", point.ms(), ",", point.attempt(), ",");
      if (point.values_size() == 0) {
        SWITCHYARD_RETURN_IF_ERROR(curves_->Append(StrCat(place, ",,", point.value(), "\n")));
        continue;
      }
      for (int i = 0; i < point.values_size(); ++i) {
        // At most two columns: dimensions behind the first are one.
        const auto flat = static_cast<size_t>(i);
        const size_t inner =
            shape.size() < 2 ? 1
                             : static_cast<size_t>(point.values_size()) / std::max(1U, shape[0]);
        const std::string index = shape.size() < 2 ? StrCat(flat, ",")
                                                   : StrCat(flat / std::max<size_t>(1, inner), ",",
                                                            flat % std::max<size_t>(1, inner));
        SWITCHYARD_RETURN_IF_ERROR(
            curves_->Append(StrCat(place, index, ",", point.values(i), "\n")));
      }
    }
    return OkStatus();
  }

  Status EndRun() override { return OkStatus(); }

  Status Finish() override {
    SWITCHYARD_RETURN_IF_ERROR(runs_->Close());
    SWITCHYARD_RETURN_IF_ERROR(summaries_->Close());
    return curves_->Close();
  }

 private:
  Status Open(const char* name, std::optional<OutputFile>* file) {
    SWITCHYARD_ASSIGN_OR_RETURN(OutputFile made, OutputFile::Make(StrCat(folder_, "/", name)));
    file->emplace(std::move(made));
    return OkStatus();
  }

  const std::string folder_;
  pb::Sweep sweep_;
  pb::Run run_;
  std::optional<OutputFile> runs_;
  std::optional<OutputFile> summaries_;
  std::optional<OutputFile> curves_;
};

class JsonLinesWriter final : public ExportWriter {
 public:
  explicit JsonLinesWriter(std::string folder) : folder_(std::move(folder)) {}

  Status Begin(const pb::Sweep& sweep) override {
    sweep_ = sweep;
    SWITCHYARD_ASSIGN_OR_RETURN(OutputFile runs, OutputFile::Make(folder_ + "/runs.jsonl"));
    SWITCHYARD_ASSIGN_OR_RETURN(OutputFile curves, OutputFile::Make(folder_ + "/curves.jsonl"));
    runs_.emplace(std::move(runs));
    curves_.emplace(std::move(curves));
    return OkStatus();
  }

  Status BeginRun(const pb::RunDetail& detail) override {
    run_ = detail.run();
    Value::Members columns;
    for (const pb::AxisValue& column : run_.columns()) {
      columns.push_back({column.axis(), AxisCellValue(column.value())});
    }
    Value::Members line = {{"run", run_.name()},
                           {"number", run_.number()},
                           {"id", run_.id()},
                           {"columns", std::move(columns)}};
    for (Member& fact : RunFacts(run_)) line.push_back(std::move(fact));
    line.push_back({"objective", ObjectiveOf(sweep_, run_)});
    Value::Members summaries;
    for (const pb::SeriesSummary& summary : run_.summary()) {
      summaries.push_back({summary.name(), SummaryFacts(summary)});
    }
    line.push_back({"summaries", std::move(summaries)});
    line.push_back({"spec", FromMessage(detail.spec())});
    Value::List attempts;
    for (const pb::Attempt& attempt : detail.attempts()) attempts.push_back(FromMessage(attempt));
    line.push_back({"attempt_list", std::move(attempts)});
    return runs_->Append(ToJson(line, JsonStyle::kOneLine) + "\n");
  }

  Status AddPage(const std::string& series, const pb::GetCurveResponse& page) override {
    for (const pb::Point& point : page.points()) {
      Value::Members line = {{"run", run_.name()},
                             {"series", series},
                             {"step", point.step()},
                             {"ms", point.ms()},
                             {"attempt", static_cast<uint64_t>(point.attempt())}};
      if (point.values_size() == 0) {
        line.push_back({"value", point.value()});
      } else {
        Value::List shape;
        for (const uint32_t extent : page.shape()) shape.emplace_back(uint64_t{extent});
        Value::List values;
        for (const float value : point.values()) values.emplace_back(static_cast<double>(value));
        line.push_back({"shape", std::move(shape)});
        line.push_back({"values", std::move(values)});
      }
      SWITCHYARD_RETURN_IF_ERROR(curves_->Append(ToJson(line, JsonStyle::kOneLine) + "\n"));
    }
    return OkStatus();
  }

  Status EndRun() override { return OkStatus(); }

  Status Finish() override {
    SWITCHYARD_RETURN_IF_ERROR(runs_->Close());
    return curves_->Close();
  }

 private:
  const std::string folder_;
  pb::Sweep sweep_;
  pb::Run run_;
  std::optional<OutputFile> runs_;
  std::optional<OutputFile> curves_;
};

}  // namespace

std::unique_ptr<ExportWriter> MakeCsvWriter(const std::string& folder) {
  return std::make_unique<CsvWriter>(folder);
}

std::unique_ptr<ExportWriter> MakeJsonLinesWriter(const std::string& folder) {
  return std::make_unique<JsonLinesWriter>(folder);
}

}  // namespace switchyard::client
