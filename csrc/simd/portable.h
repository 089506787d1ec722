// Sixteen-lane vectors in plain C++, for what any compiler and machine can run: four vectors of 16 bytes in the notation
// of GCC and Clang, which every processor with vectors has, and which the compiler takes apart for the others.
// Multiplications and additions round separately here (no fused multiply-add), so results differ in the last bits from
// the other paths.
#pragma once

#include <cstdint>
#include <cstring>

namespace tt::TT_ISA {

typedef float F4 __attribute__((vector_size(16)));
typedef int32_t I4 __attribute__((vector_size(16)));
typedef uint32_t U4 __attribute__((vector_size(16)));  // sums that may wrap, shifts that fill with zeros
typedef int16_t I8x16 __attribute__((vector_size(16)));
typedef uint16_t U8x16 __attribute__((vector_size(16)));
typedef uint16_t U4x16 __attribute__((vector_size(8)));

struct VF { F4 a, b, c, d; };
struct VI { I4 a, b, c, d; };

// `f` of the four quarters of its arguments.
template <class F> inline VF each(F f, VF x, VF y) { return {f(x.a, y.a), f(x.b, y.b), f(x.c, y.c), f(x.d, y.d)}; }
template <class F> inline VI each(F f, VI x, VI y) { return {f(x.a, y.a), f(x.b, y.b), f(x.c, y.c), f(x.d, y.d)}; }
template <class F> inline VI each(F f, VI x, VI y, VI z) {
  return {f(x.a, y.a, z.a), f(x.b, y.b, z.b), f(x.c, y.c, z.c), f(x.d, y.d, z.d)};
}

inline VF load(const float* p) { VF r; std::memcpy(&r, p, 64); return r; }
inline void store(float* p, VF x) { std::memcpy(p, &x, 64); }
inline VF set1(float x) {
  const F4 q = {x, x, x, x};
  return {q, q, q, q};
}
inline VF zero() { return set1(0.0f); }
inline VF operator+(VF x, VF y) { return {x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d}; }
inline VF operator-(VF x, VF y) { return {x.a - y.a, x.b - y.b, x.c - y.c, x.d - y.d}; }
inline VF operator*(VF x, VF y) { return {x.a * y.a, x.b * y.b, x.c * y.c, x.d * y.d}; }
inline VF operator/(VF x, VF y) { return {x.a / y.a, x.b / y.b, x.c / y.c, x.d / y.d}; }
inline VF fma(VF x, VF y, VF z) { return x * y + z; }
inline VF max(VF x, VF y) { return each([](F4 p, F4 q) { return p > q ? p : q; }, x, y); }
inline VF min(VF x, VF y) { return each([](F4 p, F4 q) { return p < q ? p : q; }, x, y); }

inline VI loadi(const void* p) { VI r; std::memcpy(&r, p, 64); return r; }
inline void storei(void* p, VI x) { std::memcpy(p, &x, 64); }
inline VI set1i(int32_t x) {
  const I4 q = {x, x, x, x};
  return {q, q, q, q};
}
inline VI operator+(VI x, VI y) { return each([](I4 p, I4 q) { return (I4)((U4)p + (U4)q); }, x, y); }
inline VI operator-(VI x, VI y) { return each([](I4 p, I4 q) { return (I4)((U4)p - (U4)q); }, x, y); }
inline VI operator&(VI x, VI y) { return {x.a & y.a, x.b & y.b, x.c & y.c, x.d & y.d}; }
inline VI operator|(VI x, VI y) { return {x.a | y.a, x.b | y.b, x.c | y.c, x.d | y.d}; }
template <int N> inline VI shl(VI x) { return {(I4)((U4)x.a << N), (I4)((U4)x.b << N), (I4)((U4)x.c << N), (I4)((U4)x.d << N)}; }
inline VI shl(VI x, int n) {
  const U4 by = {(uint32_t)n, (uint32_t)n, (uint32_t)n, (uint32_t)n};
  return {(I4)((U4)x.a << by), (I4)((U4)x.b << by), (I4)((U4)x.c << by), (I4)((U4)x.d << by)};
}
template <int N> inline VI shr(VI x) { return {(I4)((U4)x.a >> N), (I4)((U4)x.b >> N), (I4)((U4)x.c >> N), (I4)((U4)x.d >> N)}; }
inline VF as_float(VI x) { return {(F4)x.a, (F4)x.b, (F4)x.c, (F4)x.d}; }
inline VI as_int(VF x) { return {(I4)x.a, (I4)x.b, (I4)x.c, (I4)x.d}; }
inline VF to_float(VI x) {
  return {__builtin_convertvector(x.a, F4), __builtin_convertvector(x.b, F4), __builtin_convertvector(x.c, F4), __builtin_convertvector(x.d, F4)};
}
inline VI round_to_int(VF x) {
  // Adding 1.5 * 2^23 rounds to the nearest integer, ties to even, for |x| < 2^22.
  const VF magic = set1(12582912.0f), r = (x + magic) - magic;
  return {__builtin_convertvector(r.a, I4), __builtin_convertvector(r.b, I4), __builtin_convertvector(r.c, I4), __builtin_convertvector(r.d, I4)};
}
inline VF abs(VF x) { return as_float(as_int(x) & set1i(0x7FFFFFFF)); }

inline VI lane_ids() { return {I4{0, 1, 2, 3}, I4{4, 5, 6, 7}, I4{8, 9, 10, 11}, I4{12, 13, 14, 15}}; }
inline VI above(VF x, VF y) { return {(I4)(x.a > y.a), (I4)(x.b > y.b), (I4)(x.c > y.c), (I4)(x.d > y.d)}; }
inline VI greater(VI x, VI y) { return {(I4)(x.a > y.a), (I4)(x.b > y.b), (I4)(x.c > y.c), (I4)(x.d > y.d)}; }
inline VF select_range(VF x, VF y, int lo, int hi) {
  const VI m = greater(set1i(hi), lane_ids()) & greater(lane_ids(), set1i(lo - 1));
  return {m.a ? x.a : y.a, m.b ? x.b : y.b, m.c ? x.c : y.c, m.d ? x.d : y.d};
}
inline uint32_t mask_ge(VF x, VF y) {
  const I4 bit = {1, 2, 4, 8};
  const I4 m = ((I4)(x.a >= y.a) & bit) | ((I4)(x.b >= y.b) & (bit << 4)) | ((I4)(x.c >= y.c) & (bit << 8)) | ((I4)(x.d >= y.d) & (bit << 12));
  return (uint32_t)(m[0] | m[1] | m[2] | m[3]);
}
inline VF load_n(const float* p, int n) {
  VF r = zero();
  if (n > 0) std::memcpy(&r, p, sizeof(float) * (size_t)(n < 16 ? n : 16));
  return r;
}
inline void store_n(float* p, VF x, int n) {
  if (n > 0) std::memcpy(p, &x, sizeof(float) * (size_t)(n < 16 ? n : 16));
}

// IEEE half to single: place exponent and mantissa, then scale by 2^112; infinities and NaN keep their bits.
inline F4 half4(const uint16_t* p) {
  U4x16 packed;
  std::memcpy(&packed, p, 8);
  const U4 h = __builtin_convertvector(packed, U4);
  const F4 number = (F4)((h & 0x7FFFu) << 13) * 5.192296858534828e+33f;
  const U4 special = 0x7F800000u | (h & 0x3FFu) << 13;
  return (F4)(((h & 0x7C00u) == 0x7C00u ? special : (U4)number) | (h & 0x8000u) << 16);
}
inline VF load_f16(const uint16_t* p) { return {half4(p), half4(p + 4), half4(p + 8), half4(p + 12)}; }
template <class T> inline VI load_bytes(const void* p) {
  T bytes[16];
  int32_t t[16];
  std::memcpy(bytes, p, 16);
  for (int i = 0; i < 16; ++i) t[i] = bytes[i];
  return loadi(t);
}
inline VI load_u8(const void* p) { return load_bytes<uint8_t>(p); }
inline VI load_i8(const void* p) { return load_bytes<int8_t>(p); }
inline VI table16(const uint8_t* table, VI x) {
  uint8_t t[64];
  std::memcpy(t, &x, 64);
  for (int i = 0; i < 64; ++i) t[i] = table[t[i]];
  return loadi(t);
}
inline void store_i8(int8_t* p, VI x) {
  int32_t t[16];
  std::memcpy(t, &x, 64);
  for (int i = 0; i < 16; ++i) p[i] = (int8_t)t[i];
}
inline void store_u16(uint16_t* p, VI x) {
  int32_t t[16];
  std::memcpy(t, &x, 64);
  for (int i = 0; i < 16; ++i) p[i] = (uint16_t)t[i];
}

// Sums and maxima by the tree of the other paths: halves, quarters, pairs.
inline float hsum(VF x) {
  const F4 q = (x.a + x.c) + (x.b + x.d);
  return (q[0] + q[2]) + (q[1] + q[3]);
}
inline float hmax(VF x) {
  const auto max4 = [](F4 p, F4 q) { return p > q ? p : q; };
  const auto max1 = [](float p, float q) { return p > q ? p : q; };
  const F4 q = max4(max4(x.a, x.c), max4(x.b, x.d));
  return max1(max1(q[0], q[2]), max1(q[1], q[3]));
}
inline int32_t hsumi(VI x) {
  const U4 q = ((U4)x.a + (U4)x.b) + ((U4)x.c + (U4)x.d);
  return (int32_t)(q[0] + q[1] + q[2] + q[3]);
}

// Even and odd bytes of u (unsigned) times those of s (signed): products fit in 16 bits.
struct Products { I8x16 even, odd; };
inline Products products(I4 u, I4 s) {
  return {(I8x16)((U8x16)u & 0xFF) * ((I8x16)((U8x16)s << 8) >> 8), (I8x16)((U8x16)u >> 8) * ((I8x16)s >> 8)};
}
inline I4 pair_sums(I8x16 x) { return ((I4)((U4)x << 16) >> 16) + ((I4)x >> 16); }
constexpr int DOT4_ZERO = 0;
inline VI dot4(VI acc, VI u, VI s) {
  return each([](I4 t, I4 p, I4 q) {
    const Products x = products(p, q);
    return t + (pair_sums(x.even) + pair_sums(x.odd));
  }, acc, u, s);
}
inline VI dot4_nibble(VI acc, VI u, VI s) {
  return each([](I4 t, I4 p, I4 q) {
    const Products x = products(p, q);
    return t + pair_sums(x.even + x.odd);
  }, acc, u, s);
}

inline I4 dot8_quarter(I4 acc, I4 u, I4 s, I4 v, I4 t) {
  const Products x = products(u, s), y = products(v, t);
  return acc + pair_sums((x.even + x.odd) + (y.even + y.odd));
}
inline VI dot8_nibble(VI acc, VI u, VI s, VI v, VI t) {
  return {dot8_quarter(acc.a, u.a, s.a, v.a, t.a), dot8_quarter(acc.b, u.b, s.b, v.b, t.b),
          dot8_quarter(acc.c, u.c, s.c, v.c, t.c), dot8_quarter(acc.d, u.d, s.d, v.d, t.d)};
}
inline VI dot4_even(VI acc, VI u, VI s) { return dot4(acc, u, s); }

inline VF dot2_bf16(VF acc, VI x, VI y) {
  const VI high = set1i((int32_t)0xFFFF0000);
  acc = fma(as_float(shl<16>(x)), as_float(shl<16>(y)), acc);
  return fma(as_float(x & high), as_float(y & high), acc);
}

}  // namespace tt::TT_ISA
