#include "thread_pool.h"

#include <stdexcept>

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
constexpr int SPINS_BEFORE_YIELD = 4000;
constexpr int YIELDS_BEFORE_SLEEP = 20;  // between steps only: a barrier never sleeps

}  // namespace

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
  step_.fetch_add(1, std::memory_order_release);
  step_.notify_all();
  for (auto& w : workers_) w.join();
}

void ThreadPool::run(const std::function<void(int)>& body) {
  if (size_ == 1) return body(0);
  body_ = &body;
  busy_.store(size_ - 1, std::memory_order_relaxed);
  step_.fetch_add(1, std::memory_order_release);
  step_.notify_all();
  body(0);
  for (int spins = 0; busy_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < SPINS_BEFORE_YIELD) pause();
    else std::this_thread::yield();
  }
}

void ThreadPool::barrier() {
  if (size_ == 1) return;
  const uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == (uint32_t)size_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins) {
    if (spins < SPINS_BEFORE_YIELD) pause();
    else std::this_thread::yield();
  }
}

void ThreadPool::work(int thread) {
  uint32_t seen = 0;
  for (;;) {
    for (int spins = 0; step_.load(std::memory_order_acquire) == seen; ++spins) {
      if (spins < SPINS_BEFORE_YIELD) pause();
      else if (spins < SPINS_BEFORE_YIELD + YIELDS_BEFORE_SLEEP) std::this_thread::yield();
      else step_.wait(seen, std::memory_order_acquire);
    }
    // Only one step can have started: run() returns after every worker has left the one before.
    seen = step_.load(std::memory_order_acquire);
    if (stop_) return;
    (*body_)(thread);
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace tt
