#include "thread_pool.h"

#include <stdexcept>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#endif

namespace tt {

namespace {

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr int MAX_THREADS = 1024;
// About 40 microseconds: longer than tasks mostly differ, shorter than it takes to get a core back.
constexpr int SPINS = 2000;

}  // namespace

// Sleep while `word` holds `seen`. Waiting never yields: that would hand the core to any other process for a whole time
// slice, while a sleeper is scheduled at once when it is woken, and leaves its core to a thread that has none.
void ThreadPool::Gate::wait(uint32_t seen) {
  for (int i = 0; i < SPINS; ++i) {
    if (word.load(std::memory_order_acquire) != seen) return;
    pause();
  }
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  while (word.load(std::memory_order_seq_cst) == seen) {
#if defined(__linux__)
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
#else
    word.wait(seen, std::memory_order_seq_cst);
#endif
  }
  sleepers.fetch_sub(1, std::memory_order_relaxed);
}

void ThreadPool::Gate::open() {
  word.fetch_add(1, std::memory_order_seq_cst);
  if (!sleepers.load(std::memory_order_seq_cst)) return;
#if defined(__linux__)
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#else
  word.notify_all();
#endif
}

ThreadPool::ThreadPool(int threads) : size_(threads) {
  if (threads < 1 || threads > MAX_THREADS) throw std::invalid_argument("there can be from 1 to 1024 threads");
  try {
    for (int t = 1; t < size_; ++t) workers_.emplace_back([this, t] { work(t); });
  } catch (...) {  // the system has no more threads to give
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stop_ = true;
  start_.open();
  for (auto& w : workers_) w.join();
}

void ThreadPool::run(const std::function<void(int)>& body) {
  if (size_ == 1) return body(0);
  body_ = &body;
  start_.open();
  body(0);
  barrier();  // all have returned
}

void ThreadPool::barrier() {
  if (size_ == 1) return;
  const uint32_t phase = phase_.word.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == (uint32_t)size_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.open();
    return;
  }
  phase_.wait(phase);
}

void ThreadPool::work(int thread) {
  for (uint32_t seen = 0;; ++seen) {
    // Only one step can have started: run() returns after every worker has come to the end of the one before.
    start_.wait(seen);
    if (stop_) return;
    (*body_)(thread);
    barrier();
  }
}

}  // namespace tt
