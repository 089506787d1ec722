// Sixteen-lane vectors in AVX-512 registers (F, BW, DQ, VL, VNNI; BF16 where the build target has it).
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace tt::TT_ISA {

struct VF { __m512 v; };
struct VI { __m512i v; };

inline VF load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, VF a) { _mm512_storeu_ps(p, a.v); }
inline VF set1(float x) { return {_mm512_set1_ps(x)}; }
inline VF zero() { return {_mm512_setzero_ps()}; }
inline VF operator+(VF a, VF b) { return {_mm512_add_ps(a.v, b.v)}; }
inline VF operator-(VF a, VF b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline VF operator*(VF a, VF b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline VF operator/(VF a, VF b) { return {_mm512_div_ps(a.v, b.v)}; }
inline VF fma(VF a, VF b, VF c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline VF max(VF a, VF b) { return {_mm512_max_ps(a.v, b.v)}; }
inline VF min(VF a, VF b) { return {_mm512_min_ps(a.v, b.v)}; }
inline VF abs(VF a) { return {_mm512_abs_ps(a.v)}; }

inline VI loadi(const void* p) { return {_mm512_loadu_si512(p)}; }
inline void storei(void* p, VI a) { _mm512_storeu_si512(p, a.v); }
inline VI set1i(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline VI operator+(VI a, VI b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline VI operator-(VI a, VI b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline VI operator&(VI a, VI b) { return {_mm512_and_si512(a.v, b.v)}; }
inline VI operator|(VI a, VI b) { return {_mm512_or_si512(a.v, b.v)}; }
template <int N> inline VI shl(VI a) { return {_mm512_slli_epi32(a.v, N)}; }
template <int N> inline VI shr(VI a) { return {_mm512_srli_epi32(a.v, N)}; }
inline VI shl(VI a, int n) { return {_mm512_sll_epi32(a.v, _mm_cvtsi32_si128(n))}; }
inline VF as_float(VI a) { return {_mm512_castsi512_ps(a.v)}; }
inline VI as_int(VF a) { return {_mm512_castps_si512(a.v)}; }
inline VF to_float(VI a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline VI round_to_int(VF a) { return {_mm512_cvtps_epi32(a.v)}; }

inline __mmask16 lanes_below(int n) { return n >= 16 ? 0xFFFF : n <= 0 ? 0 : (__mmask16)((1u << n) - 1); }
// Lane i of a where lo <= i < hi, lane i of b elsewhere.
inline VF select_range(VF a, VF b, int lo, int hi) {
  __mmask16 m = (__mmask16)(lanes_below(hi) & (__mmask16)~lanes_below(lo));
  return {_mm512_mask_blend_ps(m, b.v, a.v)};
}
// All bits of the lanes where a > b, none of the others.
inline VI above(VF a, VF b) { return {_mm512_movm_epi32(_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ))}; }
// Lanes where a >= b, as bits.
inline uint32_t mask_ge(VF a, VF b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ); }
// The first n lanes from memory, zero in the others; reads no further than p[n - 1].
inline VF load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(lanes_below(n), p)}; }
inline void store_n(float* p, VF a, int n) { _mm512_mask_storeu_ps(p, lanes_below(n), a.v); }

inline VF load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
// Sixteen bytes, a lane each.
inline VI load_u8(const void* p) { return {_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p))}; }
inline VI load_i8(const void* p) { return {_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))}; }
// Each byte of a, all below 16, as the table's entry of that number.
inline VI table16(const uint8_t* table, VI a) {
  return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table)), a.v)};
}
// Low byte of each lane to 16 consecutive bytes.
inline void store_i8(int8_t* p, VI a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a.v)); }
// Low half of each lane to 16 consecutive 16-bit words.
inline void store_u16(uint16_t* p, VI a) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(a.v)); }

// Sum and maximum of all lanes, always by the same tree: halves, quarters, pairs.
inline float hsum(VF a) {
  __m256 s = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
inline float hmax(VF a) { return _mm512_reduce_max_ps(a.v); }
inline int32_t hsumi(VI a) { return _mm512_reduce_add_epi32(a.v); }

// acc[lane] += sum over 4 bytes of (u[lane] - DOT4_ZERO) * s[lane], exactly; u unsigned, s signed. Which zero point costs
// nothing depends on the instruction set, and the caller corrects for it.
constexpr int DOT4_ZERO = 0;
inline VI dot4(VI acc, VI u, VI s) {
#if defined(__GNUC__) && !defined(__clang__)
  // Not the intrinsic: in loops over many sums GCC copies each of them before and behind it.
  __asm__("vpdpbusd %2, %1, %0" : "+v"(acc.v) : "v"(u.v), "v"(s.v));
  return acc;
#else
  return {_mm512_dpbusd_epi32(acc.v, u.v, s.v)};
#endif
}
// acc[lane] += sum over 4 bytes of u[lane] * s[lane], where every u is below 128.
inline VI dot4_nibble(VI acc, VI u, VI s) { return dot4(acc, u, s); }
// The same of two products, where every u and v is below 16.
inline VI dot8_nibble(VI acc, VI u, VI s, VI v, VI t) { return dot4(dot4(acc, u, s), v, t); }
// The same where every u is even, and up to 254.
inline VI dot4_even(VI acc, VI u, VI s) { return dot4(acc, u, s); }

// acc[lane] += a.lo * b.lo + a.hi * b.hi over pairs of bfloat16 in each lane.
inline VF dot2_bf16(VF acc, VI a, VI b) {
#ifdef __AVX512BF16__
  return {_mm512_dpbf16_ps(acc.v, (__m512bh)a.v, (__m512bh)b.v)};
#else
  const VI high = set1i((int32_t)0xFFFF0000);
  acc = fma(as_float(shl<16>(a)), as_float(shl<16>(b)), acc);
  return fma(as_float(a & high), as_float(b & high), acc);
#endif
}

}  // namespace tt::TT_ISA
