#include "common/metrics/exposer.h"

#include <httplib.h>
#include <prometheus/collectable.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "common/base/strings.h"

namespace switchyard::metrics {
namespace {

struct Page {
  std::string content_type;
  std::function<std::string()> make;
};

Result<std::pair<std::string, int>> SplitAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) {
    return InvalidArgument(StrCat("'", address, "' is not HOST:PORT"));
  }
  std::string host = address.substr(0, colon);
  const auto port = ParseInt64(std::string_view(address).substr(colon + 1));
  if (!port || *port < 0 || *port > 65535) {
    return InvalidArgument(StrCat("'", address, "' has no port from 0 to 65535"));
  }
  if (host != "127.0.0.1" && host != "localhost" && host != "[::1]") {
    return InvalidArgument(
        StrCat("metrics are served on loopback only (127.0.0.1, localhost or "
               "[::1]), not on '",
               host, "'; use a proxy on the host"));
  }
  if (host == "[::1]") host = "::1";
  return std::pair(host, static_cast<int>(*port));
}

}  // namespace

struct Exposer::Impl {
  httplib::Server server;
  std::string address;
  std::thread thread;
  std::atomic<double> scrape_seconds{0};

  std::mutex mu;
  std::vector<std::shared_ptr<prometheus::Collectable>> collectables;  // guarded by mu
  std::map<std::string, Page> pages;                                   // guarded by mu
  bool has_ended = false;                                              // guarded by mu
  std::condition_variable ended;

  std::string Metrics() {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::shared_ptr<prometheus::Collectable>> sources;
    {
      const std::lock_guard lock(mu);
      sources = collectables;
    }
    std::vector<prometheus::MetricFamily> families;
    for (const auto& source : sources) {
      for (auto& family : source->Collect()) families.push_back(std::move(family));
    }
    std::string text = prometheus::TextSerializer().Serialize(families);
    // prometheus-cpp 1.0 writes "Nan", which strict parsers of the format refuse.
    for (size_t at = 0; (at = text.find(" Nan\n", at)) != std::string::npos; at += 5) {
      text[at + 3] = 'N';
    }
    scrape_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return text;
  }
};

Exposer::Exposer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Exposer::~Exposer() { Stop(); }

Result<std::unique_ptr<Exposer>> Exposer::Start(const std::string& address,
                                                std::shared_ptr<prometheus::Registry> registry) {
  SWITCHYARD_ASSIGN_OR_RETURN(auto host_and_port, SplitAddress(address));
  auto& [host, port] = host_and_port;
  auto impl = std::make_shared<Impl>();
  impl->collectables.push_back(std::move(registry));
  httplib::Server& server = impl->server;
  server.new_task_queue = [] { return new httplib::ThreadPool(4); };
  server.set_keep_alive_max_count(1);
  server.set_payload_max_length(1024);
  server.set_read_timeout(5);
  server.set_write_timeout(5);
  // Not the library's default, which lets a second process share the port silently.
  server.set_socket_options([](int fd) {
    const int yes = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  // Of the server within: it lives as long as that.
  Impl* state = impl.get();
  server.set_pre_routing_handler([](const httplib::Request& request, httplib::Response& response) {
    if (request.method == "GET") return httplib::Server::HandlerResponse::Unhandled;
    response.status = 405;
    response.set_header("Allow", "GET");
    response.set_content("only GET is served\n", "text/plain");
    return httplib::Server::HandlerResponse::Handled;
  });
  server.Get(".*", [state](const httplib::Request& request, httplib::Response& response) {
    Page page;
    {
      const std::lock_guard lock(state->mu);
      const auto found = state->pages.find(request.path);
      if (found != state->pages.end()) page = found->second;
    }
    if (!page.make) {
      response.status = 404;
      response.set_content("not found; known: /metrics /healthz\n", "text/plain");
      return;
    }
    response.set_content(page.make(), page.content_type.c_str());
  });
  impl->pages["/metrics"] = {"text/plain; version=0.0.4; charset=utf-8",
                             [state] { return state->Metrics(); }};
  impl->pages["/healthz"] = {"text/plain", [] { return std::string("ok\n"); }};

  if (port == 0) {
    port = server.bind_to_any_port(host);
    if (port < 0) return Unavailable(StrCat("no free port on ", host));
  } else if (!server.bind_to_port(host.c_str(), port)) {
    return Unavailable(
        StrCat("cannot listen on ", address, ": the port is taken or not permitted"));
  }
  impl->address = StrCat(host == "::1" ? std::string("[::1]") : host, ":", port);
  impl->thread = std::thread([held = impl] {
    held->server.listen_after_bind();
    const std::lock_guard lock(held->mu);
    held->has_ended = true;
    held->ended.notify_all();
  });
  // Stop() before the accept loop runs would be lost.
  while (!server.is_running()) std::this_thread::yield();
  return std::unique_ptr<Exposer>(new Exposer(std::move(impl)));
}

void Exposer::AddCollectable(std::shared_ptr<prometheus::Collectable> collectable) {
  const std::lock_guard lock(impl_->mu);
  impl_->collectables.push_back(std::move(collectable));
}

void Exposer::AddPath(const std::string& path, const std::string& content_type,
                      std::function<std::string()> make) {
  const std::lock_guard lock(impl_->mu);
  impl_->pages[path] = {content_type, std::move(make)};
}

const std::string& Exposer::address() const { return impl_->address; }
double Exposer::last_scrape_seconds() const { return impl_->scrape_seconds; }

void Exposer::Stop(std::chrono::milliseconds limit) {
  if (!impl_->thread.joinable()) return;
  impl_->server.stop();
  bool has_ended = false;
  {
    std::unique_lock lock(impl_->mu);
    // What they refer to may go before a late request is read.
    impl_->pages.clear();
    impl_->collectables.clear();
    has_ended = impl_->ended.wait_for(lock, limit, [this] { return impl_->has_ended; });
  }
  if (has_ended) {
    impl_->thread.join();
  } else {
    impl_->thread.detach();
  }
}

}  // namespace switchyard::metrics
