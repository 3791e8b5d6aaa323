#include "server/app/app.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/file.h"
#include "common/base/keepalive.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "common/base/version.h"
#include "common/metrics/exposer.h"
#include "server/api/admin_service.h"
#include "server/api/call.h"
#include "server/api/results_service.h"
#include "server/api/run_service.h"
#include "server/api/sweep_service.h"
#include "server/api/worker_service.h"
#include "server/app/ballast.h"
#include "server/app/notify.h"
#include "server/app/query_pool.h"
#include "server/app/reducer.h"
#include "switchyard/v1/admin_service.grpc.pb.h"

namespace switchyard::app {
namespace {

constexpr int kQueryThreads = 2;
constexpr int kReceiveBytesMax = 4 << 20;
constexpr int kMetadataBytesMax = 8 << 10;
constexpr int kStreamsMax = 128;
constexpr size_t kMemoryQuota = 512 << 20;
constexpr std::chrono::seconds kShutdownGrace{5};
constexpr std::chrono::seconds kWatchdogPing{10};

// What is computed at the scrape, so that a stuck reducer is visible.
class LagCollectable final : public prometheus::Collectable {
 public:
  LagCollectable(const Reducer* reducer, metrics::Exposer* exposer)
      : reducer_(reducer), exposer_(exposer) {}
  std::vector<prometheus::MetricFamily> Collect() const override {
    const double late =
        static_cast<double>(MonotonicNow().ms - reducer_->last_pass_ms() - 500) / 1000;
    prometheus::ClientMetric lag;
    lag.gauge.value = std::max(0.0, late);
    prometheus::ClientMetric scrape;
    scrape.gauge.value = exposer_->last_scrape_seconds();
    return {{"switchyard_reducer_tick_lag_seconds",
             "How late the reducer's loop is.",
             prometheus::MetricType::Gauge,
             {lag}},
            {"switchyard_exporter_scrape_seconds",
             "Time that the last scrape took.",
             prometheus::MetricType::Gauge,
             {scrape}}};
  }

 private:
  const Reducer* const reducer_;
  metrics::Exposer* const exposer_;
};

using Services = std::vector<std::unique_ptr<grpc::Service>>;

Result<std::unique_ptr<grpc::Server>> StartServer(const Config& config, const Services& services,
                                                  int* loopback_port) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kReceiveBytesMax);
  builder.SetResourceQuota(grpc::ResourceQuota("server").Resize(kMemoryQuota));
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytesMax);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsMax);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kPingIntervalMinMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort(StrCat("unix:", config.socket), grpc::InsecureServerCredentials());
  if (config.insecure_loopback.has_value()) {
    builder.AddListeningPort(StrCat("127.0.0.1:", *config.insecure_loopback),
                             grpc::InsecureServerCredentials(), loopback_port);
  }
  for (const std::unique_ptr<grpc::Service>& service : services) {
    builder.RegisterService(service.get());
  }
  // The mode of the socket is the access check: for its owner alone.
  unlink(config.socket.c_str());
  const mode_t before = umask(0177);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  umask(before);
  if (server == nullptr) {
    return Unavailable(StrCat("cannot listen on ", config.socket,
                              config.insecure_loopback.has_value()
                                  ? StrCat(" and port ", *config.insecure_loopback)
                                  : ""));
  }
  return server;
}

Status WriteReady(const Config& config, int loopback_port, const std::string& metrics) {
  const std::string loopback =
      config.insecure_loopback.has_value() ? StrCat("127.0.0.1:", loopback_port) : "";
  return WriteFileAtomically(
      StrCat(config.data_dir, "/ready.json"),
      StrCat("{\"pid\":", getpid(), ",\"socket\":\"", config.socket, "\",\"loopback\":\"", loopback,
             "\",\"metrics\":\"", metrics, "\"}\n"));
}

uint64_t BallastFor(const std::string& data_dir) {
  const Result<DiskSpace> disk = GetDiskSpace(data_dir);
  return disk.ok() ? Ballast::BytesFor(disk->size_bytes) : 0;
}

void WaitForSignal(const sigset_t& signals, const Reducer& reducer) {
  while (true) {
    const timespec timeout{.tv_sec = kWatchdogPing.count(), .tv_nsec = 0};
    const int signal = sigtimedwait(&signals, nullptr, &timeout);
    if (signal == SIGTERM || signal == SIGINT) return;
    if (reducer.is_healthy()) NotifyServiceManager("WATCHDOG=1");
  }
}

}  // namespace

Status Serve(const Config& config) {
  // Before any thread: all of them inherit the mask.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  SWITCHYARD_RETURN_IF_ERROR(MakeDirectories(config.data_dir, 0700));
  Result<UniqueFd> lock = LockFile(StrCat(config.data_dir, "/LOCK"));
  if (!lock.ok()) {
    return FailedPrecondition(
        StrCat("another coordinator uses ", config.data_dir, " (", lock.status().message(), ")"));
  }
  SWITCHYARD_FAILPOINT("serve.locked");
  const std::string ready = StrCat(config.data_dir, "/ready.json");
  unlink(ready.c_str());
  SWITCHYARD_ASSIGN_OR_RETURN(
      std::unique_ptr<store::Store> store,
      store::OpenSqliteStore({.data_dir = config.data_dir, .now_ms = UnixMilliseconds()}));
  SWITCHYARD_FAILPOINT("serve.store_opened");
  std::vector<std::unique_ptr<store::ReadStore>> readers;
  for (int i = 0; i < kQueryThreads; ++i) {
    SWITCHYARD_ASSIGN_OR_RETURN(std::unique_ptr<store::ReadStore> reader, store->OpenReader());
    readers.push_back(std::move(reader));
  }

  SWITCHYARD_FAILPOINT("serve.readers_opened");
  auto registry = std::make_shared<prometheus::Registry>();
  server_metrics::RpcFamilies rpc(registry.get(), api::MethodNames());
  server_metrics::Families families(
      registry, {.version = kVersion,
                 .commit = kCommit,
                 .sqlite = sqlite3_libversion(),
                 .start_unix_seconds = static_cast<double>(UnixMilliseconds()) / 1000});
  server_metrics::LiveRuns live_runs;
  api::ClientTracker clients;
  SWITCHYARD_ASSIGN_OR_RETURN(std::unique_ptr<Reducer> reducer,
                              Reducer::Make(std::move(store), &families, &clients, &live_runs,
                                            {.data_dir = config.data_dir,
                                             .metrics_address = {},
                                             .leases = config.leases,
                                             .ballast_bytes = BallastFor(config.data_dir)}));
  SWITCHYARD_FAILPOINT("serve.state_loaded");
  QueryPool queries(std::move(readers), &families);

  SWITCHYARD_ASSIGN_OR_RETURN(std::unique_ptr<metrics::Exposer> exposer,
                              metrics::Exposer::Start(config.metrics, registry));
  exposer->AddCollectable(metrics::MakeProcessCollector());
  exposer->AddCollectable(live_runs.MakeCollectable(families.series_dropped));
  exposer->AddCollectable(std::make_shared<LagCollectable>(reducer.get(), exposer.get()));
  exposer->AddPath("/sd", "application/json", [&] { return reducer->ServiceDiscovery(); });
  reducer->SetMetricsAddress(exposer->address());
  SWITCHYARD_FAILPOINT("serve.exposer_started");
  reducer->Start(&queries);
  SWITCHYARD_FAILPOINT("serve.reducer_started");

  const api::ServiceContext context{
      .core = reducer.get(), .readers = &queries, .families = &rpc, .clients = &clients};
  Services services;
  services.push_back(api::MakeSweepService(context));
  services.push_back(api::MakeRunService(context));
  services.push_back(api::MakeResultsService(context));
  services.push_back(api::MakeWorkerService(context));
  services.push_back(api::MakeAdminService(context));
  int loopback_port = 0;
  Result<std::unique_ptr<grpc::Server>> server = StartServer(config, services, &loopback_port);
  if (server.ok()) {
    SWITCHYARD_FAILPOINT("serve.listening");
    SWITCHYARD_RETURN_IF_ERROR(WriteReady(config, loopback_port, exposer->address()));
    LogInfo("serving on ", config.socket, ", metrics on http://", exposer->address(), "/metrics");
    SWITCHYARD_FAILPOINT("serve.ready");
    NotifyServiceManager("READY=1");
    WaitForSignal(signals, *reducer);
    LogInfo("stopping");
    NotifyServiceManager("STOPPING=1");
    unlink(ready.c_str());
    SWITCHYARD_FAILPOINT("stop.not_ready");
    (*server)->GetHealthCheckService()->SetServingStatus(false);
    // Parked calls first: a call parked after the shutdown began would hold it up.
    reducer->Drain();
    SWITCHYARD_FAILPOINT("stop.drained");
    // Beside each other, so that their waits do not add up: for a call that is under way, for a
    // slow scraper, for a query. Queries that wait are refused.
    std::thread exposer_stop([&] { exposer->Stop(); });
    std::thread queries_stop([&] { queries.Stop(); });
    (*server)->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
    exposer_stop.join();
    queries_stop.join();
    SWITCHYARD_FAILPOINT("stop.server_down");
    unlink(config.socket.c_str());
  }
  exposer->Stop();
  queries.Stop();
  SWITCHYARD_FAILPOINT("stop.queries_stopped");
  const Status stopped = reducer->Stop();
  SWITCHYARD_FAILPOINT("stop.store_closed");
  return server.ok() ? stopped : server.status();
}

Status Check(const Config& config) {
  SWITCHYARD_RETURN_IF_ERROR(MakeDirectories(config.data_dir, 0700));
  if (access(config.data_dir.c_str(), R_OK | W_OK | X_OK) != 0) {
    return PermissionDenied(StrCat("no access to ", config.data_dir));
  }
  const Result<UniqueFd> lock = LockFile(StrCat(config.data_dir, "/LOCK"));
  if (!lock.ok()) {
    return FailedPrecondition(StrCat("another coordinator uses ", config.data_dir));
  }
  return OkStatus();
}

Status AskHealth(const std::string& socket) {
  const std::shared_ptr<grpc::Channel> channel =
      grpc::CreateChannel(StrCat("unix:", socket), grpc::InsecureChannelCredentials());
  if (!channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(5))) {
    return Unavailable(StrCat("no coordinator answers on ", socket));
  }
  const std::unique_ptr<v1::AdminService::Stub> stub = v1::AdminService::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  v1::GetStatusResponse response;
  const grpc::Status status = stub->GetStatus(&context, {}, &response);
  if (!status.ok()) return Unavailable(status.error_message());
  if (response.state() != "serving") return Unavailable(response.state());
  return OkStatus();
}

}  // namespace switchyard::app
