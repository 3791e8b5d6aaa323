#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "common/base/status.h"

namespace prometheus {
class Collectable;
class Registry;
}  // namespace prometheus

namespace switchyard::metrics {

// GET-only HTTP on loopback: /metrics in Prometheus' text format, /healthz, and paths of the owner.
// The packaged HTTP library has open denial-of-service advisories, hence the limits: loopback
// addresses only, bodies to 1 KiB, 4 threads, one request a connection, 5 s time-outs, and the peer
// address decides nothing. Thread-safe.
class Exposer {
 public:
  // `address` is HOST:PORT, HOST 127.0.0.1, localhost or [::1]; port 0 takes a free one.
  // kInvalidArgument: another host or no port; kUnavailable: the port is taken.
  static Result<std::unique_ptr<Exposer>> Start(const std::string& address,
                                                std::shared_ptr<prometheus::Registry> registry);
  ~Exposer();

  // Also asked at each scrape. Must not block.
  void AddCollectable(std::shared_ptr<prometheus::Collectable> collectable);
  // `make` runs on a server thread at each GET of `path`.
  void AddPath(const std::string& path, const std::string& content_type,
               std::function<std::string()> make);
  // HOST:PORT as bound.
  const std::string& address() const;
  // Seconds that the last scrape took; 0 before the first.
  double last_scrape_seconds() const;
  // Afterwards nothing of the owner is asked any more. A client that sends its request byte by byte
  // is waited for at most `limit`; its thread then goes with the process.
  void Stop(std::chrono::milliseconds limit = std::chrono::seconds(2));

 private:
  struct Impl;
  explicit Exposer(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;  // the listening thread's too
};

// process_* metrics (CPU seconds, resident and virtual memory, descriptors, start time), which
// prometheus-cpp lacks.
std::shared_ptr<prometheus::Collectable> MakeProcessCollector();

}  // namespace switchyard::metrics
