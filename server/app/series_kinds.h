#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "server/scheduler/rows.h"

namespace switchyard::app {

// Kind and shape of the series of open streams, as far as points came since the start. A series has
// one of each for an attempt; what a trainer says otherwise must not reach the database, which
// would refuse the whole group. Reducer thread only.
class SeriesKinds {
 public:
  // kInvalidArgument names the series whose points are of another kind or shape than those before.
  Status Check(std::span<const scheduler::ChunkRow> chunks) const;
  // They are committed. A bounded number of series per stream is remembered.
  void Remember(std::span<const scheduler::ChunkRow> chunks);
  // The stream is sealed.
  void Forget(Epoch epoch, uint32_t rank);

 private:
  struct Kind {
    bool is_vector = false;
    std::vector<uint32_t> shape;
    bool operator==(const Kind&) const = default;
  };
  using Series = std::unordered_map<std::string, Kind>;

  std::map<std::pair<Epoch, uint32_t>, Series> streams_;
};

}  // namespace switchyard::app
