// Sixteen-lane vectors as two AVX2 registers (with FMA and F16C).
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace tt::TT_ISA {

struct VF { __m256 a, b; };
struct VI { __m256i a, b; };

inline VF load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, VF x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
inline VF set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline VF zero() { return set1(0.0f); }
inline VF operator+(VF x, VF y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline VF operator-(VF x, VF y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline VF operator*(VF x, VF y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline VF operator/(VF x, VF y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline VF fma(VF x, VF y, VF z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline VF max(VF x, VF y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline VF min(VF x, VF y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }

inline VI loadi(const void* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)p + 1)};
}
inline void storei(void* p, VI x) {
  _mm256_storeu_si256((__m256i*)p, x.a);
  _mm256_storeu_si256((__m256i*)p + 1, x.b);
}
inline VI set1i(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline VI operator+(VI x, VI y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline VI operator-(VI x, VI y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
inline VI operator&(VI x, VI y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
inline VI operator|(VI x, VI y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
template <int N> inline VI shl(VI x) { return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)}; }
template <int N> inline VI shr(VI x) { return {_mm256_srli_epi32(x.a, N), _mm256_srli_epi32(x.b, N)}; }
inline VI shl(VI x, int n) { return {_mm256_sll_epi32(x.a, _mm_cvtsi32_si128(n)), _mm256_sll_epi32(x.b, _mm_cvtsi32_si128(n))}; }
inline VF as_float(VI x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
inline VI as_int(VF x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
inline VF to_float(VI x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline VI round_to_int(VF x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline VF abs(VF x) { return as_float(as_int(x) & set1i(0x7FFFFFFF)); }

inline VI lane_ids() {
  return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}
inline VI greater(VI x, VI y) { return {_mm256_cmpgt_epi32(x.a, y.a), _mm256_cmpgt_epi32(x.b, y.b)}; }
inline VF select_range(VF x, VF y, int lo, int hi) {
  VI m = greater(set1i(hi), lane_ids()) & greater(lane_ids(), set1i(lo - 1));
  return {_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(m.a)),
          _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(m.b))};
}
inline VI above(VF x, VF y) {
  return {_mm256_castps_si256(_mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ)),
          _mm256_castps_si256(_mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ))};
}
inline uint32_t mask_ge(VF x, VF y) {
  return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_GE_OQ)) |
         (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_GE_OQ)) << 8;
}
inline VF load_n(const float* p, int n) {
  VI m = greater(set1i(n), lane_ids());
  return {_mm256_maskload_ps(p, m.a), n > 8 ? _mm256_maskload_ps(p + 8, m.b) : _mm256_setzero_ps()};
}
inline void store_n(float* p, VF x, int n) {
  VI m = greater(set1i(n), lane_ids());
  _mm256_maskstore_ps(p, m.a, x.a);
  if (n > 8) _mm256_maskstore_ps(p + 8, m.b, x.b);
}

inline VF load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)),
          _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
inline VI load_u8(const void* p) {
  const __m128i x = _mm_loadu_si128((const __m128i*)p);
  return {_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))};
}
inline VI load_i8(const void* p) {
  const __m128i x = _mm_loadu_si128((const __m128i*)p);
  return {_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))};
}
inline VI table16(const uint8_t* table, VI x) {
  const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table));
  return {_mm256_shuffle_epi8(t, x.a), _mm256_shuffle_epi8(t, x.b)};
}
inline void store_i8(int8_t* p, VI x) {
  alignas(32) int32_t t[16];
  storei(t, x);
  for (int i = 0; i < 16; ++i) p[i] = (int8_t)t[i];
}
inline void store_u16(uint16_t* p, VI x) {
  x = x & set1i(0xFFFF);
  __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(x.a, x.b), 0xD8);
  _mm256_storeu_si256((__m256i*)p, packed);
}

inline float hsum(VF x) {
  __m256 s = _mm256_add_ps(x.a, x.b);
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
inline float hmax(VF x) {
  __m256 s = _mm256_max_ps(x.a, x.b);
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}
inline int32_t hsumi(VI x) {
  __m256i s = _mm256_add_epi32(x.a, x.b);
  __m128i q = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
  q = _mm_add_epi32(q, _mm_shuffle_epi32(q, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(q, _mm_shuffle_epi32(q, 0xB1)));
}

inline __m256i dot4_half(__m256i acc, __m256i u, __m256i s) {
  // u below 128, so that the pairs fit in 16 bits without saturation.
  return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1)));
}
inline VI dot4_nibble(VI acc, VI u, VI s) { return {dot4_half(acc.a, u.a, s.a), dot4_half(acc.b, u.b, s.b)}; }
constexpr int DOT4_ZERO = 0;
inline __m256i dot4_full_half(__m256i acc, __m256i u, __m256i s) {
  // maddubs saturates for large u: widen the even and the odd bytes to 16 bits. The compiler does so once for all uses.
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(u, _mm256_set1_epi16(0xFF)), _mm256_srai_epi16(_mm256_slli_epi16(s, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(u, 8), _mm256_srai_epi16(s, 8));
  return _mm256_add_epi32(acc, _mm256_add_epi32(even, odd));
}
inline VI dot4(VI acc, VI u, VI s) { return {dot4_full_half(acc.a, u.a, s.a), dot4_full_half(acc.b, u.b, s.b)}; }

inline __m256i dot8_half(__m256i acc, __m256i u, __m256i s, __m256i v, __m256i t) {
  const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(u, s), _mm256_maddubs_epi16(v, t));
  return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
inline VI dot8_nibble(VI acc, VI u, VI s, VI v, VI t) {
  return {dot8_half(acc.a, u.a, s.a, v.a, t.a), dot8_half(acc.b, u.b, s.b, v.b, t.b)};
}
inline VI dot4_even(VI acc, VI u, VI s) { return dot4(acc, u, s); }

inline VF dot2_bf16(VF acc, VI x, VI y) {
  const VI high = set1i((int32_t)0xFFFF0000);
  acc = fma(as_float(shl<16>(x)), as_float(shl<16>(y)), acc);
  return fma(as_float(x & high), as_float(y & high), acc);
}

}  // namespace tt::TT_ISA
