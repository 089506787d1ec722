#include "memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace tt {

namespace {
constexpr size_t HUGE_PAGE = size_t(2) << 20;
size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
#ifdef __SANITIZE_ADDRESS__
// From the heap, each piece by itself: there the sanitizer sees a touch beyond the end.
constexpr size_t CHUNK = 1;
}  // namespace

Memory::Memory(size_t bytes, Pages) : bytes_(bytes), map_(nullptr), map_bytes_(0) {
  if (bytes > SIZE_MAX / 2) throw std::bad_alloc();
  data_ = (uint8_t*)std::aligned_alloc(64, round_up(bytes ? bytes : 1, 64));
  if (!data_) throw std::bad_alloc();
  std::memset(data_, 0, bytes);
  map_ = data_;
}

Memory::~Memory() { std::free(map_); }
#else
constexpr size_t CHUNK = size_t(64) << 20;
}  // namespace

Memory::Memory(size_t bytes, Pages pages) : bytes_(bytes) {
  if (bytes > SIZE_MAX / 2) throw std::bad_alloc();
  map_bytes_ = round_up(bytes ? bytes : 1, 4096) + HUGE_PAGE;
  map_ = mmap(nullptr, map_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map_ == MAP_FAILED) {
    map_ = nullptr;
    throw std::bad_alloc();
  }
  data_ = (uint8_t*)round_up((size_t)map_, HUGE_PAGE);
#ifdef MADV_HUGEPAGE
  if (bytes >= HUGE_PAGE) madvise(data_, bytes, pages == Pages::HUGE ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#endif
}

Memory::~Memory() {
  if (map_) munmap(map_, map_bytes_);
}
#endif

uint8_t* Arena::allocate(size_t bytes) {
  std::lock_guard lock(mutex_);
  bytes = round_up(bytes, 64);
  if (chunks_.empty() || offset_ + bytes > chunks_.back().size()) {
    chunks_.emplace_back(bytes > CHUNK ? bytes : CHUNK);
    offset_ = 0;
  }
  uint8_t* p = chunks_.back().data() + offset_;
  offset_ += bytes;
  used_ += bytes;
  return p;
}

}  // namespace tt
