#include "worker/train/block_cache.h"

#include <sys/mman.h>

#include <bit>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

namespace switchyard::train {
namespace {

// Smaller tensors stay with the heap, which serves them faster than a map under a lock.
constexpr size_t kLarge = size_t{256} << 10;

// Up to an eighth more than was asked for, so that sizes that differ little share blocks.
size_t Rounded(size_t bytes) {
  const size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

class BlockCache final : public c10::Allocator {
 public:
  explicit BlockCache(c10::Allocator* small) : small_(small) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes < kLarge) return small_->allocate(bytes);
    auto block = std::make_unique<Block>(Block{.cache = this, .bytes = Rounded(bytes)});
    {
      const std::lock_guard lock(mu_);
      std::vector<void*>& free = free_[block->bytes];
      if (!free.empty()) {
        block->data = free.back();
        free.pop_back();
        unused_ -= block->bytes;
      } else if (unused_ > used_) {
        ReleaseUnused();
      }
      used_ += block->bytes;
    }
    if (block->data == nullptr) {
      block->data =
          mmap(nullptr, block->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (block->data == MAP_FAILED) {
        const std::lock_guard lock(mu_);
        used_ -= block->bytes;
        TORCH_CHECK_WITH(OutOfMemoryError, false, "no memory for ", bytes, " bytes");
      }
    }
    void* const data = block->data;
    return {data, block.release(), &Free, c10::Device(c10::kCPU)};
  }

  // Blocks and the heap's allocations are freed in two ways.
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }

 private:
  struct Block {
    BlockCache* cache;
    size_t bytes;
    void* data = nullptr;
  };

  static void Free(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    BlockCache& cache = *block->cache;
    const std::lock_guard lock(cache.mu_);
    cache.free_[block->bytes].push_back(block->data);
    cache.used_ -= block->bytes;
    cache.unused_ += block->bytes;
  }

  void ReleaseUnused() {
    for (auto& [bytes, blocks] : free_) {
      for (void* block : blocks) munmap(block, bytes);
      blocks.clear();
    }
    unused_ = 0;
  }

  c10::Allocator* const small_;
  std::mutex mu_;
  std::map<size_t, std::vector<void*>> free_;  // by size
  size_t used_ = 0, unused_ = 0;               // bytes
};

}  // namespace

void KeepLargeBlocks() {
  // Never destroyed: tensors of other static objects may be freed after it.
  static BlockCache* const cache = [] {
    auto* made = new BlockCache(c10::GetCPUAllocator());
    c10::SetCPUAllocator(made, /*priority=*/100);
    return made;
  }();
  static_cast<void>(cache);
}

}  // namespace switchyard::train
