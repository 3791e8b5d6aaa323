#include "worker/dist/gpu.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <climits>
#include <string>
#include <vector>

#include "common/base/file.h"
#include "common/base/strings.h"
#include "worker/dist/gpu_api.h"

namespace switchyard::dist {
namespace {

std::atomic<const GpuApi*> loaded_api{nullptr};

std::string FolderOfExecutable() {
  std::array<char, PATH_MAX> path{};
  const ssize_t size = ::readlink("/proc/self/exe", path.data(), path.size());
  const std::string text(path.data(), size > 0 ? static_cast<size_t>(size) : 0);
  return text.substr(0, text.rfind('/'));
}

Status Load() {
  const std::string folder = FolderOfExecutable();
  std::string path;
  for (const char* below : {"", "/../lib", "/../lib/switchyard"}) {
    const std::string candidate = StrCat(folder, below, "/libswitchyard_gpu.so");
    if (path.empty() && FileExists(candidate)) path = candidate;
  }
  if (path.empty()) {
    return NotFound(StrCat("no GPU parts: libswitchyard_gpu.so is neither in ", folder,
                           " nor in its ../lib; this build was made without CUDA and NCCL"));
  }
  // Never closed: torch keeps pointers into the libraries that come with it.
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = ::dlerror();
    return FailedPrecondition(
        StrCat("the GPU parts do not load: ", reason != nullptr ? reason : path,
               " (deploy/setup.sh --gpu brings the CUDA libraries)"));
  }
  using Entry = const GpuApi* (*)();
  const auto entry = reinterpret_cast<Entry>(::dlsym(library, kGpuApiSymbol));
  const GpuApi* api = entry != nullptr ? entry() : nullptr;
  if (api == nullptr || api->version != kGpuApiVersion) {
    return FailedPrecondition(StrCat(path, " is of another build: version ",
                                     api == nullptr ? 0 : api->version, ", expected ",
                                     kGpuApiVersion));
  }
  std::string why;
  if (api->device_count(&why) == 0) return NotFound(StrCat("no GPU on this host: ", why));
  loaded_api = api;
  return OkStatus();
}

}  // namespace

Status LoadGpuSupport() {
  static const Status outcome = Load();
  return outcome;
}

bool HasGpu() { return loaded_api.load() != nullptr; }

const GpuApi* LoadedGpuApi() { return loaded_api.load(); }

}  // namespace switchyard::dist
