#include "roofline.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <utility>
#include <vector>

#include "memory.h"

namespace tt {

namespace {

using Clock = std::chrono::steady_clock;

// Seconds from the first thread's start to the last one's end.
template <class F> double span(ThreadPool& pool, F&& body) {
  std::vector<std::pair<Clock::time_point, Clock::time_point>> times((size_t)pool.size());
  std::atomic<int64_t> sink{0};  // results are used, so that they have to be computed
  pool.run([&](int thread) {
    pool.barrier();
    const auto start = Clock::now();
    const int64_t value = body(thread);
    times[(size_t)thread] = {start, Clock::now()};
    sink.fetch_add(value, std::memory_order_relaxed);
  });
  auto first = times[0].first, last = times[0].second;
  for (const auto& [start, end] : times) first = std::min(first, start), last = std::max(last, end);
  return std::chrono::duration<double>(last - first).count();
}

}  // namespace

double read_bandwidth(ThreadPool& pool, const Kernels& kernels, size_t bytes, int repetitions) {
  constexpr size_t UNIT = 4096;
  const size_t part = bytes / (size_t)pool.size() / UNIT * UNIT;
  if (part == 0 || repetitions < 1) throw std::invalid_argument("a page a thread and one repetition are the least to measure");
  const Memory memory(part * (size_t)pool.size());
  // Every page is written and differs: pages never written are one page of zeros, and equal ones may be merged.
  pool.run([&](int thread) {
    auto* words = reinterpret_cast<uint64_t*>(memory.data() + part * (size_t)thread);
    for (size_t i = 0; i < part / 8; ++i) words[i] = (i + (size_t)thread) * 0x9E3779B97F4A7C15u;
  });
  auto measure = [&](int pattern, int passes) {
    return span(pool, [&](int thread) {
      int64_t value = 0;
      for (int i = 0; i < passes; ++i) value += kernels.peak_read(pattern, memory.data() + part * (size_t)thread, part);
      return value;
    });
  };
  const int passes = 1 + (int)(0.1 / measure(0, 1));
  double best = 0;
  for (int pattern = 0; pattern < READ_PATTERNS; ++pattern)
    for (int i = 0; i < repetitions; ++i)
      best = std::max(best, (double)part * pool.size() * passes / measure(pattern, passes));
  return best;
}

double mac_rate(ThreadPool& pool, const Kernels& kernels, Peak peak, double seconds) {
  constexpr double RUN = 0.01;  // long beside a barrier, short beside a time slice
  auto measure = [&](int64_t rounds) { return span(pool, [&](int) { return kernels.peak_macs(peak, rounds); }); };
  int64_t rounds = 1024;
  double took = measure(rounds);
  for (; took < RUN; took = measure(rounds)) rounds *= 2;
  double best = took;
  for (double spent = took; spent < seconds; spent += took) {
    took = measure(rounds);
    best = std::min(best, took);
  }
  return (double)rounds * (double)kernels.peak_macs_per_round(peak) * pool.size() / best;
}

}  // namespace tt
