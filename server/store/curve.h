#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "server/results/lineage.h"
#include "server/store/rows.h"

// Curves and summaries from chunks, for any store.
namespace switchyard::store {

struct ChunkHead {
  int64_t id = 0;
  uint64_t first_seq = 0;
  uint64_t last_seq = 0;
  uint64_t first_step = 0;
  uint64_t last_step = 0;
  bool is_sorted = true;  // its steps never fall
};

struct SeriesHead {
  int64_t id = 0;
  std::string name;
  bool is_vector = false;
  std::vector<uint32_t> shape;
};

// Where chunks come from. Rank 0 throughout.
class ChunkSource {
 public:
  virtual ~ChunkSource() = default;
  // By name.
  virtual Result<std::vector<SeriesHead>> ListSeries(Epoch epoch) = 0;
  virtual Result<std::optional<SeriesHead>> FindSeries(Epoch epoch, const std::string& name) = 0;
  // By first_seq.
  virtual Result<std::vector<ChunkHead>> ListChunks(int64_t series) = 0;
  virtual Result<std::string> ReadChunk(int64_t id) = 0;
};

// A page of the points of `query` over the attempts of its run, at most `limit` and 16 MiB of
// vectors. Points of one attempt come by step, then seq. Later pages follow the head of the first
// one, whatever has resumed since. Where attempts disagree about the kind of a series the newest
// one's points count, and the others' are left out. kNotFound: no such series or attempt;
// kInvalidArgument: a page of another query.
Result<CurvePage> ReadCurve(ChunkSource& source, std::span<const results::AttemptStart> attempts,
                            const CurveQuery& query);

// Summaries of every series over `segments`, by name.
Result<std::vector<SummaryRow>> Summarise(ChunkSource& source, RunId run,
                                          std::span<const results::Segment> segments);

}  // namespace switchyard::store
