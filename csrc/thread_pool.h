// A fixed set of threads that run one function together, step after step.
//
// Within a step they meet at barriers. Whoever waits, at a barrier or for the next step, spins for a moment, since that is
// mostly enough, and then sleeps, so that a busy machine still makes progress.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace tt {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }
  // Call body(thread) on every thread, the caller being thread 0; returns when all have returned.
  void run(const std::function<void(int)>& body);
  // All threads of the running step meet here.
  void barrier();

 private:
  // A counter that threads wait for, spinning first and then asleep.
  struct alignas(64) Gate {
    std::atomic<uint32_t> word{0};
    std::atomic<int32_t> sleepers{0};
    void wait(uint32_t seen);  // until `word` is no longer `seen`
    void open();               // count up, wake all
  };

  void work(int thread);
  void stop();

  const int size_;
  std::vector<std::thread> workers_;
  const std::function<void(int)>* body_ = nullptr;
  Gate start_;                                    // counts steps
  Gate phase_;                                    // counts barriers
  alignas(64) std::atomic<uint32_t> arrived_{0};  // threads at the barrier
  bool stop_ = false;
};

}  // namespace tt
