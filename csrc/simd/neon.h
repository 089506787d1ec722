// Sixteen-lane vectors as four NEON registers (ARMv8-A, arm64). Where the build target has them: dot products of bytes
// (DOTPROD), of unsigned with signed bytes (I8MM), and of bfloat16 pairs (BF16).
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace tt::TT_ISA {

struct VF { float32x4_t a, b, c, d; };
struct VI { int32x4_t a, b, c, d; };

// `f` of the four quarters of its arguments.
template <class F> inline VF each(F f, VF x) { return {f(x.a), f(x.b), f(x.c), f(x.d)}; }
template <class F> inline VF each(F f, VF x, VF y) { return {f(x.a, y.a), f(x.b, y.b), f(x.c, y.c), f(x.d, y.d)}; }
template <class F> inline VI eachi(F f, VI x) { return {f(x.a), f(x.b), f(x.c), f(x.d)}; }
template <class F> inline VI eachi(F f, VI x, VI y) { return {f(x.a, y.a), f(x.b, y.b), f(x.c, y.c), f(x.d, y.d)}; }
template <class F> inline VI eachi(F f, VI x, VI y, VI z) {
  return {f(x.a, y.a, z.a), f(x.b, y.b, z.b), f(x.c, y.c, z.c), f(x.d, y.d, z.d)};
}
using Quarter = float32x4_t;
using QuarterI = int32x4_t;

inline VF load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}; }
inline void store(float* p, VF x) {
  vst1q_f32(p, x.a);
  vst1q_f32(p + 4, x.b);
  vst1q_f32(p + 8, x.c);
  vst1q_f32(p + 12, x.d);
}
inline VF set1(float x) {
  const Quarter q = vdupq_n_f32(x);
  return {q, q, q, q};
}
inline VF zero() { return set1(0.0f); }
inline VF operator+(VF x, VF y) { return each([](Quarter p, Quarter q) { return vaddq_f32(p, q); }, x, y); }
inline VF operator-(VF x, VF y) { return each([](Quarter p, Quarter q) { return vsubq_f32(p, q); }, x, y); }
inline VF operator*(VF x, VF y) { return each([](Quarter p, Quarter q) { return vmulq_f32(p, q); }, x, y); }
inline VF operator/(VF x, VF y) { return each([](Quarter p, Quarter q) { return vdivq_f32(p, q); }, x, y); }
inline VF fma(VF x, VF y, VF z) {
  return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c), vfmaq_f32(z.d, x.d, y.d)};
}
// The second where one is not a number, as on x86 (FMAX would give NaN, FMAXNM the number).
inline Quarter max_quarter(Quarter p, Quarter q) { return vbslq_f32(vcgtq_f32(p, q), p, q); }
inline VF max(VF x, VF y) { return each(max_quarter, x, y); }
inline VF min(VF x, VF y) { return each([](Quarter p, Quarter q) { return vbslq_f32(vcltq_f32(p, q), p, q); }, x, y); }
inline VF abs(VF x) { return each([](Quarter p) { return vabsq_f32(p); }, x); }

inline VI loadi(const void* p) {
  const uint8_t* b = (const uint8_t*)p;
  return {vreinterpretq_s32_u8(vld1q_u8(b)), vreinterpretq_s32_u8(vld1q_u8(b + 16)),
          vreinterpretq_s32_u8(vld1q_u8(b + 32)), vreinterpretq_s32_u8(vld1q_u8(b + 48))};
}
inline void storei(void* p, VI x) {
  int32_t* to = (int32_t*)p;
  vst1q_s32(to, x.a);
  vst1q_s32(to + 4, x.b);
  vst1q_s32(to + 8, x.c);
  vst1q_s32(to + 12, x.d);
}
inline VI set1i(int32_t x) {
  const QuarterI q = vdupq_n_s32(x);
  return {q, q, q, q};
}
inline VI operator+(VI x, VI y) { return eachi([](QuarterI p, QuarterI q) { return vaddq_s32(p, q); }, x, y); }
inline VI operator-(VI x, VI y) { return eachi([](QuarterI p, QuarterI q) { return vsubq_s32(p, q); }, x, y); }
inline VI operator&(VI x, VI y) { return eachi([](QuarterI p, QuarterI q) { return vandq_s32(p, q); }, x, y); }
inline VI operator|(VI x, VI y) { return eachi([](QuarterI p, QuarterI q) { return vorrq_s32(p, q); }, x, y); }
template <int N> inline VI shl(VI x) {
  return eachi([](QuarterI p) { return vshlq_n_s32(p, N); }, x);
}
inline VI shl(VI x, int n) {
  return eachi([](QuarterI p, QuarterI by) { return vshlq_s32(p, by); }, x, set1i(n));
}
template <int N> inline VI shr(VI x) {
  return eachi([](QuarterI p) { return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(p), N)); }, x);
}
inline VF as_float(VI x) {
  return {vreinterpretq_f32_s32(x.a), vreinterpretq_f32_s32(x.b), vreinterpretq_f32_s32(x.c), vreinterpretq_f32_s32(x.d)};
}
inline VI as_int(VF x) {
  return {vreinterpretq_s32_f32(x.a), vreinterpretq_s32_f32(x.b), vreinterpretq_s32_f32(x.c), vreinterpretq_s32_f32(x.d)};
}
inline VF to_float(VI x) { return {vcvtq_f32_s32(x.a), vcvtq_f32_s32(x.b), vcvtq_f32_s32(x.c), vcvtq_f32_s32(x.d)}; }
// To nearest, ties to even.
inline VI round_to_int(VF x) { return {vcvtnq_s32_f32(x.a), vcvtnq_s32_f32(x.b), vcvtnq_s32_f32(x.c), vcvtnq_s32_f32(x.d)}; }

inline VI lane_ids() {
  static constexpr int32_t ids[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return loadi(ids);
}
inline VI greater(VI x, VI y) {
  return eachi([](QuarterI p, QuarterI q) { return vreinterpretq_s32_u32(vcgtq_s32(p, q)); }, x, y);
}
inline VF select(VI mask, VF x, VF y) {
  return {vbslq_f32(vreinterpretq_u32_s32(mask.a), x.a, y.a), vbslq_f32(vreinterpretq_u32_s32(mask.b), x.b, y.b),
          vbslq_f32(vreinterpretq_u32_s32(mask.c), x.c, y.c), vbslq_f32(vreinterpretq_u32_s32(mask.d), x.d, y.d)};
}
inline VF select_range(VF x, VF y, int lo, int hi) {
  return select(greater(set1i(hi), lane_ids()) & greater(lane_ids(), set1i(lo - 1)), x, y);
}
inline VI above(VF x, VF y) {
  return as_int(each([](Quarter p, Quarter q) { return vreinterpretq_f32_u32(vcgtq_f32(p, q)); }, x, y));
}
inline uint32_t mask_ge(VF x, VF y) {
  static constexpr uint8_t bits[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const uint16x8_t low = vcombine_u16(vmovn_u32(vcgeq_f32(x.a, y.a)), vmovn_u32(vcgeq_f32(x.b, y.b)));
  const uint16x8_t high = vcombine_u16(vmovn_u32(vcgeq_f32(x.c, y.c)), vmovn_u32(vcgeq_f32(x.d, y.d)));
  const uint8x16_t set = vandq_u8(vcombine_u8(vmovn_u16(low), vmovn_u16(high)), vld1q_u8(bits));
  return (uint32_t)vaddv_u8(vget_low_u8(set)) | (uint32_t)vaddv_u8(vget_high_u8(set)) << 8;
}
inline VF load_n(const float* p, int n) {
  alignas(16) float lanes[16] = {};
  for (int i = 0; i < n && i < 16; ++i) lanes[i] = p[i];
  return load(lanes);
}
inline void store_n(float* p, VF x, int n) {
  alignas(16) float lanes[16];
  store(lanes, x);
  for (int i = 0; i < n && i < 16; ++i) p[i] = lanes[i];
}

inline VF load_f16(const uint16_t* p) {
  const uint16x8_t low = vld1q_u16(p), high = vld1q_u16(p + 8);
  return {vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(low))), vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(low))),
          vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(high))), vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(high)))};
}
inline VI load_u8(const void* p) {
  const uint8x16_t x = vld1q_u8((const uint8_t*)p);
  const uint16x8_t low = vmovl_u8(vget_low_u8(x)), high = vmovl_u8(vget_high_u8(x));
  return {vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))), vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(low))),
          vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))), vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(high)))};
}
inline VI load_i8(const void* p) {
  const int8x16_t x = vld1q_s8((const int8_t*)p);
  const int16x8_t low = vmovl_s8(vget_low_s8(x)), high = vmovl_s8(vget_high_s8(x));
  return {vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)), vmovl_s16(vget_low_s16(high)), vmovl_s16(vget_high_s16(high))};
}
inline VI table16(const uint8_t* table, VI x) {
  const uint8x16_t t = vld1q_u8(table);
  return eachi([t](QuarterI p) { return vreinterpretq_s32_u8(vqtbl1q_u8(t, vreinterpretq_u8_s32(p))); }, x);
}
inline void store_i8(int8_t* p, VI x) {
  const int16x8_t low = vcombine_s16(vmovn_s32(x.a), vmovn_s32(x.b)), high = vcombine_s16(vmovn_s32(x.c), vmovn_s32(x.d));
  vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}
inline void store_u16(uint16_t* p, VI x) {
  vst1q_u16(p, vreinterpretq_u16_s16(vcombine_s16(vmovn_s32(x.a), vmovn_s32(x.b))));
  vst1q_u16(p + 8, vreinterpretq_u16_s16(vcombine_s16(vmovn_s32(x.c), vmovn_s32(x.d))));
}

// The tree of the x86 paths: halves, quarters, pairs.
inline float hsum(VF x) {
  const Quarter q = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
  const float32x2_t pair = vadd_f32(vget_low_f32(q), vget_high_f32(q));
  return vget_lane_f32(pair, 0) + vget_lane_f32(pair, 1);
}
inline float hmax(VF x) {
  const Quarter q = max_quarter(max_quarter(x.a, x.c), max_quarter(x.b, x.d));
  const float32x2_t low = vget_low_f32(q), high = vget_high_f32(q), pair = vbsl_f32(vcgt_f32(low, high), low, high);
  const float m = vget_lane_f32(pair, 0), n = vget_lane_f32(pair, 1);
  return m > n ? m : n;
}
inline int32_t hsumi(VI x) { return vaddvq_s32(vaddq_s32(vaddq_s32(x.a, x.b), vaddq_s32(x.c, x.d))); }

inline int8x16_t bytes(QuarterI x) { return vreinterpretq_s8_s32(x); }

// acc[lane] += sum over 4 bytes of u[lane] (unsigned, below 128) * s[lane] (signed), exactly.
inline VI dot4_nibble(VI acc, VI u, VI s) {
#if defined(__ARM_FEATURE_DOTPROD)
  return eachi([](QuarterI t, QuarterI p, QuarterI q) { return vdotq_s32(t, bytes(p), bytes(q)); }, acc, u, s);
#else
  // Two products of at most 127 * 128 fit in 16 bits.
  return eachi([](QuarterI t, QuarterI p, QuarterI q) {
    const int16x8_t low = vmull_s8(vget_low_s8(bytes(p)), vget_low_s8(bytes(q))), high = vmull_high_s8(bytes(p), bytes(q));
    return vpadalq_s16(t, vpaddq_s16(low, high));
  }, acc, u, s);
#endif
}

// The same of two products, where every u and v is below 16.
#if defined(__ARM_FEATURE_DOTPROD)
inline VI dot8_nibble(VI acc, VI u, VI s, VI v, VI t) { return dot4_nibble(dot4_nibble(acc, u, s), v, t); }
#else
inline QuarterI dot8_quarter(QuarterI acc, int8x16_t u, int8x16_t s, int8x16_t v, int8x16_t t) {
  const int16x8_t low = vmlal_s8(vmull_s8(vget_low_s8(u), vget_low_s8(s)), vget_low_s8(v), vget_low_s8(t));
  return vpadalq_s16(acc, vpaddq_s16(low, vmlal_high_s8(vmull_high_s8(u, s), v, t)));
}
inline VI dot8_nibble(VI acc, VI u, VI s, VI v, VI t) {
  return {dot8_quarter(acc.a, bytes(u.a), bytes(s.a), bytes(v.a), bytes(t.a)), dot8_quarter(acc.b, bytes(u.b), bytes(s.b), bytes(v.b), bytes(t.b)),
          dot8_quarter(acc.c, bytes(u.c), bytes(s.c), bytes(v.c), bytes(t.c)), dot8_quarter(acc.d, bytes(u.d), bytes(s.d), bytes(v.d), bytes(t.d))};
}
#endif

// acc[lane] += sum over 4 bytes of (u[lane] - DOT4_ZERO) * s[lane], exactly.
#if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr int DOT4_ZERO = 0;
inline VI dot4(VI acc, VI u, VI s) {
  return eachi([](QuarterI t, QuarterI p, QuarterI q) { return vusdotq_s32(t, vreinterpretq_u8_s32(p), bytes(q)); }, acc, u, s);
}
#else
constexpr int DOT4_ZERO = 128;
inline VI dot4(VI acc, VI u, VI s) {
  return eachi([](QuarterI t, QuarterI p, QuarterI q) {
    const int8x16_t w = veorq_s8(bytes(p), vdupq_n_s8(-128));
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(t, w, bytes(q));
#else
    const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(bytes(q))), high = vmull_high_s8(w, bytes(q));
    return vaddq_s32(t, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
#endif
  }, acc, u, s);
}
#endif

// The same with zero point 0 where every u is even.
inline VI dot4_even(VI acc, VI u, VI s) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
  return dot4(acc, u, s);
#else
  const VI half = eachi([](QuarterI p) { return vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(p), 1)); }, u);
  return dot4_nibble(dot4_nibble(acc, half, s), half, s);
#endif
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
// Two rows at once: an instruction multiplies eight unsigned values of two columns with eight signed ones of two rows.
#define TT_ROW_PAIRS
struct Columns { uint8x16_t v[8]; };  // eight values of either of the columns 2 i and 2 i + 1
struct RowPair { QuarterI v[8]; };    // sums of column 2 i: first row, second row; of column 2 i + 1
// From the values 0 … 3 and 4 … 7 of sixteen columns.
inline Columns columns8(VI first, VI second) {
  const auto low = [](QuarterI p, QuarterI q) { return vreinterpretq_u8_s32(vzip1q_s32(p, q)); };
  const auto high = [](QuarterI p, QuarterI q) { return vreinterpretq_u8_s32(vzip2q_s32(p, q)); };
  return {{low(first.a, second.a), high(first.a, second.a), low(first.b, second.b), high(first.b, second.b),
           low(first.c, second.c), high(first.c, second.c), low(first.d, second.d), high(first.d, second.d)}};
}
inline int8x16_t rows8(const int8_t* first, const int8_t* second) { return vcombine_s8(vld1_s8(first), vld1_s8(second)); }
inline void dot8_rows(RowPair& acc, const Columns& c, int8x16_t rows) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) acc.v[i] = vusmmlaq_s32(acc.v[i], c.v[i], rows);
}
inline void add_rows(const RowPair& x, VI& first, VI& second) {
  const auto even = [&x](int i) { return vuzp1q_s32(x.v[i], x.v[i + 1]); };
  const auto odd = [&x](int i) { return vuzp2q_s32(x.v[i], x.v[i + 1]); };
  first = first + VI{even(0), even(2), even(4), even(6)};
  second = second + VI{odd(0), odd(2), odd(4), odd(6)};
}
#endif

// acc[lane] += x.lo * y.lo + x.hi * y.hi over pairs of bfloat16 in each lane.
inline VF dot2_bf16(VF acc, VI x, VI y) {
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  // BFDOT rounds its sums to odd, whatever the processor's rounding mode: the same bits on every arm64 that has it.
  const auto dot = [](Quarter t, QuarterI p, QuarterI q) {
#if defined(__GNUC__) && !defined(__clang__)
    asm("" : "+w"(q));  // GCC 12 takes a constant 1.0 in bfloat16 for one in half precision: let it see no constant
#endif
    return vbfdotq_f32(t, vreinterpretq_bf16_s32(p), vreinterpretq_bf16_s32(q));
  };
  return {dot(acc.a, x.a, y.a), dot(acc.b, x.b, y.b), dot(acc.c, x.c, y.c), dot(acc.d, x.d, y.d)};
#else
  const VI high = set1i((int32_t)0xFFFF0000);
  acc = fma(as_float(shl<16>(x)), as_float(shl<16>(y)), acc);
  return fma(as_float(x & high), as_float(y & high), acc);
#endif
}

}  // namespace tt::TT_ISA
