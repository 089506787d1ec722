// Quantization on loading: weights in full precision to blocks of Q8_0 and Q4_0, a scale for 32 values, which is the
// least-squares one for the integers chosen. checkpoints/quantize.py does the same in NumPy and says why so.
#include "half.h"
#include "kernels/kernels.h"
#include "simd/vec.h"

namespace tt::TT_ISA {

namespace {

// A group of 32 values as two vectors: the even and the odd ones of bfloat16, of others the first and the second half.
template <Layout Source> struct Group {
  static constexpr bool PAIRS = Source == Layout::BF16;
  static constexpr size_t BYTES = GROUP * (Source == Layout::F32 ? 4 : 2);
  VF x[2];

  inline explicit Group(const uint8_t* from) {
    alignas(64) uint8_t bytes[BYTES];  // files align nothing
    std::memcpy(bytes, from, BYTES);
    if constexpr (PAIRS) {
      const VI pairs = loadi(bytes);
      x[0] = as_float(shl<16>(pairs));
      x[1] = as_float(pairs & set1i((int32_t)0xFFFF0000));
    } else if constexpr (Source == Layout::F16) {
      for (int i = 0; i < 2; ++i) x[i] = load_f16((const uint16_t*)bytes + 16 * i);
    } else {
      for (int i = 0; i < 2; ++i) x[i] = load((const float*)bytes + 16 * i);
    }
  }
  inline float top() const { return hmax(max(abs(x[0]), abs(x[1]))); }
  // The first value at `top` or beyond, counted; 32 where there is none.
  inline static int first(VF a, VF b, VF top) {
    const uint32_t in_a = mask_ge(a, top), in_b = mask_ge(b, top);
    const int at_a = in_a ? __builtin_ctz(in_a) : GROUP, at_b = in_b ? __builtin_ctz(in_b) : GROUP;
    const int a_at = PAIRS ? 2 * at_a : at_a, b_at = PAIRS ? 2 * at_b + 1 : at_b + 16;
    return a_at < b_at ? a_at : b_at;
  }
  // The value furthest from zero; of equals, the first.
  inline float furthest() const {
    const float top = this->top();
    const VF positive = set1(top);
    return first(x[0], x[1], positive) <= first(zero() - x[0], zero() - x[1], positive) ? top : -top;
  }
  inline void integers(float scale, float low, float high, VF (&q)[2]) const {
    const VF inverse = set1(scale > 1e-30f || scale < -1e-30f ? 1.0f / scale : 0.0f);
    for (int i = 0; i < 2; ++i) q[i] = to_float(round_to_int(max(set1(low), min(set1(high), x[i] * inverse))));
  }
  // The scale d with the least sum of (x - d q)^2; `explained`: the sum of x^2 less what is left.
  inline float least_squares(const VF (&q)[2], float& explained) const {
    const float products = hsum(fma(x[1], q[1], x[0] * q[0])), squares = hsum(fma(q[1], q[1], q[0] * q[0]));
    const float scale = squares > 0.0f ? products * (1.0f / squares) : 0.0f;
    explained = scale * products;
    return scale;
  }
  // The integers, which fit a byte, in the order of the values.
  inline static void store(const VF (&q)[2], float offset, int8_t* to) {
    const VI a = round_to_int(q[0] + set1(offset)), b = round_to_int(q[1] + set1(offset));
    if constexpr (PAIRS) {
      store_u16((uint16_t*)to, (a & set1i(0xFF)) | shl<8>(b & set1i(0xFF)));
    } else {
      store_i8(to, a);
      store_i8(to + 16, b);
    }
  }
  inline void add_losses(const VF (&q)[2], float scale, double* losses) const {
    const VF d = set1(scale), a = x[0] - q[0] * d, b = x[1] - q[1] * d;
    losses[0] += (double)hsum(fma(b, b, a * a));
    losses[1] += (double)hsum(fma(x[1], x[1], x[0] * x[0]));
  }
};

// `Four`: to four bits, else to eight.
template <bool Four, Layout Source> void quantize_groups(const uint8_t* from, int64_t count, uint8_t* to, double* losses) {
  constexpr float LOW = Four ? -8.0f : -127.0f, HIGH = Four ? 7.0f : 127.0f, SPANS[] = {0.9f / -8.0f, 1.0f / -8.0f};
  for (; count; --count, from += Group<Source>::BYTES) {
    const Group<Source> group(from);
    VF q[2];
    float scale = 0.0f, explained;
    if constexpr (Four) {
      // The value furthest from zero becomes -8, which has no opposite, or goes a little beyond.
      const float furthest = group.furthest();
      float gain = 0.0f;
      for (float span : SPANS) {
        group.integers(furthest * span, LOW, HIGH, q);
        const float candidate = group.least_squares(q, explained);
        if (explained > gain) scale = candidate, gain = explained;
      }
    } else {
      group.integers(group.top() / 127.0f, LOW, HIGH, q);
      scale = group.least_squares(q, explained);
    }
    const uint16_t half = to_half(scale);
    const float stored = from_half(half);
    group.integers(stored, LOW, HIGH, q);  // for the scale as it is stored
    group.add_losses(q, stored, losses);
    std::memcpy(to, &half, 2);
    to += 2;
    alignas(64) int8_t values[GROUP];
    Group<Source>::store(q, Four ? 8.0f : 0.0f, values);
    if constexpr (Four) {
      uint64_t low[2], high[2];
      std::memcpy(low, values, 16);
      std::memcpy(high, values + 16, 16);
      for (int i = 0; i < 2; ++i) low[i] |= high[i] << 4;
      std::memcpy(to, low, 16);
      to += 16;
    } else {
      std::memcpy(to, values, GROUP);
      to += GROUP;
    }
  }
}

}  // namespace

void quantize_weights(Layout source, bool four, const uint8_t* from, int64_t count, uint8_t* to, double* losses) {
  switch (source) {
#define TT_SOURCE(L) \
  case Layout::L: \
    return four ? quantize_groups<true, Layout::L>(from, count, to, losses) : quantize_groups<false, Layout::L>(from, count, to, losses)
    TT_SOURCE(BF16);
    TT_SOURCE(F16);
    TT_SOURCE(F32);
#undef TT_SOURCE
    default: return;
  }
}

}  // namespace tt::TT_ISA
