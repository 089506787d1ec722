// What this processor could do at best: reads of memory, and multiply–accumulates with all operands at hand. Nothing here
// computes a result; `tokentrail bench roofline` holds the real kernels against these.
#include "kernels/kernels.h"
#include "simd/vec.h"

namespace tt::TT_ISA {

namespace {

// Independent accumulators: enough to cover an instruction's latency (5 cycles, 2 a cycle), few enough to stay in registers.
#if defined(TT_VEC_AVX512)
constexpr int CHAINS = 12;
#else
constexpr int CHAINS = 6;
#endif
constexpr int OPERANDS = 8;  // vectors that a loop goes round, so that no compiler can take the product out of it

alignas(64) const uint8_t BYTES[OPERANDS * 64] = {1, 2, 3};
alignas(64) const float FLOATS[OPERANDS * LANES] = {1.0f, 2.0f, 3.0f};

template <class F> inline int64_t integer_rounds(int64_t rounds, F&& multiply) {
  VI acc[CHAINS];
  for (int c = 0; c < CHAINS; ++c) acc[c] = set1i(c);
  VI s[CHAINS];  // all different: no part of one product serves another
  for (int c = 0; c < CHAINS; ++c) s[c] = loadi(BYTES + 4 * c);
  for (int64_t i = 0; i < rounds; ++i) {
    const VI u = loadi(BYTES + i % OPERANDS * 64);
    for (int c = 0; c < CHAINS; ++c) acc[c] = multiply(acc[c], u, s[c]);
  }
  for (int c = 1; c < CHAINS; ++c) acc[0] = acc[0] + acc[c];
  return hsumi(acc[0]);
}

template <class F> inline int64_t float_rounds(int64_t rounds, F&& multiply) {
  VF acc[CHAINS];
  for (int c = 0; c < CHAINS; ++c) acc[c] = set1((float)c);
  const float* operands = FLOATS;
  for (int64_t i = 0; i < rounds; ++i) {
    const VF x = load(operands + i % OPERANDS * LANES);
    for (int c = 0; c < CHAINS; ++c) acc[c] = multiply(acc[c], x);
  }
  for (int c = 1; c < CHAINS; ++c) acc[0] = acc[0] + acc[c];
  return hsum(acc[0]) > 0.0f;
}

// `STREAMS` runs of memory side by side, each read in order, `AHEAD` bytes fetched ahead (0: left to the hardware).
template <int STREAMS, int AHEAD> inline int64_t read_streams(const uint8_t* data, size_t bytes) {
  constexpr size_t STEP = 256;
  const size_t part = bytes / STREAMS / STEP * STEP;
  VI acc[4] = {set1i(0), set1i(0), set1i(0), set1i(0)};
  for (size_t at = 0; at < part; at += STEP)
    for (int s = 0; s < STREAMS; ++s)
      for (int i = 0; i < 4; ++i) {
        const uint8_t* p = data + s * part + at + 64 * i;
        if (AHEAD) __builtin_prefetch(p + AHEAD);
        acc[i] = acc[i] | loadi(p);
      }
  return hsumi(acc[0] | acc[1] | acc[2] | acc[3]);
}

}  // namespace

int64_t peak_macs(Peak peak, int64_t rounds) {
  switch (peak) {
    case Peak::INT8: return integer_rounds(rounds, [](VI acc, VI u, VI s) { return dot4(acc, u, s); });
    case Peak::INT4: return integer_rounds(rounds, [](VI acc, VI u, VI s) { return dot4_nibble(acc, u, s); });
    case Peak::BF16: {
      const VI pairs = loadi(BYTES);
      return float_rounds(rounds, [pairs](VF acc, VF x) { return dot2_bf16(acc, as_int(x), pairs); });
    }
    case Peak::F32: {
      const VF factor = set1(0.5f);
      return float_rounds(rounds, [factor](VF acc, VF x) { return fma(x, factor, acc); });
    }
  }
  return 0;
}

int64_t peak_macs_per_round(Peak peak) {
  const int lane = peak == Peak::F32 ? 1 : peak == Peak::BF16 ? 2 : 4;
  return (int64_t)lane * LANES * CHAINS;
}

int64_t peak_read(int pattern, const uint8_t* data, size_t bytes) {
  switch (pattern) {
    case 0: return read_streams<1, 0>(data, bytes);
    case 1: return read_streams<1, 2048>(data, bytes);
    case 2: return read_streams<4, 0>(data, bytes);
    default: return read_streams<4, 1024>(data, bytes);
  }
}

}  // namespace tt::TT_ISA
