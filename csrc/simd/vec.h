// One vector vocabulary for all instruction sets: sixteen lanes, written once above it. Each kernel file is compiled
// once per instruction set with TT_ISA naming the namespace; see CMakeLists.txt.
#pragma once

#if defined(TT_VEC_AVX512)
#include "simd/avx512.h"
#elif defined(TT_VEC_AVX2)
#include "simd/avx2.h"
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

// tanh(x) = 1 - 2 / (e^2x + 1).
inline VF tanh(VF x) { return set1(1.0f) - set1(2.0f) / (exp(x + x) + set1(1.0f)); }

}  // namespace tt::TT_ISA
