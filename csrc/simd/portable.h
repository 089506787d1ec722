// Sixteen-lane vectors in plain C++: what any compiler and machine can run. Multiplications and additions round
// separately here (no fused multiply-add), so results differ in the last bits from the x86 paths.
#pragma once

#include <cstdint>
#include <cstring>

namespace tt::TT_ISA {

typedef float F16x __attribute__((vector_size(64)));
typedef int32_t I16x __attribute__((vector_size(64)));
typedef uint32_t U16x __attribute__((vector_size(64)));  // sums that may wrap

struct VF { F16x v; };
struct VI { I16x v; };

inline VF load(const float* p) { VF r; std::memcpy(&r, p, 64); return r; }
inline void store(float* p, const VF& a) { std::memcpy(p, &a, 64); }
inline VF set1(float x) { return {F16x{} + x}; }
inline VF zero() { return {F16x{}}; }
inline VF operator+(const VF& a, const VF& b) { return {a.v + b.v}; }
inline VF operator-(const VF& a, const VF& b) { return {a.v - b.v}; }
inline VF operator*(const VF& a, const VF& b) { return {a.v * b.v}; }
inline VF operator/(const VF& a, const VF& b) { return {a.v / b.v}; }
inline VF fma(const VF& a, const VF& b, const VF& c) { return {a.v * b.v + c.v}; }
inline VF max(const VF& a, const VF& b) { return {a.v > b.v ? a.v : b.v}; }
inline VF min(const VF& a, const VF& b) { return {a.v < b.v ? a.v : b.v}; }

inline VI loadi(const void* p) { VI r; std::memcpy(&r, p, 64); return r; }
inline VI set1i(int32_t x) { return {I16x{} + x}; }
inline VI operator+(const VI& a, const VI& b) { return {(I16x)((U16x)a.v + (U16x)b.v)}; }
inline VI operator-(const VI& a, const VI& b) { return {(I16x)((U16x)a.v - (U16x)b.v)}; }
inline VI operator&(const VI& a, const VI& b) { return {a.v & b.v}; }
inline VI operator|(const VI& a, const VI& b) { return {a.v | b.v}; }
template <int N> inline VI shl(const VI& a) { return {a.v << N}; }
inline VI shl(const VI& a, int n) { return {(I16x)((U16x)a.v << (U16x{} + (uint32_t)n))}; }
template <int N> inline VI shr(const VI& a) { return {(I16x)((U16x)a.v >> N)}; }
inline VF as_float(const VI& a) { VF r; std::memcpy(&r, &a, 64); return r; }
inline VI as_int(const VF& a) { VI r; std::memcpy(&r, &a, 64); return r; }
inline VF to_float(const VI& a) { return {__builtin_convertvector(a.v, F16x)}; }
inline VI round_to_int(const VF& a) {
  // Adding 1.5 * 2^23 rounds to the nearest integer, ties to even, for |a| < 2^22.
  const F16x magic = F16x{} + 12582912.0f;
  F16x r = (a.v + magic) - magic;
  return {__builtin_convertvector(r, I16x)};
}
inline VF abs(const VF& a) { return as_float(as_int(a) & set1i(0x7FFFFFFF)); }

inline VF select_range(const VF& a, const VF& b, int lo, int hi) {
  const I16x ids = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return {((ids >= lo) & (ids < hi)) ? a.v : b.v};
}
inline VI above(const VF& a, const VF& b) { return {a.v > b.v}; }
inline uint32_t mask_ge(const VF& a, const VF& b) {
  uint32_t m = 0;
  for (int i = 0; i < 16; ++i) m |= (uint32_t)(a.v[i] >= b.v[i]) << i;
  return m;
}
inline VF load_n(const float* p, int n) {
  VF r = zero();
  if (n > 0) std::memcpy(&r, p, sizeof(float) * (size_t)(n < 16 ? n : 16));
  return r;
}
inline void store_n(float* p, const VF& a, int n) {
  if (n > 0) std::memcpy(p, &a, sizeof(float) * (size_t)(n < 16 ? n : 16));
}

inline VF load_f16(const uint16_t* p) {
  // IEEE half to single: place exponent and mantissa, then scale by 2^112; infinities and NaN keep their bits.
  VF r;
  for (int i = 0; i < 16; ++i) {
    uint32_t h = p[i], sign = (h & 0x8000u) << 16, bits = (h & 0x7FFFu) << 13;
    float f;
    std::memcpy(&f, &bits, 4);
    f *= 5.192296858534828e+33f;
    std::memcpy(&bits, &f, 4);
    if ((h & 0x7C00u) == 0x7C00u) bits = 0x7F800000u | (h & 0x3FFu) << 13;
    bits |= sign;
    std::memcpy(&f, &bits, 4);
    r.v[i] = f;
  }
  return r;
}
inline void store_i8(int8_t* p, const VI& a) { for (int i = 0; i < 16; ++i) p[i] = (int8_t)a.v[i]; }
inline void store_u16(uint16_t* p, const VI& a) { for (int i = 0; i < 16; ++i) p[i] = (uint16_t)a.v[i]; }

inline float hsum(const VF& a) {
  float t[8];
  for (int i = 0; i < 8; ++i) t[i] = a.v[i] + a.v[i + 8];
  for (int i = 0; i < 4; ++i) t[i] += t[i + 4];
  return (t[0] + t[2]) + (t[1] + t[3]);
}
inline float hmax(const VF& a) {
  float m = a.v[0];
  for (int i = 1; i < 16; ++i) m = a.v[i] > m ? a.v[i] : m;
  return m;
}
inline int32_t hsumi(const VI& a) { int32_t s = 0; for (int i = 0; i < 16; ++i) s += a.v[i]; return s; }

constexpr int DOT4_ZERO = 0;
inline VI dot4(const VI& acc, const VI& u, const VI& s) {
  uint8_t ub[64];
  int8_t sb[64];
  std::memcpy(ub, &u, 64);
  std::memcpy(sb, &s, 64);
  VI r = acc;
  for (int i = 0; i < 16; ++i) {
    int32_t t = 0;
    for (int j = 0; j < 4; ++j) t += (int32_t)ub[4 * i + j] * (int32_t)sb[4 * i + j];
    r.v[i] += t;
  }
  return r;
}
inline VI dot4_nibble(const VI& acc, const VI& u, const VI& s) { return dot4(acc, u, s); }

inline VF dot2_bf16(const VF& acc, const VI& a, const VI& b) {
  const VI high = set1i((int32_t)0xFFFF0000);
  VF r = fma(as_float(shl<16>(a)), as_float(shl<16>(b)), acc);
  return fma(as_float(a & high), as_float(b & high), r);
}

}  // namespace tt::TT_ISA
