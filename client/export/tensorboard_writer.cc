// TensorBoard: a folder with one event file per run.
#include <cstdint>

#include "client/commands/runs.h"
#include "client/export/export_writer.h"
#include "client/export/names.h"
#include "client/export/staged_folder.h"
#include "client/export/tfrecord.h"
#include "common/base/strings.h"
#include "switchyard/export/tensorboard.pb.h"
#include "switchyard/v1/results_service.pb.h"
#include "switchyard/v1/run_service.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;
namespace tb = ::switchyard::tensorboard;

namespace {

constexpr char kHParams[] = "hparams";

double Seconds(int64_t unix_ms) { return static_cast<double>(unix_ms) / 1000; }

tb::SessionStatus StatusOf(pb::RunState state) {
  if (state == pb::RUN_STATE_SUCCEEDED || state == pb::RUN_STATE_STOPPED_EARLY) {
    return tb::SESSION_STATUS_SUCCESS;
  }
  return IsTerminal(state) ? tb::SESSION_STATUS_FAILURE : tb::SESSION_STATUS_RUNNING;
}

class TensorBoardWriter final : public ExportWriter {
 public:
  explicit TensorBoardWriter(std::string folder) : folder_(std::move(folder)) {}

  Status Begin(const pb::Sweep&) override { return OkStatus(); }

  Status BeginRun(const pb::RunDetail& run) override {
    run_ = run;
    const std::string folder = StrCat(folder_, "/", FolderOf(run.run()));
    SWITCHYARD_RETURN_IF_ERROR(MakeDirectories(folder));
    const int64_t start_ms = run.run().started_ms();
    SWITCHYARD_ASSIGN_OR_RETURN(
        OutputFile file,
        OutputFile::Make(StrCat(folder, "/events.out.tfevents.", start_ms / 1000, ".switchyard")));
    file_.emplace(std::move(file));
    tb::Event first;
    first.set_wall_time(Seconds(start_ms));
    first.set_file_version("brain.Event:2");
    SWITCHYARD_RETURN_IF_ERROR(Write(first));
    return WriteHParams();
  }

  Status AddPage(const std::string& series, const pb::GetCurveResponse& page) override {
    const std::vector<uint32_t> shape(page.shape().begin(), page.shape().end());
    for (const pb::Point& point : page.points()) {
      tb::Event event;
      event.set_wall_time(Seconds(UnixMs(run_, point.attempt(), point.ms())));
      event.set_step(static_cast<int64_t>(point.step()));
      if (point.values_size() == 0) {
        Add(series, SinglePrecision(point.value()), &event);
      }
      for (int i = 0; i < point.values_size(); ++i) {
        Add(ElementName(series, IndexOf(static_cast<size_t>(i), shape)), point.values(i), &event);
      }
      SWITCHYARD_RETURN_IF_ERROR(Write(event));
    }
    return OkStatus();
  }

  Status EndRun() override {
    tb::HParamsContent end;
    end.mutable_session_end()->set_status(StatusOf(run_.run().state()));
    end.mutable_session_end()->set_end_time_secs(Seconds(run_.run().ended_ms()));
    SWITCHYARD_RETURN_IF_ERROR(WritePlugin("_hparams_/session_end_info", end));
    return file_->Close();
  }

  Status Finish() override { return OkStatus(); }

 private:
  // Numbers sort as text too; the rest is for people.
  static std::string FolderOf(const pb::Run& run) {
    std::string number = std::to_string(run.number());
    if (number.size() < 4) number.insert(0, 4 - number.size(), '0');
    std::string name = number;
    for (const pb::AxisValue& column : run.columns()) name += StrCat("-", column.value());
    return SafeComponent(StrCat(name.substr(0, 80), "-seed", run.seed()));
  }

  static void Add(const std::string& tag, float value, tb::Event* event) {
    tb::SummaryValue* one = event->mutable_summary()->add_value();
    one->set_tag(tag);
    one->set_simple_value(value);
  }

  Status WriteHParams() {
    tb::HParamsContent content;
    tb::SessionStart* start = content.mutable_session_start();
    start->set_start_time_secs(Seconds(run_.run().started_ms()));
    std::string group;
    const auto add = [&](const std::string& name, const std::string& text) {
      google::protobuf::Value& value = (*start->mutable_hparams())[name];
      const auto number = ParseDouble(text);
      if (number.has_value()) {
        value.set_number_value(*number);
      } else {
        value.set_string_value(text);
      }
    };
    for (const pb::AxisValue& column : run_.run().columns()) {
      add(column.axis(), column.value());
      group += StrCat(group.empty() ? "" : ", ", column.axis(), "=", column.value());
    }
    add("seed", std::to_string(run_.run().seed()));
    start->set_group_name(group.empty() ? run_.run().name() : group);
    return WritePlugin("_hparams_/session_start_info", content);
  }

  // Such a record carries its content as metadata of an empty tensor.
  Status WritePlugin(const char* tag, const tb::HParamsContent& content) {
    tb::Event event;
    event.set_wall_time(Seconds(run_.run().started_ms()));
    tb::SummaryValue* value = event.mutable_summary()->add_value();
    value->set_tag(tag);
    value->mutable_metadata()->mutable_plugin_data()->set_plugin_name(kHParams);
    value->mutable_metadata()->mutable_plugin_data()->set_content(content.SerializeAsString());
    value->mutable_tensor()->set_dtype(tb::DATA_TYPE_FLOAT);
    value->mutable_tensor()->mutable_shape()->add_dim()->set_size(0);
    return Write(event);
  }

  Status Write(const tb::Event& event) {
    return file_->Append(TfRecord(event.SerializeAsString()));
  }

  const std::string folder_;
  pb::RunDetail run_;
  std::optional<OutputFile> file_;
};

}  // namespace

std::unique_ptr<ExportWriter> MakeTensorBoardWriter(const std::string& folder) {
  return std::make_unique<TensorBoardWriter>(folder);
}

}  // namespace switchyard::client
