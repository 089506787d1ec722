// A fixed set of threads that run one function together, step after step.
//
// Workers spin for a moment after a step, since the next one mostly follows at once, and then sleep. Within a step they
// meet at barriers; a thread that waits long there yields its core, so that a busy machine still makes progress.
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
  void work(int thread);
  void stop();

  const int size_;
  std::vector<std::thread> workers_;
  const std::function<void(int)>* body_ = nullptr;
  alignas(64) std::atomic<uint32_t> step_{0};      // bumped to start a step
  alignas(64) std::atomic<int32_t> busy_{0};       // workers still in the step
  alignas(64) std::atomic<uint32_t> arrived_{0};   // threads at the barrier
  alignas(64) std::atomic<uint32_t> phase_{0};     // bumped when all have arrived
  bool stop_ = false;
};

}  // namespace tt
