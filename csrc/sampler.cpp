#include "sampler.h"

#include <atomic>
#include <stdexcept>
#include <string>

namespace tt {

// Counts, probabilities, tile sums, candidates (two lists) and changed logits (kernels/sampling.cpp lays them out).
size_t sampler_thread_bytes(int64_t vocab) {
  const size_t v = (size_t)(vocab + 15) / 16 * 16;
  return v * 4 + v * 4 + (v / 256 + 16) * 4 + 2 * v * 8 + v * 8 + 2 * v * 8 + 64;
}

Sampler::Sampler(std::shared_ptr<ThreadPool> pool, const Kernels* kernels, int64_t vocab)
    : pool_(std::move(pool)), kernels_(kernels), vocab_(vocab) {
  if (vocab <= 0 || vocab > (int64_t)1 << 30) throw std::invalid_argument("vocabulary size out of range");
  for (int t = 0; t < pool_->size(); ++t) scratch_.emplace_back(sampler_thread_bytes(vocab));
}

void Sampler::check(const SampleArgs& a) const {
  auto fail = [](const std::string& what) { throw std::invalid_argument("sampling: " + what); };
  auto ragged = [&](const int32_t* offsets, const int32_t* tokens, const char* name) {
    if (!offsets) return;
    if (offsets[0] != 0) fail(std::string(name) + " offsets must start at 0");
    for (int64_t r = 0; r < a.rows; ++r)
      if (offsets[r + 1] < offsets[r]) fail(std::string(name) + " offsets must ascend");
    for (int32_t i = 0; i < offsets[a.rows]; ++i)
      if (tokens[i] < 0 || tokens[i] >= vocab_) fail(std::string(name) + " token out of range");
  };
  ragged(a.prompt_offsets, a.prompt_tokens, "prompt");
  ragged(a.output_offsets, a.output_tokens, "output");
  ragged(a.bias_offsets, a.bias_tokens, "bias");
  if (a.output_offsets && !(a.prompt_offsets && a.frequency && a.presence && a.repetition)) fail("penalties are incomplete");
  for (int64_t r = 0; r < a.rows; ++r) {
    if (a.mask_rows && (a.mask_rows[r] < -1 || a.mask_rows[r] >= a.num_masks)) fail("there is no such mask");
    if (a.target[r] >= vocab_) fail("target out of range");
    if (!(a.temperature[r] >= 0.0f)) fail("temperature must be at least 0");
    if (!(a.top_p[r] > 0.0f && a.top_p[r] <= 1.0f)) fail("top_p must be above 0 and at most 1");
    if (!(a.min_p[r] >= 0.0f && a.min_p[r] <= 1.0f)) fail("min_p must be from 0 to 1");  // so that a token is left
    if (a.typical_p && !(a.typical_p[r] > 0.0f && a.typical_p[r] <= 1.0f)) fail("typical_p must be above 0 and at most 1");
    if (a.num_top[r] < 0 || a.num_top[r] > a.top_width) fail("more alternatives than there is room for");
  }
}

void Sampler::run(const SampleArgs& args) {
  check(args);
  std::atomic<int64_t> next{0};
  pool_->run([&](int thread) {
    for (int64_t r; (r = next.fetch_add(1, std::memory_order_relaxed)) < args.rows;) kernels_->sample_row(args, r, scratch_[thread].data());
  });
}

}  // namespace tt
