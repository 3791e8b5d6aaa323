#include "tests/unit/client/fake_server.h"

#include <chrono>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include <grpcpp/grpcpp.h>

#include "common/base/file.h"
#include "common/base/strings.h"
#include "switchyard/v1/admin_service.grpc.pb.h"
#include "switchyard/v1/results_service.grpc.pb.h"
#include "switchyard/v1/run_service.grpc.pb.h"
#include "switchyard/v1/sweep_service.grpc.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;
using grpc::ServerContext;

namespace {

constexpr char kSweepId[] = "01890a5d-ac96-774b-bcce-b302099a8057";
constexpr uint64_t kRuns = 6;
constexpr char kLog[] = "step 1\nstep 2 \x1b[2J\nlast without end";

std::string RunId(uint64_t number) { return StrCat("01890a5d-ac96-774b-bcce-b3020000000", number); }

class World {
 public:
  explicit World(const FakeServer::Script& script) : script_(script) {}

  grpc::Status Begin(const std::string& method, const google::protobuf::Message& request) {
    {
      const std::lock_guard<std::mutex> lock(mu_);
      requests_[method] = request.ShortDebugString();
    }
    if (script_.delay_ms > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(script_.delay_ms));
    }
    if (script_.refuse_with != 0) {
      return {static_cast<grpc::StatusCode>(script_.refuse_with), "refused by the test"};
    }
    return grpc::Status::OK;
  }

  std::string LastRequest(const std::string& method) const {
    const std::lock_guard<std::mutex> lock(mu_);
    const auto found = requests_.find(method);
    return found == requests_.end() ? "" : found->second;
  }

  // The sweep after one more look at it.
  pb::Sweep NextSweep() {
    const std::lock_guard<std::mutex> lock(mu_);
    const bool is_done = polls_++ >= script_.polls_until_done;
    pb::Sweep sweep;
    sweep.set_id(kSweepId);
    sweep.set_name((script_.has_name_with_escape ? "demo\x1b[2J" : "demo") + script_.hostile_text);
    sweep.set_project("default");
    sweep.set_state(is_done ? pb::SWEEP_STATE_COMPLETED : pb::SWEEP_STATE_ACTIVE);
    sweep.set_cells(3);
    sweep.set_runs(kRuns);
    sweep.set_spec_hash("00112233445566778899");
    sweep.set_created_ms(1'700'000'000'000);
    sweep.add_axes("model.moe.router.kind");
    sweep.mutable_objective()->set_metric("valid/bits_per_byte");
    sweep.mutable_objective()->set_goal(pb::GOAL_MINIMIZE);
    sweep.mutable_objective()->set_value(pb::OBJECTIVE_VALUE_BEST);
    const uint64_t failed = script_.has_failed_run ? 1 : 0;
    sweep.mutable_counts()->set_succeeded(is_done ? kRuns - failed : 2);
    sweep.mutable_counts()->set_failed(failed);
    sweep.mutable_counts()->set_active(is_done ? 0 : kRuns - 2 - failed);
    return sweep;
  }

  bool is_done() const {
    const std::lock_guard<std::mutex> lock(mu_);
    return polls_ > script_.polls_until_done;
  }

  pb::Run MakeRun(uint64_t number) const {
    static const char* const kRouters[] = {"dense", "smoe", "hash"};
    const bool is_failed = script_.has_failed_run && number == kRuns;
    pb::Run run;
    run.set_id(RunId(number));
    run.set_name(StrCat("demo", script_.hostile_text, "/", number));
    run.set_sweep_id(kSweepId);
    run.set_number(number);
    const bool is_running = !is_done() && number > 2 && !is_failed;
    run.set_state(is_failed    ? pb::RUN_STATE_FAILED
                  : is_running ? pb::RUN_STATE_ACTIVE
                               : pb::RUN_STATE_SUCCEEDED);
    pb::AxisValue* column = run.add_columns();
    column->set_axis("model.moe.router.kind");
    column->set_value(kRouters[(number - 1) % 3] + script_.hostile_text);
    run.set_seed((number - 1) / 3 + 1);
    run.set_attempts(1);
    run.set_step(is_running ? 50 : 100);
    run.set_steps_total(100);
    run.set_reason((is_failed ? "exit code 5" : "") + script_.hostile_text);
    run.set_router(kRouters[(number - 1) % 3]);
    run.set_worker("host1");
    return run;
  }

  void AddSummary(pb::Run* run, const std::string& series) const {
    const bool is_objective = series == "valid/bits_per_byte";
    static const std::set<std::string> kKnown = {"train/tokens_per_second", "train/lr",
                                                 "train/nats_per_token", "routing/expert_load"};
    if (!is_objective && !kKnown.contains(series)) return;
    pb::SeriesSummary* summary = run->add_summary();
    summary->set_name(series);
    summary->set_count(3);
    summary->set_last_step(100);
    double value = is_objective ? 2.0 + 0.25 * static_cast<double>(run->number()) : 11400;
    if (series == "train/nats_per_token") value = 2;  // and 2.5 at last
    // The fifth run has diverged.
    const bool is_diverged = is_objective && run->number() == 5;
    summary->set_last(is_diverged ? std::numeric_limits<double>::quiet_NaN() : value + 0.5);
    summary->set_has_best(is_objective && !is_diverged);
    summary->set_best(value);
    summary->set_non_finite(is_diverged ? 3 : 0);
  }

  // Number of the run that is named; 0: none.
  static uint64_t Find(const std::string& name) {
    for (uint64_t number = 1; number <= kRuns; ++number) {
      if (name == RunId(number) || name == StrCat("demo/", number) ||
          name == std::to_string(number)) {
        return number;
      }
    }
    return 0;
  }

  const FakeServer::Script& script() const { return script_; }

 private:
  const FakeServer::Script script_;
  mutable std::mutex mu_;
  int polls_ = 0;
  std::map<std::string, std::string> requests_;
};

grpc::Status NotThere(const std::string& name) {
  return {grpc::StatusCode::NOT_FOUND, StrCat("no run or sweep ", name)};
}

#define SWITCHYARD_BEGIN(method) \
  if (const grpc::Status status = world_.Begin(method, *request); !status.ok()) return status

class Sweeps final : public pb::SweepService::Service {
 public:
  explicit Sweeps(World& world) : world_(world) {}
  grpc::Status SubmitSweep(ServerContext*, const pb::SubmitSweepRequest* request,
                           pb::SubmitSweepResponse* response) override {
    SWITCHYARD_BEGIN("SubmitSweep");
    *response->mutable_sweep() = world_.NextSweep();
    response->set_existed(world_.script().sweep_exists);
    return grpc::Status::OK;
  }
  grpc::Status PlanSweep(ServerContext*, const pb::PlanSweepRequest* request,
                         pb::PlanSweepResponse* response) override {
    SWITCHYARD_BEGIN("PlanSweep");
    response->set_cells(3);
    response->set_runs(kRuns);
    response->set_reused_runs(1);
    response->set_spec_hash("00112233445566778899");
    response->add_notices("model.moe.top_k is not used by dense");
    pb::PlannedCell* cell = response->add_plan();
    cell->set_number(1);
    cell->add_seeds(1);
    cell->add_seeds(2);
    cell->add_reused_runs("old/7");
    cell->set_params_total(31885068);
    cell->set_params_active(31885068);
    cell->set_flops_per_token_active(63'800'000);
    cell->set_train_tokens(2'048'000);
    cell->set_run_key("aabbccddeeff00112233");
    return grpc::Status::OK;
  }
  grpc::Status ListSweeps(ServerContext*, const pb::ListSweepsRequest* request,
                          pb::ListSweepsResponse* response) override {
    SWITCHYARD_BEGIN("ListSweeps");
    const pb::Sweep sweep = world_.NextSweep();
    if (request->all() || sweep.state() == pb::SWEEP_STATE_ACTIVE) *response->add_sweeps() = sweep;
    return grpc::Status::OK;
  }
  grpc::Status GetSweep(ServerContext*, const pb::GetSweepRequest* request,
                        pb::Sweep* response) override {
    SWITCHYARD_BEGIN("GetSweep");
    const std::string& name = request->sweep();
    if (name != "demo" && name != "last" && name != kSweepId) return NotThere(name);
    *response = world_.NextSweep();
    response->mutable_spec()->set_name("demo" + world_.script().hostile_text);
    response->mutable_spec()->set_notes(world_.script().hostile_text);
    response->mutable_spec()->mutable_report()->add_compare()->set_by("model.moe.router.kind");
    pb::GridAxis* axis = response->mutable_spec()->mutable_space()->add_grid();
    axis->set_id("model.moe.router.kind");
    for (const char* value : {"dense", "smoe", "hash"}) axis->add_values()->set_scalar(value);
    return grpc::Status::OK;
  }
  grpc::Status ControlSweep(ServerContext*, const pb::ControlSweepRequest* request,
                            pb::ControlSweepResponse* response) override {
    SWITCHYARD_BEGIN("ControlSweep");
    response->set_runs_affected(4);
    return grpc::Status::OK;
  }
  grpc::Status RetryRuns(ServerContext*, const pb::RetryRunsRequest* request,
                         pb::RetryRunsResponse* response) override {
    SWITCHYARD_BEGIN("RetryRuns");
    response->mutable_sweep()->set_name("demo.2");
    response->set_runs_made(static_cast<uint64_t>(request->numbers_size()));
    return grpc::Status::OK;
  }
  grpc::Status ExtendSweep(ServerContext*, const pb::ExtendSweepRequest* request,
                           pb::ExtendSweepResponse* response) override {
    SWITCHYARD_BEGIN("ExtendSweep");
    response->mutable_sweep()->set_name("demo");
    response->set_seeds_added(request->replicates());
    return grpc::Status::OK;
  }
  grpc::Status ForkRun(ServerContext*, const pb::ForkRunRequest* request,
                       pb::SubmitSweepResponse* response) override {
    SWITCHYARD_BEGIN("ForkRun");
    response->mutable_sweep()->set_name("demo-fork-3-100");
    return grpc::Status::OK;
  }

 private:
  World& world_;
};

class Runs final : public pb::RunService::Service {
 public:
  explicit Runs(World& world) : world_(world) {}
  // Two runs a page, whatever is asked: paging is always tried.
  grpc::Status ListRuns(ServerContext*, const pb::ListRunsRequest* request,
                        pb::ListRunsResponse* response) override {
    SWITCHYARD_BEGIN("ListRuns");
    std::vector<pb::Run> all;
    for (uint64_t number = 1; number <= kRuns; ++number) {
      pb::Run run = world_.MakeRun(number);
      bool is_wanted = request->states().empty();
      for (const int state : request->states()) is_wanted = is_wanted || state == run.state();
      if (!is_wanted) continue;
      for (const std::string& series : request->series()) world_.AddSummary(&run, series);
      all.push_back(run);
    }
    response->set_total(all.size());
    const uint64_t begin = ParseUint64(request->page_token()).value_or(0);
    for (uint64_t i = begin; i < all.size() && i < begin + 2; ++i) *response->add_runs() = all[i];
    if (begin + 2 < all.size()) response->set_next_page_token(std::to_string(begin + 2));
    return grpc::Status::OK;
  }
  grpc::Status GetRun(ServerContext*, const pb::GetRunRequest* request,
                      pb::RunDetail* response) override {
    SWITCHYARD_BEGIN("GetRun");
    const uint64_t number = World::Find(request->run());
    if (number == 0) return NotThere(request->run());
    *response->mutable_run() = world_.MakeRun(number);
    pb::Attempt* attempt = response->add_attempts();
    attempt->set_ordinal(1);
    const bool is_lost = world_.script().is_lost_to_infrastructure;
    attempt->set_state(is_lost ? pb::ATTEMPT_STATE_LOST : pb::ATTEMPT_STATE_FAILED);
    attempt->set_end_class(is_lost ? "infra" : "user");
    response->add_history("queued");
    response->mutable_spec()->set_kind(pb::RUN_KIND_TRAIN);
    response->mutable_spec()->mutable_train()->set_steps(100);
    response->mutable_spec()->mutable_model();
    response->mutable_spec()->set_seed(response->run().seed());
    return grpc::Status::OK;
  }
  grpc::Status ControlRun(ServerContext*, const pb::ControlRunRequest* request,
                          pb::ControlRunResponse* response) override {
    SWITCHYARD_BEGIN("ControlRun");
    *response->mutable_run() = world_.MakeRun(World::Find(request->run()));
    response->mutable_run()->set_state(pb::RUN_STATE_CANCELLED);
    return grpc::Status::OK;
  }
  grpc::Status ExplainRun(ServerContext*, const pb::ExplainRunRequest* request,
                          pb::ExplainRunResponse* response) override {
    SWITCHYARD_BEGIN("ExplainRun");
    response->add_lines("waits for a slot: 2 of 2 busy");
    return grpc::Status::OK;
  }
  // Seven bytes a call, so that lines and characters are cut anywhere.
  grpc::Status ReadLog(ServerContext*, const pb::ReadLogRequest* request,
                       pb::ReadLogResponse* response) override {
    SWITCHYARD_BEGIN("ReadLog");
    const std::string log = kLog;
    const uint64_t offset = std::min<uint64_t>(request->offset(), log.size());
    response->set_data(log.substr(offset, 7));
    response->set_next_offset(offset + response->data().size());
    response->set_at_end(!world_.script().lacks_output && response->next_offset() == log.size());
    response->set_attempt(1);
    return grpc::Status::OK;
  }

 private:
  World& world_;
};

class Results final : public pb::ResultsService::Service {
 public:
  explicit Results(World& world) : world_(world) {}
  grpc::Status ListResults(ServerContext*, const pb::ListResultsRequest* request,
                           pb::ListResultsResponse* response) override {
    SWITCHYARD_BEGIN("ListResults");
    const uint64_t begin = ParseUint64(request->page_token()).value_or(0);
    for (uint64_t number = begin + 1; number <= kRuns && number <= begin + 4; ++number) {
      pb::Run run = world_.MakeRun(number);
      for (const std::string& series : request->series()) world_.AddSummary(&run, series);
      *response->add_runs() = run;
    }
    if (begin + 4 < kRuns) response->set_next_page_token(std::to_string(begin + 4));
    response->set_total(kRuns);
    return grpc::Status::OK;
  }
  // Three groups of two seeds, the second one with a diverged run; the first series counts.
  grpc::Status GroupResults(ServerContext*, const pb::GroupResultsRequest* request,
                            pb::GroupResultsResponse* response) override {
    SWITCHYARD_BEGIN("GroupResults");
    for (uint64_t number = 1; number <= 3; ++number) {
      pb::ResultGroup* group = response->add_groups();
      for (const std::string& name : request->by()) {
        pb::AxisValue* key = group->add_key();
        key->set_axis(name);
        key->set_value(StrCat("value", number));
      }
      group->set_runs(2);
      for (const std::string& series : request->series()) {
        pb::GroupValue* value = group->add_values();
        value->set_series(series);
        value->set_n(number == 2 ? 1 : 2);
        value->set_non_finite(number == 2 ? 1 : 0);
        value->set_mean(2.0 + 0.25 * static_cast<double>(number));
        value->set_sd(number == 2 ? std::numeric_limits<double>::quiet_NaN() : 0.5);
        value->set_best(2.0);
        value->set_best_run(number);
      }
    }
    response->set_runs(kRuns);
    return grpc::Status::OK;
  }
  // mcf beside smoe, and rmoe whose runs were lost.
  grpc::Status Compare(ServerContext*, const pb::CompareRequest* request,
                       pb::CompareResponse* response) override {
    SWITCHYARD_BEGIN("Compare");
    response->set_sweep(request->sweep());
    pb::CompareSpec* compare = response->mutable_compare();
    compare->set_metric("valid/bits_per_byte");
    compare->set_test(pb::COMPARE_TEST_PAIRED_T);
    compare->set_correction(pb::CORRECTION_HOLM);
    compare->set_alpha(0.05);
    compare->set_looks(2);
    response->set_look(request->look() == 0 ? 2 : request->look());
    response->set_family_size(2);
    response->set_registration("0123456789abcdef");
    response->set_exploratory(request->look() > 2);
    if (response->exploratory()) response->add_reasons("look 3 of 2 planned");
    response->add_warnings("unmatched tokens: smoe 1600, mcf 3200");
    pb::ComparedPair* pair = response->add_pairs();
    pair->set_arm("mcf");
    pair->set_reference("smoe");
    pair->set_sentence(
        "equivalent within ±0.01 bits per byte, 90 % interval [-0.004, 0.006], 8 pairs");
    pair->set_finding("equivalent");
    pair->set_n(8);
    pair->set_estimate(0.001);
    pair->mutable_arm_values()->set_n(8);
    pair->mutable_arm_values()->set_mean(2.5);
    pair->mutable_arm_values()->set_sd(0.25);
    pair->set_p(0.5);
    pair->set_adjusted_p(0.75);
    pair->mutable_difference()->set_low(-0.006);
    pair->mutable_difference()->set_high(0.008);
    pair->set_anytime_p(0.75);
    pb::ComparedPair* lost = response->add_pairs();
    lost->set_arm("rmoe\x1b[2J");
    lost->set_reference("smoe");
    lost->set_sentence("no verdict: 0 pairs, at least 2 are needed");
    lost->set_estimate(std::numeric_limits<double>::quiet_NaN());
    lost->mutable_difference()->set_low(std::numeric_limits<double>::quiet_NaN());
    lost->set_anytime_p(std::numeric_limits<double>::quiet_NaN());
    pb::MissingSeed* missing = lost->add_missing();
    missing->set_seed(3);
    missing->set_arm("rmoe");
    missing->set_why("informative");
    return grpc::Status::OK;
  }
  grpc::Status EstimatePower(ServerContext*, const pb::EstimatePowerRequest* request,
                             pb::EstimatePowerResponse* response) override {
    SWITCHYARD_BEGIN("EstimatePower");
    response->set_sweep(request->sweep());
    response->mutable_compare()->set_metric("valid/bits_per_byte");
    response->set_power(request->power());
    response->set_alpha_each(0.025);
    pb::PowerEstimate* pair = response->add_pairs();
    pair->set_arm("mcf");
    pair->set_reference("smoe");
    pair->set_pilot_pairs(4);
    pair->set_sd(0.01);
    pair->set_sd_upper(0.0173);
    pair->set_correlation(0.9);
    pb::PowerGoal* goal = pair->add_goals();
    goal->set_kind("equivalence");
    goal->set_effect(0.01);
    goal->set_pairs_at_sd(11);
    goal->set_pairs(0);
    pb::ArmCost* cost = response->add_costs();
    cost->set_arm("mcf");
    cost->set_runs(4);
    cost->set_slot_hours(0.5);
    response->set_seeds(27);
    response->set_slot_hours(27);
    response->set_slot_kind("gpu");
    return grpc::Status::OK;
  }
  grpc::Status GetCurve(ServerContext*, const pb::GetCurveRequest* request,
                        pb::GetCurveResponse* response) override {
    SWITCHYARD_BEGIN("GetCurve");
    const bool is_load = request->series() == "routing/expert_load";
    const bool is_vector = request->series() == "routing/usage_entropy_norm";
    if (!is_vector && !is_load && request->series() != "train/nats_per_token") {
      return NotThere(request->series());
    }
    if (is_load) {
      // The summary says that its last point is at step 100: two layers of three experts.
      response->add_shape(2);
      response->add_shape(3);
      pb::Point* point = response->add_points();
      point->set_step(100);
      point->set_attempt(1);
      for (const float value : {0.0F, 1.0F, 2.0F, 1.0F, 1.5F, 0.5F}) point->add_values(value);
      return grpc::Status::OK;
    }
    if (is_vector) response->add_shape(2);
    for (uint64_t step = 10; step <= 50; step += 10) {
      if (step < request->from_step()) continue;
      pb::Point* point = response->add_points();
      point->set_step(step);
      point->set_ms(step * 100);
      point->set_attempt(1);
      if (is_vector) {
        point->add_values(1.0F);
        point->add_values(0.5F);
      } else {
        point->set_value(step == 30 ? std::numeric_limits<double>::infinity()
                                    : 5.0 - 0.05 * static_cast<double>(step));
      }
    }
    return grpc::Status::OK;
  }
  grpc::Status ListSeries(ServerContext*, const pb::ListSeriesRequest* request,
                          pb::ListSeriesResponse* response) override {
    SWITCHYARD_BEGIN("ListSeries");
    pb::SeriesSummary* series = response->add_series();
    series->set_name("train/nats_per_token");
    series->set_last(2.5);
    series->set_last_step(50);
    series->set_count(5);
    series = response->add_series();
    series->set_name("routing/expert_load");
    series->set_count(1);
    series->set_last_step(100);
    return grpc::Status::OK;
  }

 private:
  World& world_;
};

class Admin final : public pb::AdminService::Service {
 public:
  explicit Admin(World& world) : world_(world) {}
  grpc::Status GetStatus(ServerContext*, const pb::GetStatusRequest* request,
                         pb::GetStatusResponse* response) override {
    SWITCHYARD_BEGIN("GetStatus");
    response->set_state("serving");
    response->set_version("1.2.3");
    return grpc::Status::OK;
  }
  grpc::Status ListWorkers(ServerContext*, const pb::ListWorkersRequest* request,
                           pb::ListWorkersResponse* response) override {
    SWITCHYARD_BEGIN("ListWorkers");
    pb::Worker* worker = response->add_workers();
    worker->set_id("01890a5d-ac96-774b-bcce-b302099a0001");
    worker->set_host("host1");
    worker->set_state("ready");
    worker->add_slots()->set_kind(pb::SLOT_KIND_CPU);
    worker->add_slots()->set_kind(pb::SLOT_KIND_CPU);
    worker->set_slots_busy(2);
    return grpc::Status::OK;
  }
  grpc::Status ControlWorker(ServerContext*, const pb::ControlWorkerRequest* request,
                             pb::ControlWorkerResponse* response) override {
    SWITCHYARD_BEGIN("ControlWorker");
    response->set_runs_affected(1);
    return grpc::Status::OK;
  }

 private:
  World& world_;
};
#undef SWITCHYARD_BEGIN

}  // namespace

struct FakeServer::Impl {
  explicit Impl(const Script& script) : world(script) {
    std::string pattern = "/tmp/switchyard-cli-XXXXXX";
    folder = mkdtemp(pattern.data());
    address = StrCat("unix:", folder, "/s");
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterService(&sweeps);
    builder.RegisterService(&runs);
    builder.RegisterService(&results);
    builder.RegisterService(&admin);
    server = builder.BuildAndStart();
  }
  ~Impl() {
    server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
    static_cast<void>(RemoveTree(folder));  // A left-over folder fails no test.
  }

  World world;
  Sweeps sweeps{world};
  Runs runs{world};
  Results results{world};
  Admin admin{world};
  std::string folder;
  std::string address;
  std::unique_ptr<grpc::Server> server;
};

FakeServer::FakeServer(const Script& script) : impl_(std::make_unique<Impl>(script)) {}
FakeServer::~FakeServer() = default;
const std::string& FakeServer::address() const { return impl_->address; }
std::string FakeServer::LastRequest(const std::string& method) const {
  return impl_->world.LastRequest(method);
}

}  // namespace switchyard::client
