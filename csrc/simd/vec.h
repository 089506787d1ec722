// One vector vocabulary for all instruction sets: sixteen lanes, written once above it. Each kernel file is compiled
// once per instruction set with TT_ISA naming the namespace; see CMakeLists.txt.
#pragma once

#if defined(TT_VEC_AVX512)
#include "simd/avx512.h"
#elif defined(TT_VEC_AVX2)
#include "simd/avx2.h"
#elif defined(TT_VEC_NEON)
#include "simd/neon.h"
#else
#include "simd/portable.h"
#endif

#include <limits>

namespace tt::TT_ISA {

constexpr int LANES = 16;
constexpr float INF = std::numeric_limits<float>::infinity();

// e^x, relative error below 2^-22 on [-87, 88]; 0 below -87.3, saturating above. Range reduction to |r| <= ln2/2 with
// ln2 in two parts, then the Taylor polynomial of degree 7 (Horner).
inline VF exp(VF x) {
  const VF low = set1(-87.33654f);
  VF clipped = min(max(x, low), set1(88.37626f));
  VI n = round_to_int(clipped * set1(1.44269504088896341f));
  VF nf = to_float(n);
  VF r = fma(nf, set1(-0.693359375f), clipped);
  r = fma(nf, set1(2.12194440e-4f), r);
  VF p = set1(1.9841270e-4f);
  p = fma(p, r, set1(1.3888889e-3f));
  p = fma(p, r, set1(8.3333333e-3f));
  p = fma(p, r, set1(4.1666667e-2f));
  p = fma(p, r, set1(1.6666667e-1f));
  p = fma(p, r, set1(5.0e-1f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  VF y = as_float(as_int(p) + shl<23>(n));
  // Lanes at or below the lower bound are zero: a masked score must weigh nothing at all.
  return as_float(as_int(y) & above(x, low));
}

// 2^x for x <= 0, relative error below 2^-22; 0 from -126.5 down, NaN for NaN. Minimax polynomial of degree 5 on
// [-1/2, 1/2], exactly 1 at 0.
inline VF exp2(VF x) {
  const VF magic = set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer, which its low bits then hold
  const VF clipped = max(set1(-127.0f), x);
  const VF n = clipped + magic, r = clipped - (n - magic);
  VF p = set1(1.326472731307149e-3f);
  p = fma(p, r, set1(9.671512991189957e-3f));
  p = fma(p, r, set1(5.550733581185341e-2f));
  p = fma(p, r, set1(2.4022242426872253e-1f));
  p = fma(p, r, set1(6.931470036506653e-1f));
  p = fma(p, r, set1(1.0f));
  return p * as_float(shl<23>(as_int(n) + set1i(127)));  // at -127 the factor is zero
}

// bfloat16, rounded to nearest even, to sixteen 16-bit words; NaN stays NaN.
inline void store_bf16(uint16_t* to, VF x) {
#if defined(TT_VEC_AVX512) && defined(__AVX512BF16__)
  _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh(x.v));
#else
  // Lanes that are no numbers (or -infinity, from which none follow) lose their low half, lest rounding carry, and are quiet.
  const VI number = above(x, set1(-INF)), bits = as_int(x) & (number | set1i((int32_t)0xFFFF0000));
  store_u16(to, shr<16>(bits + set1i(0x7FFF) + (shr<16>(bits) & set1i(1))) | shl<6>(number + set1i(1)));
#endif
}

// tanh(x) = 1 - 2 / (e^2x + 1), which cancels near 0: up to 0.6 an odd polynomial of degree 11, minimax. Relative error below
// 2^-22; NaN for NaN.
inline VF tanh(VF x) {
  const VF far = set1(1.0f) - set1(2.0f) / (exp(x + x) + set1(1.0f)), square = x * x;
  VF p = set1(-5.895157810e-3f);
  p = fma(p, square, set1(2.079597116e-2f));
  p = fma(p, square, set1(-5.378383026e-2f));
  p = fma(p, square, set1(0.1333192438f));
  p = fma(p, square, set1(-0.3333329856f));
  const VF near = fma(x * square, p, x);
  const VI is_far = above(abs(x), set1(0.6f));
  return as_float((as_int(far) & is_far) | (as_int(near) & (set1i(-1) - is_far)));
}

}  // namespace tt::TT_ISA
