#include "common/metrics/exposer.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "common/base/strings.h"

namespace switchyard::metrics {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

int Connect(const std::string& address) {
  const auto port = *ParseUint64(address.substr(address.rfind(':') + 1));
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  return fd;
}

// Sends `request` as it is and returns everything up to the end of the connection.
std::string Raw(const std::string& address, const std::string& request) {
  const int fd = Connect(address);
  // The server may close before it has read a hostile request.
  (void)send(fd, request.data(), request.size(), MSG_NOSIGNAL);
  std::string reply;
  char buffer[4096];
  ssize_t got = 0;
  while ((got = recv(fd, buffer, sizeof(buffer), 0)) > 0) {
    reply.append(buffer, static_cast<size_t>(got));
  }
  close(fd);
  return reply;
}

std::string Get(const std::string& address, const std::string& path) {
  return Raw(address, StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
}

class ExposerTest : public ::testing::Test {
 protected:
  std::shared_ptr<prometheus::Registry> registry_ = std::make_shared<prometheus::Registry>();
  std::unique_ptr<Exposer> exposer_ = *Exposer::Start("127.0.0.1:0", registry_);
};

// A scrape shows what the registry holds, and counters that were never raised.
TEST_F(ExposerTest, ServesTheRegistry) {
  prometheus::BuildCounter().Name("switchyard_x_total").Register(*registry_).Add({});
  EXPECT_THAT(Get(exposer_->address(), "/metrics"), HasSubstr("\nswitchyard_x_total 0"));
}

// One odd label value must not make the whole scrape unreadable (cases.md PR1).
TEST_F(ExposerTest, EscapesLabelValuesAndWritesNaN) {
  prometheus::BuildGauge()
      .Name("switchyard_g")
      .Register(*registry_)
      .Add({{"project", "a\"b\\\n\u00e9"}})
      .Set(std::nan(""));
  const std::string reply = Get(exposer_->address(), "/metrics");
  EXPECT_THAT(reply, HasSubstr("project=\"a\\\"b\\\\\\n\u00e9\"} NaN"));
}

// Process metrics come along when asked for.
TEST_F(ExposerTest, ShowsTheProcess) {
  exposer_->AddCollectable(MakeProcessCollector());
  const std::string reply = Get(exposer_->address(), "/metrics");
  for (const char* name : {"process_cpu_seconds_total", "process_resident_memory_bytes",
                           "process_open_fds", "process_start_time_seconds"}) {
    EXPECT_THAT(reply, HasSubstr(StrCat("\n", name, " ")));
  }
}

// The owner's pages, the health page, and a clear answer for everything else.
TEST_F(ExposerTest, RoutesByPath) {
  exposer_->AddPath("/sd", "application/json", [] { return std::string("[]"); });
  EXPECT_THAT(Get(exposer_->address(), "/sd"), HasSubstr("\r\n\r\n[]"));
  EXPECT_THAT(Get(exposer_->address(), "/healthz"), HasSubstr("ok"));
  EXPECT_THAT(Get(exposer_->address(), "/nowhere"), StartsWith("HTTP/1.1 404"));
}

// Anything but GET is refused; the server goes on afterwards.
TEST_F(ExposerTest, RefusesOtherMethodsAndOversizeRequests) {
  EXPECT_THAT(
      Raw(exposer_->address(), "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"),
      StartsWith("HTTP/1.1 405"));
  const std::string long_uri(64 << 10, 'a');
  Raw(exposer_->address(), StrCat("GET /", long_uri, " HTTP/1.1\r\n\r\n"));
  Raw(exposer_->address(), "CONNECT x HTTP/1.1\r\n\r\n");
  EXPECT_THAT(Get(exposer_->address(), "/healthz"), StartsWith("HTTP/1.1 200"));
}

// Nothing but loopback may be listened on, and a bad address says what would be right.
TEST(Exposer, TakesLoopbackAddressesOnly) {
  const auto registry = std::make_shared<prometheus::Registry>();
  EXPECT_EQ(Exposer::Start("0.0.0.0:0", registry).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Exposer::Start("127.0.0.1", registry).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Exposer::Start("127.0.0.1:99999", registry).status().code(), Code::kInvalidArgument);
}

// GR2: a client that sends its request byte by byte, each within the time-out, holds up no stop.
TEST_F(ExposerTest, ASlowRequestHoldsUpNoStop) {
  const std::string address = exposer_->address();
  exposer_->AddPath("/late", "text/plain", [] { return std::string("late"); });
  std::atomic<bool> is_over = false;
  std::string reply;
  std::thread slow([&] {
    const int fd = Connect(address);
    const std::string request = "GET /late HTTP/1.1\r\nHost: x\r\n";
    for (size_t i = 0; !is_over; ++i) {
      (void)send(fd, &request[i % request.size()], 1, MSG_NOSIGNAL);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    (void)send(fd, "\r\n\r\n", 4, MSG_NOSIGNAL);
    char buffer[256];
    const ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
    if (got > 0) reply.assign(buffer, static_cast<size_t>(got));
    close(fd);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const auto start = std::chrono::steady_clock::now();
  exposer_->Stop(std::chrono::milliseconds(300));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
  is_over = true;
  slow.join();
  // The owner is not asked any more.
  EXPECT_EQ(reply.find("late"), std::string::npos) << reply;
}

// A taken port is an error at start, not a silent second listener.
TEST_F(ExposerTest, ATakenPortIsAnError) {
  const auto second = Exposer::Start(exposer_->address(), registry_);
  EXPECT_EQ(second.status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace switchyard::metrics
