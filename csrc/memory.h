// Large, aligned, zeroed memory straight from the system. Untouched pages cost nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace tt {

// Huge pages cost less to address; small ones less to get. A huge page is cleared, and on a machine whose memory is
// scattered first made, when its first byte is touched: fine while a model loads, a stall in the middle of an answer.
enum class Pages { HUGE, SMALL };

class Memory {
 public:
  explicit Memory(size_t bytes, Pages pages = Pages::HUGE);  // throws std::bad_alloc
  ~Memory();
  Memory(Memory&& other) noexcept : data_(other.data_), bytes_(other.bytes_), map_(other.map_), map_bytes_(other.map_bytes_) {
    other.map_ = nullptr;
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  uint8_t* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  uint8_t* data_;
  size_t bytes_;
  void* map_;
  size_t map_bytes_;
};

// Weights stand side by side in chunks, in the order in which they are packed: a step streams them through in order.
class Arena {
 public:
  uint8_t* allocate(size_t bytes);
  size_t used() const { return used_; }

 private:
  std::mutex mutex_;
  std::vector<Memory> chunks_;
  size_t offset_ = 0, used_ = 0;
};

}  // namespace tt
