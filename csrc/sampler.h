// Rows of logits to tokens, over all threads: each row by itself, see kernels/sampling.cpp.
#pragma once

#include <memory>
#include <vector>

#include "kernels/kernels.h"
#include "memory.h"
#include "thread_pool.h"

namespace tt {

// Bytes of scratch that each thread holds to draw from `vocab` logits.
size_t sampler_thread_bytes(int64_t vocab);

class Sampler {
 public:
  Sampler(std::shared_ptr<ThreadPool> pool, const Kernels* kernels, int64_t vocab);
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;
  // Throws std::invalid_argument for a token outside the vocabulary or a parameter that makes no sense.
  void run(const SampleArgs& args);
  int64_t vocab() const { return vocab_; }

 private:
  void check(const SampleArgs& args) const;

  std::shared_ptr<ThreadPool> pool_;
  const Kernels* kernels_;
  int64_t vocab_;
  std::vector<Memory> scratch_;
};

}  // namespace tt
