#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include "server/store/run_scan.h"

namespace switchyard::store {
namespace {

constexpr uint64_t kBlockNumbers = 512;
// Blocks that are read and not yet visited: about 1 MB.
constexpr uint64_t kBlocksAhead = 8;

// All threads read the next block that nobody has taken; the caller's thread visits them in order,
// and reads only while the block that comes next is not there.
class BlockScan {
 public:
  BlockScan(Connection& own, Connection* helper, const ScanKeys& keys, uint64_t after,
            uint64_t last)
      : own_(own),
        helper_(helper),
        keys_(keys),
        after_(after),
        last_(last),
        blocks_(last > after ? (last - after - 1) / kBlockNumbers + 1 : 0) {}

  Status Run(const std::function<bool(const RunFacts&)>& visit) {
    std::thread thread;
    try {
      if (helper_ != nullptr) thread = std::thread([this] { Help(); });
    } catch (const std::system_error&) {
      // No thread to be had: the caller's does all of it.
    }
    Status status = Visit(visit);
    {
      const std::lock_guard lock(mu_);
      is_over_ = true;
    }
    changed_.notify_all();
    if (thread.joinable()) thread.join();
    return status;
  }

 private:
  struct Block {
    std::vector<RunFacts> facts;  // the first `count` are of this block
    size_t count = 0;
    Status status;
    bool is_read = false;
  };

  bool CanTake() const { return next_ < blocks_ && next_ < visited_ + kBlocksAhead; }

  void Help() {
    RangeScan scan(*helper_, keys_, &shared_);
    while (true) {
      uint64_t index = 0;
      {
        std::unique_lock lock(mu_);
        changed_.wait(lock, [&] { return is_over_ || next_ == blocks_ || CanTake(); });
        if (is_over_ || next_ == blocks_) return;
        index = next_++;
      }
      Read(index, &scan);
    }
  }

  void Read(uint64_t index, RangeScan* scan) {
    Block& block = ring_[index % kBlocksAhead];
    block.count = 0;
    const uint64_t after = after_ + index * kBlockNumbers;
    scan->Start(after, std::min(last_, after + kBlockNumbers));
    while (true) {
      if (block.count == block.facts.size()) block.facts.emplace_back();
      const Result<bool> has_row = scan->Next(&block.facts[block.count]);
      block.status = has_row.status();
      if (!has_row.ok() || !*has_row) break;
      ++block.count;
    }
    {
      const std::lock_guard lock(mu_);
      block.is_read = true;
    }
    changed_.notify_all();
  }

  Status Visit(const std::function<bool(const RunFacts&)>& visit) {
    RangeScan scan(own_, keys_, &shared_);
    std::unique_lock lock(mu_);
    while (visited_ < blocks_) {
      Block& block = ring_[visited_ % kBlocksAhead];
      if (block.is_read) {
        lock.unlock();
        for (size_t i = 0; i < block.count; ++i) {
          if (!visit(block.facts[i])) return OkStatus();
        }
        SWITCHYARD_RETURN_IF_ERROR(block.status);
        lock.lock();
        block.is_read = false;
        ++visited_;
        changed_.notify_all();
      } else if (CanTake()) {
        const uint64_t index = next_++;
        lock.unlock();
        Read(index, &scan);
        lock.lock();
      } else {
        changed_.wait(lock);
      }
    }
    return OkStatus();
  }

  Connection& own_;
  Connection* helper_;  // null: no second thread
  const ScanKeys& keys_;
  const uint64_t after_;
  const uint64_t last_;
  const uint64_t blocks_;
  SharedColumns shared_;

  std::mutex mu_;
  std::condition_variable changed_;
  std::array<Block, kBlocksAhead> ring_;  // block i is at i % kBlocksAhead
  uint64_t next_ = 0;                     // the first block that nobody has taken
  uint64_t visited_ = 0;                  // blocks that were visited
  bool is_over_ = false;
};

}  // namespace

Status ScanInBlocks(Connection& own, Connection* helper, const ScanKeys& keys, uint64_t after,
                    uint64_t last, const std::function<bool(const RunFacts&)>& visit) {
  return BlockScan(own, helper, keys, after, last).Run(visit);
}

}  // namespace switchyard::store
