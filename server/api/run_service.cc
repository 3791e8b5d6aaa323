#include "server/api/run_service.h"

#include <grpcpp/grpcpp.h>

#include <memory>
#include <utility>

#include "common/base/clock.h"
#include "common/base/strings.h"
#include "server/api/call.h"
#include "server/api/convert.h"
#include "server/api/core.h"
#include "server/scheduler/explain.h"
#include "switchyard/v1/run_service.grpc.pb.h"

namespace switchyard::api {
namespace {

namespace pb = ::switchyard::v1;

constexpr int kSeriesMax = 64;
constexpr size_t kHistoryMax = 200;
constexpr size_t kLogBytesMax = 1 << 20;

Status List(store::ReadStore& store, const pb::ListRunsRequest& request,
            pb::ListRunsResponse* response) {
  store::RunFilter filter;
  if (request.series_size() > kSeriesMax) {
    return InvalidArgument(StrCat("at most ", kSeriesMax, " series are listed"));
  }
  filter.series = {request.series().begin(), request.series().end()};
  if (!request.sweep().empty()) {
    SWITCHYARD_ASSIGN_OR_RETURN(const store::SweepInfo sweep,
                                store.FindSweep(request.sweep(), /*with_spec=*/false));
    filter.sweep = sweep.row.id;
  }
  for (const int state : request.states()) {
    if (state < pb::RUN_STATE_QUEUED || state > pb::RUN_STATE_QUARANTINED) {
      return InvalidArgument(StrCat("states: ", state, " is not known"));
    }
    filter.states.push_back(static_cast<scheduler::RunState>(state));
  }
  SWITCHYARD_ASSIGN_OR_RETURN(
      const store::RunPage page,
      store.ListRuns(filter, request.page_token(), PageSize(request.page_size(), 100, 1000)));
  for (const store::RunInfo& run : page.runs) ToProto(run, response->add_runs());
  response->set_next_page_token(page.next);
  response->set_total(page.total);
  return OkStatus();
}

Status Detail(store::ReadStore& store, const pb::GetRunRequest& request, pb::RunDetail* response) {
  SWITCHYARD_ASSIGN_OR_RETURN(const store::RunInfo run, store.FindRun(request.run()));
  ToProto(run, response->mutable_run());
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<scheduler::SummaryRow> summaries,
                              store.ListSummaries(run.row.id));
  response->mutable_run()->clear_summary();
  for (const scheduler::SummaryRow& row : summaries) {
    ToProto(row, response->mutable_run()->add_summary());
  }
  SWITCHYARD_ASSIGN_OR_RETURN(const store::RunDocument document, store.GetRunDocument(run.row.id));
  if (!response->mutable_spec()->ParseFromString(document.spec)) {
    return DataLoss(
        StrCat("the stored document of run ", run.row.id.value.ToString(), " cannot be read"));
  }
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<store::AttemptInfo> attempts,
                              store.ListAttempts(run.row.id));
  for (const store::AttemptInfo& attempt : attempts) ToProto(attempt, response->add_attempts());
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<scheduler::CheckpointRow> checkpoints,
                              store.ListCheckpoints(run.row.id));
  for (const scheduler::CheckpointRow& row : checkpoints) {
    ToProto(row, response->add_checkpoints());
  }
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<scheduler::HistoryRow> history,
                              store.ListHistory(run.row.id.value, kHistoryMax));
  for (const scheduler::HistoryRow& row : history) {
    char buffer[32];
    response->add_history(
        StrCat(FormatUnixMilliseconds(row.at_ms, buffer), " ", row.kind, ": ", row.text));
  }
  return OkStatus();
}

Status Log(store::ReadStore& store, const pb::ReadLogRequest& request,
           pb::ReadLogResponse* response) {
  if (request.stream() != pb::LOG_STREAM_STDOUT && request.stream() != pb::LOG_STREAM_STDERR) {
    return InvalidArgument(StrCat("stream ", static_cast<int>(request.stream()), " is not known"));
  }
  SWITCHYARD_ASSIGN_OR_RETURN(const store::RunInfo run, store.FindRun(request.run()));
  const auto stream = request.stream() == pb::LOG_STREAM_STDOUT ? scheduler::LogStream::kStdout
                                                                : scheduler::LogStream::kStderr;
  SWITCHYARD_ASSIGN_OR_RETURN(
      store::LogPage page,
      store.ReadLog(run.row.id, request.attempt(), stream, request.offset(),
                    PageSize(request.max_bytes(), kLogBytesMax, kLogBytesMax)));
  response->set_data(std::move(page.data));
  response->set_next_offset(page.next_offset);
  response->set_at_end(page.at_end);
  response->set_attempt(page.attempt);
  response->set_skipped(page.skipped);
  return OkStatus();
}

class RunService final : public pb::RunService::CallbackService {
 public:
  explicit RunService(const ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* ListRuns(grpc::CallbackServerContext* context,
                                     const pb::ListRunsRequest* request,
                                     pb::ListRunsResponse* response) override;
  grpc::ServerUnaryReactor* GetRun(grpc::CallbackServerContext* context,
                                   const pb::GetRunRequest* request,
                                   pb::RunDetail* response) override;
  grpc::ServerUnaryReactor* ControlRun(grpc::CallbackServerContext* context,
                                       const pb::ControlRunRequest* request,
                                       pb::ControlRunResponse* response) override;
  grpc::ServerUnaryReactor* PinCheckpoint(grpc::CallbackServerContext* context,
                                          const pb::PinCheckpointRequest* request,
                                          pb::PinCheckpointResponse* response) override;
  grpc::ServerUnaryReactor* ExplainRun(grpc::CallbackServerContext* context,
                                       const pb::ExplainRunRequest* request,
                                       pb::ExplainRunResponse* response) override;
  grpc::ServerUnaryReactor* ReadLog(grpc::CallbackServerContext* context,
                                    const pb::ReadLogRequest* request,
                                    pb::ReadLogResponse* response) override;

 private:
  const ServiceContext context_;
};

grpc::ServerUnaryReactor* RunService::ListRuns(grpc::CallbackServerContext* context,
                                               const pb::ListRunsRequest* request,
                                               pb::ListRunsResponse* response) {
  return context_.Read(context, Method::kListRuns, [request, response](store::ReadStore& store) {
    return List(store, *request, response);
  });
}

grpc::ServerUnaryReactor* RunService::GetRun(grpc::CallbackServerContext* context,
                                             const pb::GetRunRequest* request,
                                             pb::RunDetail* response) {
  return context_.Read(context, Method::kGetRun, [request, response](store::ReadStore& store) {
    return Detail(store, *request, response);
  });
}

grpc::ServerUnaryReactor* RunService::ControlRun(grpc::CallbackServerContext* context,
                                                 const pb::ControlRunRequest* request,
                                                 pb::ControlRunResponse* response) {
  Status valid = CheckRequestId(request->request_id());
  if (valid.ok()) valid = CheckText(request->reason(), "reason");
  const Result<scheduler::Verb> verb = VerbOf(request->action());
  if (valid.ok()) valid = verb.status();
  Core* core = context_.core;
  Readers* readers = context_.readers;
  return context_.LookUp(context, Method::kControlRun, valid,
                         [=](const CallPtr& call, store::ReadStore& store) {
                           const Result<store::RunInfo> found = store.FindRun(request->run());
                           if (!found.ok()) return call->Finish(found.status());
                           SteerInput input;
                           input.run = found->row.id;
                           input.verb = *verb;
                           input.priority = request->priority();
                           input.reason = request->reason();
                           input.request_id = request->request_id();
                           core->Steer(std::move(input), [=](const Result<uint64_t>& affected) {
                             if (!affected.ok()) return call->Finish(affected.status());
                             // As it stands after the commit.
                             readers->Post([=](Result<store::ReadStore*> again) {
                               if (!again.ok()) return call->Finish(again.status());
                               const Result<store::RunInfo> run = (*again)->FindRun(request->run());
                               if (run.ok()) ToProto(*run, response->mutable_run());
                               call->Finish(run.status());
                             });
                           });
                         });
}

grpc::ServerUnaryReactor* RunService::PinCheckpoint(grpc::CallbackServerContext* context,
                                                    const pb::PinCheckpointRequest* request,
                                                    pb::PinCheckpointResponse* response) {
  Core* core = context_.core;
  return context_.LookUp(
      context, Method::kPinCheckpoint, OkStatus(),
      [=](const CallPtr& call, store::ReadStore& store) {
        const Result<store::RunInfo> run = store.FindRun(request->run());
        if (!run.ok()) return call->Finish(run.status());
        const Result<std::vector<scheduler::CheckpointRow>> rows =
            store.ListCheckpoints(run->row.id);
        if (!rows.ok()) return call->Finish(rows.status());
        // Of two attempts that reached the step, the newer one's.
        const scheduler::CheckpointRow* found = nullptr;
        for (const scheduler::CheckpointRow& row : *rows) {
          if (row.step == request->step()) found = &row;
        }
        if (found == nullptr) {
          return call->Finish(NotFound(
              StrCat("run ", request->run(), " has no checkpoint at step ", request->step())));
        }
        ToProto(*found, response->mutable_checkpoint());
        response->mutable_checkpoint()->set_pinned(request->pinned());
        core->Pin({.checkpoint = {.run = found->run, .epoch = found->epoch, .step = found->step},
                   .pinned = request->pinned()},
                  [call](const Result<uint64_t>& done) { call->Finish(done.status()); });
      });
}

grpc::ServerUnaryReactor* RunService::ExplainRun(grpc::CallbackServerContext* context,
                                                 const pb::ExplainRunRequest* request,
                                                 pb::ExplainRunResponse* response) {
  Core* core = context_.core;
  return context_.LookUp(
      context, Method::kExplainRun, OkStatus(), [=](const CallPtr& call, store::ReadStore& store) {
        Result<store::RunInfo> found = store.FindRun(request->run());
        if (!found.ok()) return call->Finish(found.status());
        core->Explain(found->row.id, [=, status = found->status](
                                         const Result<std::vector<std::string>>& lines) {
          if (!lines.ok()) return call->Finish(lines.status());
          for (const std::string& line : lines->empty() ? scheduler::ExplainEnd(status) : *lines) {
            response->add_lines(line);
          }
          call->Finish(OkStatus());
        });
      });
}

grpc::ServerUnaryReactor* RunService::ReadLog(grpc::CallbackServerContext* context,
                                              const pb::ReadLogRequest* request,
                                              pb::ReadLogResponse* response) {
  return context_.Read(context, Method::kReadLog, [request, response](store::ReadStore& store) {
    return Log(store, *request, response);
  });
}

}  // namespace

std::unique_ptr<grpc::Service> MakeRunService(const ServiceContext& context) {
  return std::make_unique<RunService>(context);
}

}  // namespace switchyard::api
