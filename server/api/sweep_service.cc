#include "server/api/sweep_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "common/base/clock.h"
#include "common/base/strings.h"
#include "common/spec/accounting.h"
#include "common/spec/sweep_plan.h"
#include "server/api/call.h"
#include "server/api/convert.h"
#include "server/api/core.h"
#include "server/api/cost.h"
#include "server/api/expansion.h"
#include "server/api/strategy.h"
#include "server/api/sweep_changes.h"
#include "server/scheduler/lease_policy.h"
#include "switchyard/v1/sweep_service.grpc.pb.h"

namespace switchyard::api {
namespace {

namespace pb = ::switchyard::v1;

constexpr size_t kSpecBytesMax = 1 << 20;
constexpr uint64_t kCellsShown = 100;
constexpr uint64_t kCellsMax = 1000;
// Runs of a plan whose reuse is looked up one by one; larger plans say what the first ones reuse.
constexpr uint64_t kReuseLookups = 20000;
constexpr int kRetriesMax = 1000;
constexpr int kTellsMax = 100;

Status CheckSpec(const pb::SweepSpec& spec) {
  if (spec.ByteSizeLong() > kSpecBytesMax) {
    return InvalidArgument(StrCat("a sweep document of ", spec.ByteSizeLong(), " bytes, at most ",
                                  kSpecBytesMax, " are taken"));
  }
  return OkStatus();
}

void AddCell(const spec::PlannedRun& run, pb::PlannedCell* cell) {
  cell->set_number(run.cell);
  for (const auto& [axis, value] : run.columns) {
    pb::AxisValue* column = cell->add_columns();
    column->set_axis(axis);
    column->set_value(value);
  }
  cell->set_run_key(run.run_key);
  const spec::Accounting accounting = spec::Account(*run.run);
  cell->set_params_total(accounting.params_total);
  cell->set_params_active(accounting.params_active);
  cell->set_flops_per_token_active(accounting.flops_per_token_active);
  const pb::TrainSpec& train = run.run->train();
  cell->set_train_tokens(train.steps() * train.batch() * train.target_len());
}

// What a strategy would propose first, before it has heard anything.
Status PlanDrawn(store::ReadStore& store, const Expansion& expansion, uint64_t shown,
                 pb::PlanSweepResponse* response) {
  const spec::SweepPlan& plan = expansion.plan();
  response->set_drawn_cells(plan.drawn_cells());
  response->set_cells(plan.drawn_cells());
  response->set_runs(plan.drawn_cells() * plan.seeds().size());
  SWITCHYARD_ASSIGN_OR_RETURN(const std::unique_ptr<search::Search> search,
                              expansion.MakeSearch(expansion.roots().front()));
  std::vector<std::string> notices;
  for (const search::Action& action : search->Propose(shown)) {
    if (action.kind != search::Action::Kind::kPropose) continue;
    pb::PlannedCell* cell = response->add_plan();
    std::vector<std::string> keys;
    for (const uint64_t seed : action.seeds) {
      std::vector<spec::Fault> faults;
      const spec::PlannedRun run =
          plan.From(DrawsOf(search->space(), action.point), action.cell, seed, &faults);
      if (!faults.empty()) {
        return InvalidArgument(StrCat("cell ", action.cell, ": ", spec::ToString(faults)));
      }
      if (keys.empty()) AddCell(run, cell);
      keys.push_back(run.run_key);
      cell->add_seeds(run.seed);
      for (const std::string& notice : run.notices) {
        if (std::ranges::find(notices, notice) == notices.end()) notices.push_back(notice);
      }
    }
    SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<std::optional<store::ValidRun>> valid,
                                store.FindValidRuns(expansion.sweep().project, keys));
    for (const std::optional<store::ValidRun>& run : valid) {
      cell->add_reused_runs(run.has_value() ? run->id.value.ToString() : "");
      response->set_reused_runs(response->reused_runs() + (run.has_value() ? 1 : 0));
    }
  }
  for (std::string& notice : notices) response->add_notices(std::move(notice));
  return OkStatus();
}

// What of a sweep with stages the plan does not list.
void NoteStages(const pb::SweepSpec& spec, pb::PlanSweepResponse* response) {
  bool is_first = true;
  for (const pb::StageSpec& stage : spec.stages()) {
    if (stage.has_needs()) {
      response->add_notices(StrCat("stage ", stage.id(), ": its runs are made when those of ",
                                   stage.needs().sweep(), stage.needs().sweep().empty() ? "" : "/",
                                   stage.needs().stage(), " have ended"));
    } else if (!std::exchange(is_first, false)) {
      response->add_notices(StrCat("stage ", stage.id(), ": its cells are not listed here"));
    }
  }
}

// Fills the plan: cells with their first seed, and the reuse of every run up to a bound.
Status Plan(store::ReadStore& store, const pb::PlanSweepRequest& request,
            pb::PlanSweepResponse* response) {
  SWITCHYARD_RETURN_IF_ERROR(CheckSpec(request.spec()));
  pb::SweepSpec spec = request.spec();
  SWITCHYARD_RETURN_IF_ERROR(ResolveInit(store, &spec));
  SWITCHYARD_ASSIGN_OR_RETURN(const std::shared_ptr<const Expansion> expansion,
                              Expansion::Make(spec));
  response->set_spec_hash(expansion->sweep().spec_hash);
  NoteStages(request.spec(), response);
  if (expansion->roots().empty()) return OkStatus();
  const spec::SweepPlan& plan = expansion->plan();
  const uint64_t wanted = request.max_cells() == 0 ? kCellsShown : uint64_t{request.max_cells()};
  if (plan.is_drawn()) {
    return PlanDrawn(store, *expansion, std::min(wanted, kCellsMax), response);
  }
  response->set_cells(plan.cell_count());
  response->set_runs(plan.run_count());
  response->set_distinct_runs(plan.DistinctRuns(kCellsMax).value_or(0));
  const uint64_t shown = std::min({plan.cell_count(), kCellsMax, wanted});
  const uint64_t looked_up = std::min(plan.run_count(), kReuseLookups);
  std::map<uint64_t, pb::PlannedCell*> cells;
  std::vector<std::string> notices;
  uint64_t reused = 0;
  std::vector<spec::Fault> faults;
  for (uint64_t first = 1; first <= looked_up; first += scheduler::kProposalsMax) {
    const uint64_t end = std::min(looked_up + 1, first + scheduler::kProposalsMax);
    std::vector<std::string> keys;
    std::vector<uint64_t> cell_of;
    for (uint64_t number = first; number < end; ++number) {
      const spec::PlannedRun run = plan.At(number, &faults);
      if (!faults.empty()) {
        return InvalidArgument(StrCat("run ", number, ": ", spec::ToString(faults)));
      }
      keys.push_back(run.run_key);
      cell_of.push_back(run.cell);
      for (const std::string& notice : run.notices) {
        if (std::ranges::find(notices, notice) == notices.end()) notices.push_back(notice);
      }
      if (run.cell > shown) continue;
      pb::PlannedCell*& cell = cells[run.cell];
      if (cell == nullptr) {
        cell = response->add_plan();
        AddCell(run, cell);
      }
      cell->add_seeds(run.seed);
      cell->add_reused_runs("");
    }
    SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<std::optional<store::ValidRun>> valid,
                                store.FindValidRuns(expansion->sweep().project, keys));
    for (size_t i = 0; i < valid.size(); ++i) {
      if (!valid[i].has_value()) continue;
      ++reused;
      const auto cell = cells.find(cell_of[i]);
      if (cell == cells.end()) continue;
      // The seeds of a cell come in rounds: this one is the newest without an entry.
      const uint64_t round = (first + i - 1) / plan.cell_count();
      if (round < static_cast<uint64_t>(cell->second->reused_runs_size())) {
        cell->second->set_reused_runs(static_cast<int>(round), valid[i]->id.value.ToString());
      }
    }
  }
  response->set_reused_runs(reused);
  for (std::string& notice : notices) response->add_notices(std::move(notice));
  return OkStatus();
}

Status PlanWithCost(store::ReadStore& store, const pb::PlanSweepRequest& request,
                    pb::PlanSweepResponse* response) {
  SWITCHYARD_RETURN_IF_ERROR(Plan(store, request, response));
  const std::string& project = request.spec().project();
  SWITCHYARD_ASSIGN_OR_RETURN(
      const double hours,
      EstimateSlotHours(store, project.empty() ? "default" : project, *response));
  response->set_slot_hours_estimate(hours);
  return OkStatus();
}

class SweepService final : public pb::SweepService::CallbackService {
 public:
  explicit SweepService(const ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* SubmitSweep(grpc::CallbackServerContext* context,
                                        const pb::SubmitSweepRequest* request,
                                        pb::SubmitSweepResponse* response) override;
  grpc::ServerUnaryReactor* PlanSweep(grpc::CallbackServerContext* context,
                                      const pb::PlanSweepRequest* request,
                                      pb::PlanSweepResponse* response) override;
  grpc::ServerUnaryReactor* ListSweeps(grpc::CallbackServerContext* context,
                                       const pb::ListSweepsRequest* request,
                                       pb::ListSweepsResponse* response) override;
  grpc::ServerUnaryReactor* GetSweep(grpc::CallbackServerContext* context,
                                     const pb::GetSweepRequest* request,
                                     pb::Sweep* response) override;
  grpc::ServerUnaryReactor* ControlSweep(grpc::CallbackServerContext* context,
                                         const pb::ControlSweepRequest* request,
                                         pb::ControlSweepResponse* response) override;
  grpc::ServerUnaryReactor* RetryRuns(grpc::CallbackServerContext* context,
                                      const pb::RetryRunsRequest* request,
                                      pb::RetryRunsResponse* response) override;
  grpc::ServerUnaryReactor* ExtendSweep(grpc::CallbackServerContext* context,
                                        const pb::ExtendSweepRequest* request,
                                        pb::ExtendSweepResponse* response) override;
  grpc::ServerUnaryReactor* ForkRun(grpc::CallbackServerContext* context,
                                    const pb::ForkRunRequest* request,
                                    pb::SubmitSweepResponse* response) override;
  grpc::ServerUnaryReactor* Ask(grpc::CallbackServerContext* context, const pb::AskRequest* request,
                                pb::AskResponse* response) override;
  grpc::ServerUnaryReactor* Tell(grpc::CallbackServerContext* context,
                                 const pb::TellRequest* request,
                                 pb::TellResponse* response) override;

 private:
  const ServiceContext context_;
};

// On a query thread: checking and expanding take CPU time.
void SubmitDocument(Core* core, const pb::SweepSpec& spec, bool rerun,
                    const std::string& request_id, const CallPtr& call,
                    pb::SubmitSweepResponse* response) {
  Result<std::shared_ptr<const Expansion>> expansion = Expansion::Make(spec);
  if (!expansion.ok()) return call->Finish(expansion.status());
  Result<std::vector<scheduler::PlannedRun>> first =
      (*expansion)->Expand(1, scheduler::kProposalsMax, UnixMilliseconds());
  if (!first.ok()) return call->Finish(first.status());
  SubmitInput input{.expansion = *std::move(expansion),
                    .first = *std::move(first),
                    .rerun = rerun,
                    .request_id = request_id};
  core->Submit(std::move(input), [call, response](const Result<SubmitReply>& reply) {
    if (reply.ok()) {
      ToProto(reply->sweep, response->mutable_sweep());
      response->set_existed(reply->existed);
      response->set_reused_runs(reply->reused);
    }
    call->Finish(reply.status());
  });
}

grpc::ServerUnaryReactor* SweepService::SubmitSweep(grpc::CallbackServerContext* context,
                                                    const pb::SubmitSweepRequest* request,
                                                    pb::SubmitSweepResponse* response) {
  Status valid = CheckRequestId(request->request_id());
  if (valid.ok()) valid = CheckSpec(request->spec());
  Core* core = context_.core;
  // Checking and expanding take CPU time: on a query thread, not on gRPC's.
  return context_.LookUp(
      context, Method::kSubmitSweep, valid, [=](const CallPtr& call, store::ReadStore& store) {
        if (call->is_cancelled()) return call->Finish({Code::kCancelled, "the client has gone"});
        pb::SweepSpec spec = request->spec();
        if (const Status status = ResolveInit(store, &spec); !status.ok()) {
          return call->Finish(status);
        }
        SubmitDocument(core, spec, request->rerun(), request->request_id(), call, response);
      });
}

grpc::ServerUnaryReactor* SweepService::ForkRun(grpc::CallbackServerContext* context,
                                                const pb::ForkRunRequest* request,
                                                pb::SubmitSweepResponse* response) {
  const Status valid = CheckRequestId(request->request_id());
  Core* core = context_.core;
  return context_.LookUp(
      context, Method::kForkRun, valid, [=](const CallPtr& call, store::ReadStore& store) {
        pb::SweepSpec spec;
        if (const Status status = PlanFork(store, *request, &spec); !status.ok()) {
          return call->Finish(status);
        }
        SubmitDocument(core, spec, /*rerun=*/false, request->request_id(), call, response);
      });
}

grpc::ServerUnaryReactor* SweepService::ExtendSweep(grpc::CallbackServerContext* context,
                                                    const pb::ExtendSweepRequest* request,
                                                    pb::ExtendSweepResponse* response) {
  Status valid = CheckRequestId(request->request_id());
  if (valid.ok()) valid = CheckSpec(request->spec());
  Core* core = context_.core;
  return context_.LookUp(
      context, Method::kExtendSweep, valid, [=](const CallPtr& call, store::ReadStore& store) {
        Result<ExtendInput> input = PlanExtend(store, *request);
        if (!input.ok()) return call->Finish(input.status());
        for (const spec::StageExtension& stage : input->extensions) {
          response->set_cells_added(response->cells_added() + stage.added_cells);
          response->set_seeds_added(response->seeds_added() + stage.added_seeds.size());
        }
        core->Extend(*std::move(input), [call, response](const Result<ExtendReply>& reply) {
          if (reply.ok()) {
            ToProto(reply->sweep, response->mutable_sweep());
            response->set_existed(reply->existed);
          }
          call->Finish(reply.status());
        });
      });
}

grpc::ServerUnaryReactor* SweepService::PlanSweep(grpc::CallbackServerContext* context,
                                                  const pb::PlanSweepRequest* request,
                                                  pb::PlanSweepResponse* response) {
  return context_.Read(context, Method::kPlanSweep, [request, response](store::ReadStore& store) {
    return PlanWithCost(store, *request, response);
  });
}

grpc::ServerUnaryReactor* SweepService::ListSweeps(grpc::CallbackServerContext* context,
                                                   const pb::ListSweepsRequest* request,
                                                   pb::ListSweepsResponse* response) {
  return context_.Read(context, Method::kListSweeps, [request, response](store::ReadStore& store) {
    SWITCHYARD_ASSIGN_OR_RETURN(const store::SweepPage page,
                                store.ListSweeps(request->all(), request->page_token(),
                                                 PageSize(request->page_size(), 100, 1000)));
    for (const store::SweepInfo& sweep : page.sweeps) ToProto(sweep, response->add_sweeps());
    response->set_next_page_token(page.next);
    return OkStatus();
  });
}

grpc::ServerUnaryReactor* SweepService::GetSweep(grpc::CallbackServerContext* context,
                                                 const pb::GetSweepRequest* request,
                                                 pb::Sweep* response) {
  return context_.Read(context, Method::kGetSweep, [request, response](store::ReadStore& store) {
    SWITCHYARD_ASSIGN_OR_RETURN(const store::SweepInfo sweep,
                                store.FindSweep(request->sweep(), /*with_spec=*/true));
    ToProto(sweep, response);
    return OkStatus();
  });
}

grpc::ServerUnaryReactor* SweepService::ControlSweep(grpc::CallbackServerContext* context,
                                                     const pb::ControlSweepRequest* request,
                                                     pb::ControlSweepResponse* response) {
  Status valid = CheckRequestId(request->request_id());
  if (valid.ok()) valid = CheckText(request->reason(), "reason");
  const Result<scheduler::Verb> verb = VerbOf(request->action());
  if (valid.ok()) valid = verb.status();
  Core* core = context_.core;
  return context_.LookUp(
      context, Method::kControlSweep, valid, [=](const CallPtr& call, store::ReadStore& store) {
        const Result<store::SweepInfo> sweep =
            store.FindSweep(request->sweep(), /*with_spec=*/false);
        if (!sweep.ok()) return call->Finish(sweep.status());
        SteerInput input;
        input.sweep = sweep->row.id;
        input.verb = *verb;
        input.priority = request->priority();
        input.reason = request->reason();
        input.request_id = request->request_id();
        core->Steer(std::move(input), [call, response](const Result<uint64_t>& affected) {
          if (affected.ok()) response->set_runs_affected(*affected);
          call->Finish(affected.status());
        });
      });
}

// Runs by their numbers in the sweep; none given: all that have failed or were quarantined.
Result<RetryInput> PlanRetry(store::ReadStore& store, const pb::RetryRunsRequest& request) {
  SWITCHYARD_ASSIGN_OR_RETURN(const store::SweepInfo sweep,
                              store.FindSweep(request.sweep(), /*with_spec=*/false));
  RetryInput input{.sweep = sweep.row.id, .runs = {}, .request_id = request.request_id()};
  if (request.numbers_size() > kRetriesMax) {
    return InvalidArgument(
        StrCat(request.numbers_size(), " runs, at most ", kRetriesMax, " are retried in one call"));
  }
  for (const uint64_t number : request.numbers()) {
    SWITCHYARD_ASSIGN_OR_RETURN(const store::RunInfo run,
                                store.FindRun(StrCat(sweep.row.name, "/", number)));
    input.runs.push_back(run.row.id);
  }
  if (request.numbers_size() > 0) return input;
  const store::RunFilter filter{
      .sweep = sweep.row.id,
      .states = {scheduler::RunState::kFailed, scheduler::RunState::kQuarantined},
      .series = {}};
  SWITCHYARD_ASSIGN_OR_RETURN(const store::RunPage page, store.ListRuns(filter, "", kRetriesMax));
  for (const store::RunInfo& run : page.runs) input.runs.push_back(run.row.id);
  return input;
}

grpc::ServerUnaryReactor* SweepService::RetryRuns(grpc::CallbackServerContext* context,
                                                  const pb::RetryRunsRequest* request,
                                                  pb::RetryRunsResponse* response) {
  const Status valid = CheckRequestId(request->request_id());
  Core* core = context_.core;
  return context_.LookUp(
      context, Method::kRetryRuns, valid, [=](const CallPtr& call, store::ReadStore& store) {
        Result<RetryInput> input = PlanRetry(store, *request);
        if (!input.ok()) return call->Finish(input.status());
        core->Retry(*std::move(input), [call, response](const Result<RetryReply>& reply) {
          if (reply.ok()) {
            ToProto(reply->sweep, response->mutable_sweep());
            response->set_runs_made(reply->runs_made);
          }
          call->Finish(reply.status());
        });
      });
}

grpc::ServerUnaryReactor* SweepService::Ask(grpc::CallbackServerContext* context,
                                            const pb::AskRequest* request,
                                            pb::AskResponse* response) {
  Core* core = context_.core;
  return context_.LookUp(
      context, Method::kAsk, OkStatus(), [=](const CallPtr& call, store::ReadStore& store) {
        const Result<store::SweepInfo> sweep =
            store.FindSweep(request->sweep(), /*with_spec=*/false);
        if (!sweep.ok()) return call->Finish(sweep.status());
        core->Ask(sweep->row.id, request->since(), [call, response](const Result<AskReply>& reply) {
          if (reply.ok()) {
            for (const search::CellReport& cell : reply->cells) {
              pb::CellReport* out = response->add_cells();
              out->set_cell(cell.cell);
              if (cell.end.has_value()) out->set_end(static_cast<pb::CellEnd>(*cell.end));
              out->set_step(cell.step);
              out->set_value(cell.value);
            }
            response->set_ended(reply->ended);
            response->set_is_closed(reply->is_closed);
          }
          call->Finish(reply.status());
        });
      });
}

grpc::ServerUnaryReactor* SweepService::Tell(grpc::CallbackServerContext* context,
                                             const pb::TellRequest* request,
                                             pb::TellResponse* response) {
  Status valid = CheckRequestId(request->request_id());
  if (valid.ok() && (request->cells_size() > kTellsMax || request->stop_size() > kTellsMax)) {
    valid = InvalidArgument(StrCat(request->cells_size(), " cells and ", request->stop_size(),
                                   " to stop, at most ", kTellsMax, " of each are taken"));
  }
  Core* core = context_.core;
  return context_.LookUp(
      context, Method::kTell, valid, [=](const CallPtr& call, store::ReadStore& store) {
        const Result<store::SweepInfo> sweep =
            store.FindSweep(request->sweep(), /*with_spec=*/false);
        if (!sweep.ok()) return call->Finish(sweep.status());
        TellInput input{.sweep = sweep->row.id,
                        .cells = {},
                        .stop = {request->stop().begin(), request->stop().end()},
                        .close = request->close(),
                        .request_id = request->request_id()};
        for (const pb::CellPoint& cell : request->cells()) {
          NamedValues& values = input.cells.emplace_back();
          for (const pb::AxisValue& value : cell.values()) {
            values.emplace_back(value.axis(), value.value());
          }
        }
        core->Tell(std::move(input), [call, response](const Result<TellReply>& reply) {
          if (reply.ok())
            response->mutable_cells()->Assign(reply->cells.begin(), reply->cells.end());
          call->Finish(reply.status());
        });
      });
}

}  // namespace

std::unique_ptr<grpc::Service> MakeSweepService(const ServiceContext& context) {
  return std::make_unique<SweepService>(context);
}

}  // namespace switchyard::api
