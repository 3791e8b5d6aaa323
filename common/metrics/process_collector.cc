#include <dirent.h>
#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

#include "common/base/clock.h"
#include "common/metrics/exposer.h"

namespace switchyard::metrics {
namespace {

prometheus::MetricFamily Single(const std::string& name, const std::string& help, double value,
                                prometheus::MetricType type) {
  prometheus::ClientMetric metric;
  if (type == prometheus::MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  return {name, help, type, {metric}};
}

double OpenDescriptors() {
  DIR* folder = opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  double count = -3;  // ., .. and the descriptor of this folder
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

// Fields of /proc/self/stat behind the command name, which may itself hold blanks.
class ProcessCollector : public prometheus::Collectable {
 public:
  ProcessCollector() : start_seconds_(static_cast<double>(UnixMilliseconds()) / 1000.0) {}

  std::vector<prometheus::MetricFamily> Collect() const override {
    std::ifstream file("/proc/self/stat");
    std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    std::istringstream fields(text.substr(text.rfind(')') + 2));
    std::string word;
    double user_ticks = 0, system_ticks = 0, virtual_bytes = 0, resident_pages = 0;
    for (int i = 3; fields >> word; ++i) {
      if (i == 14) user_ticks = std::stod(word);
      if (i == 15) system_ticks = std::stod(word);
      if (i == 23) virtual_bytes = std::stod(word);
      if (i == 24) resident_pages = std::stod(word);
    }
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    using prometheus::MetricType;
    return {
        Single("process_cpu_seconds_total", "User and system CPU time spent.",
               (user_ticks + system_ticks) / static_cast<double>(sysconf(_SC_CLK_TCK)),
               MetricType::Counter),
        Single("process_resident_memory_bytes", "Resident memory.",
               resident_pages * static_cast<double>(sysconf(_SC_PAGESIZE)), MetricType::Gauge),
        Single("process_virtual_memory_bytes", "Virtual memory.", virtual_bytes, MetricType::Gauge),
        Single("process_open_fds", "Open file descriptors.", OpenDescriptors(), MetricType::Gauge),
        Single("process_max_fds", "Limit of open file descriptors.",
               static_cast<double>(limit.rlim_cur), MetricType::Gauge),
        Single("process_start_time_seconds", "Start of the process since 1970.", start_seconds_,
               MetricType::Gauge),
    };
  }

 private:
  double start_seconds_;
};

}  // namespace

std::shared_ptr<prometheus::Collectable> MakeProcessCollector() {
  return std::make_shared<ProcessCollector>();
}

}  // namespace switchyard::metrics
