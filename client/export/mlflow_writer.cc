// MLflow's folder of files: mlruns/EXPERIMENT/RUN with meta.yaml, params, metrics and tags.
#include <cmath>
#include <cstdint>
#include <map>

#include "client/commands/runs.h"
#include "client/export/export_writer.h"
#include "client/export/names.h"
#include "client/export/staged_folder.h"
#include "client/output/json.h"
#include "common/base/strings.h"
#include "switchyard/v1/results_service.pb.h"
#include "switchyard/v1/run_service.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

// MLflow's numbers of RunStatus.
enum MlflowStatus : int { kRunning = 1, kScheduled = 2, kFinished = 3, kFailed = 4, kKilled = 5 };
constexpr int kSourceLocal = 4;

MlflowStatus StatusOf(pb::RunState state) {
  switch (state) {
    case pb::RUN_STATE_SUCCEEDED:
    case pb::RUN_STATE_STOPPED_EARLY:
      return kFinished;
    case pb::RUN_STATE_FAILED:
    case pb::RUN_STATE_QUARANTINED:
      return kFailed;
    case pb::RUN_STATE_CANCELLED:
      return kKilled;
    case pb::RUN_STATE_ACTIVE:
      return kRunning;
    default:
      return kScheduled;
  }
}

// The hexadecimal digits of a uuid.
std::string Digits(const std::string& uuid) {
  std::string digits;
  for (const char c : uuid) {
    if (c != '-') digits += c;
  }
  return digits;
}

// Experiments have numbers of up to 18 digits: the same sweep always has the same one.
std::string ExperimentId(const std::string& sweep_id) {
  uint64_t number = 14695981039346656037ULL;  // FNV-1a over the id
  for (const char c : sweep_id) number = (number ^ static_cast<uint8_t>(c)) * 1099511628211ULL;
  return std::to_string(100'000'000'000'000'000ULL + number % 900'000'000'000'000'000ULL);
}

// An absolute path as a file: URI.
std::string FileUri(const std::string& path) {
  std::string uri = "file://";
  for (const char c : path) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') ||
                          std::string_view("/._-~").find(c) != std::string_view::npos;
    uri += is_plain ? std::string(1, c) : "%" + HexEncode(std::string_view(&c, 1));
  }
  return uri;
}

// JSON's strings are YAML's double-quoted ones.
std::string Line(const char* key, const std::string& text) {
  return StrCat(key, ": ", QuoteJson(text), "\n");
}
std::string Line(const char* key, int64_t number) { return StrCat(key, ": ", number, "\n"); }

std::string Number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return FormatDouble(value);
}

class MlflowWriter final : public ExportWriter {
 public:
  MlflowWriter(const std::string& folder, const std::string& target)
      : folder_(folder + "/mlruns"), target_(target + "/mlruns") {}

  Status Begin(const pb::Sweep& sweep) override {
    sweep_ = sweep;
    experiment_ = ExperimentId(sweep.id());
    return WriteNewFile(
        StrCat(folder_, "/", experiment_, "/meta.yaml"),
        Line("artifact_location", FileUri(StrCat(target_, "/", experiment_))) +
            Line("creation_time", sweep.created_ms()) + Line("experiment_id", experiment_) +
            Line("last_update_time", sweep.created_ms()) +
            Line("lifecycle_stage", std::string("active")) + Line("name", sweep.name()));
  }

  Status BeginRun(const pb::RunDetail& run) override {
    run_ = run;
    metrics_ = {};
    files_.clear();
    const pb::Run& info = run.run();
    const std::string id = Digits(info.id());
    place_ = StrCat(folder_, "/", experiment_, "/", id);
    std::string meta =
        Line("artifact_uri", FileUri(StrCat(target_, "/", experiment_, "/", id, "/artifacts")));
    meta += info.ended_ms() > 0 ? Line("end_time", info.ended_ms()) : "end_time: null\n";
    meta += Line("entry_point_name", std::string()) + Line("experiment_id", experiment_) +
            Line("lifecycle_stage", std::string("active")) + Line("run_id", id) +
            Line("run_name", info.name()) + Line("run_uuid", id) +
            Line("source_name", std::string("switchyard")) + Line("source_type", kSourceLocal) +
            Line("source_version", std::string()) + Line("start_time", info.started_ms()) +
            Line("status", StatusOf(info.state())) + "tags: []\n" + Line("user_id", std::string());
    SWITCHYARD_RETURN_IF_ERROR(WriteNewFile(place_ + "/meta.yaml", meta));
    SWITCHYARD_RETURN_IF_ERROR(MakeDirectories(place_ + "/artifacts"));
    SWITCHYARD_RETURN_IF_ERROR(MakeDirectories(place_ + "/metrics"));
    PathTable names;
    for (const auto& [name, value] : Parameters(run)) {
      SWITCHYARD_RETURN_IF_ERROR(
          WriteNewFile(StrCat(place_, "/params/", names.PathOf(name)), value));
    }
    return WriteTags(info);
  }

  Status AddPage(const std::string& series, const pb::GetCurveResponse& page) override {
    const std::vector<uint32_t> shape(page.shape().begin(), page.shape().end());
    for (const pb::Point& point : page.points()) {
      if (point.values_size() == 0) {
        Add(series, point, point.value());
      }
      for (int i = 0; i < point.values_size(); ++i) {
        Add(ElementName(series, IndexOf(static_cast<size_t>(i), shape)), point,
            static_cast<double>(point.values(i)));
      }
    }
    // A vector has many files: they are open one at a time.
    for (auto& [name, lines] : files_) {
      SWITCHYARD_RETURN_IF_ERROR(
          AppendToFile(StrCat(place_, "/metrics/", metrics_.PathOf(name)), lines));
    }
    files_.clear();
    return OkStatus();
  }

  Status EndRun() override { return OkStatus(); }
  Status Finish() override { return OkStatus(); }

 private:
  Status WriteTags(const pb::Run& info) {
    const std::pair<const char*, std::string> tags[] = {
        {"mlflow.runName", info.name()},     {"mlflow.note.content", info.reason()},
        {"switchyard.run_id", info.id()},    {"switchyard.run_key", info.run_key()},
        {"switchyard.sweep", sweep_.name()}, {"switchyard.state", StateText(info.state())}};
    for (const auto& [name, value] : tags) {
      if (value.empty()) continue;
      SWITCHYARD_RETURN_IF_ERROR(WriteNewFile(StrCat(place_, "/tags/", name), value));
    }
    return OkStatus();
  }

  void Add(const std::string& name, const pb::Point& point, double value) {
    files_[name] += StrCat(UnixMs(run_, point.attempt(), point.ms()), " ", Number(value), " ",
                           point.step(), "\n");
  }

  const std::string folder_;
  const std::string target_;
  pb::Sweep sweep_;
  pb::RunDetail run_;
  std::string experiment_;
  std::string place_;  // folder of the run
  PathTable metrics_;
  std::map<std::string, std::string> files_;  // lines of one page by metric
};

}  // namespace

std::unique_ptr<ExportWriter> MakeMlflowWriter(const std::string& folder,
                                               const std::string& target) {
  return std::make_unique<MlflowWriter>(folder, target);
}

}  // namespace switchyard::client
