#include "worker/dist/process_group.h"

#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <exception>
#include <numeric>
#include <utility>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "common/base/file.h"
#include "common/base/strings.h"
#include "worker/dist/gpu.h"
#include "worker/dist/gpu_api.h"

namespace switchyard::dist {
namespace {

// First line: torch appends a stack trace.
std::string FirstLine(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

class C10dGroup : public ProcessGroup {
 public:
  C10dGroup(c10::intrusive_ptr<c10d::Store> store, c10::intrusive_ptr<c10d::Backend> backend,
            const ProcessGroupOptions& options)
      : store_(std::move(store)), backend_(std::move(backend)), options_(options) {}

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }

  Status AllReduceSum(at::Tensor& tensor) override {
    SWITCHYARD_RETURN_IF_ERROR(CheckContiguous("all-reduce", tensor));
    return Run("all-reduce", [&] {
      std::vector<at::Tensor> tensors{tensor};
      return backend_->allreduce(tensors, c10d::AllreduceOptions());
    });
  }

  Status Broadcast(at::Tensor& tensor, int root) override {
    SWITCHYARD_RETURN_IF_ERROR(CheckContiguous("broadcast", tensor));
    if (root < 0 || root >= options_.size) {
      return InvalidArgument(
          StrCat("broadcast: root ", root, ", expected 0 to ", options_.size - 1));
    }
    return Run("broadcast", [&] {
      std::vector<at::Tensor> tensors{tensor};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return backend_->broadcast(tensors, options);
    });
  }

  Status AllToAll(at::Tensor& output, at::Tensor& input, std::vector<int64_t> output_rows,
                  std::vector<int64_t> input_rows) override {
    SWITCHYARD_RETURN_IF_ERROR(CheckContiguous("all-to-all", output));
    SWITCHYARD_RETURN_IF_ERROR(CheckContiguous("all-to-all", input));
    SWITCHYARD_RETURN_IF_ERROR(CheckRows("output", output, output_rows));
    SWITCHYARD_RETURN_IF_ERROR(CheckRows("input", input, input_rows));
    return Run("all-to-all",
               [&] { return backend_->alltoall_base(output, input, output_rows, input_rows); });
  }

  Status Barrier() override {
    return Run("barrier", [&] { return backend_->barrier(c10d::BarrierOptions()); });
  }

 private:
  static Status CheckContiguous(std::string_view what, const at::Tensor& tensor) {
    if (tensor.defined() && tensor.is_contiguous()) return OkStatus();
    return InvalidArgument(StrCat(what, ": the tensor is not contiguous"));
  }

  Status CheckRows(std::string_view what, const at::Tensor& tensor,
                   const std::vector<int64_t>& rows) const {
    const int64_t have = tensor.dim() == 0 ? 0 : tensor.size(0);
    const int64_t sum = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    if (rows.size() == static_cast<size_t>(options_.size) && sum == have) return OkStatus();
    return InvalidArgument(StrCat("all-to-all: ", what, " has ", have, " rows, its counts are ",
                                  rows.size(), " and sum to ", sum, ", expected ", options_.size,
                                  " counts that sum to the rows"));
  }

  template <typename Start>
  Status Run(std::string_view what, Start start) {
    try {
      start()->wait(options_.timeout);
      return OkStatus();
    } catch (const std::exception& error) {
      return Unavailable(StrCat(what, " of rank ", options_.rank, " of ", options_.size, ": ",
                                FirstLine(error.what())));
    }
  }

  // The backend uses the store to its end.
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  const ProcessGroupOptions options_;
};

// A listening socket on this very address: the store's own would be open to every network.
Result<UniqueFd> Listen(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) {
    return InvalidArgument(StrCat("store_host ", host, ": ", ::gai_strerror(code)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> guard(found, ::freeaddrinfo);
  UniqueFd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (!fd.is_valid() || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      ::bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(fd.get(), 128) != 0) {
    const int error = errno;
    return Unavailable(ErrnoStatus("cannot listen on", StrCat(host, ":", port), error).message());
  }
  return fd;
}

c10::intrusive_ptr<c10d::Backend> MakeBackend(const ProcessGroupOptions& options,
                                              const c10::intrusive_ptr<c10d::Store>& store) {
  if (options.kind == ProcessGroupKind::kNccl) {
    return LoadedGpuApi()->make_nccl(store, options.rank, options.size, options.device,
                                     options.timeout);
  }
  auto gloo = c10d::ProcessGroupGloo::Options::create(options.timeout);
  gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(options.own_host));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, options.rank, options.size, gloo);
}

}  // namespace

Result<std::unique_ptr<ProcessGroup>> MakeProcessGroup(const ProcessGroupOptions& options) {
  // Ours from here on, whatever happens.
  UniqueFd listen_fd(options.store_listen_fd);
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return InvalidArgument(
        StrCat("process group: rank ", options.rank, " of ", options.size, " members"));
  }
  if (options.store_port == 0) {
    return InvalidArgument("process group: store_port is 0, expected the port of rank 0");
  }
  if (options.kind == ProcessGroupKind::kNccl && !HasGpu()) {
    return FailedPrecondition(
        StrCat("process group: NCCL needs a GPU; ", LoadGpuSupport().message()));
  }
  c10d::TCPStoreOptions store_options;
  store_options.port = options.store_port;
  store_options.isServer = options.rank == 0;
  store_options.numWorkers = static_cast<size_t>(options.size);
  store_options.timeout = options.timeout;
  if (options.rank == 0) {
    if (!listen_fd.is_valid()) {
      SWITCHYARD_ASSIGN_OR_RETURN(listen_fd, Listen(options.store_host, options.store_port));
    }
    store_options.masterListenFd = listen_fd.Release();
  }
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(options.store_host, store_options);
    auto backend = MakeBackend(options, store);
    return std::unique_ptr<ProcessGroup>(
        std::make_unique<C10dGroup>(std::move(store), std::move(backend), options));
  } catch (const std::exception& error) {
    return Unavailable(StrCat("process group at ", options.store_host, ":", options.store_port,
                              ", rank ", options.rank, " of ", options.size, ": ",
                              FirstLine(error.what())));
  }
}

}  // namespace switchyard::dist
