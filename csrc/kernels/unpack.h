// From packed bytes to what products take: unsigned bytes, and single-precision scales and minima.
//
// What a weight is: scale * (q - zero) + minimum, with the file's own numbers. Scales are products of a half-precision number
// and a small integer, exact in single precision.
#pragma once

#include "kernels/grids.h"
#include "kernels/layouts.h"
#include "simd/vec.h"

namespace tt::TT_ISA {

enum class Form { NIBBLES, BYTES, PLANES, DECODED };

struct Kind {
  Form form;
  int zero = 0;
  bool min = false;
  int halves = 1;     // scales of a group
  bool full = false;  // q reaches 128 and more
};

constexpr Kind kind_of(Layout l) {
  switch (l) {
    case Layout::Q4_0: return {Form::NIBBLES, 8};
    case Layout::Q4_1: case Layout::Q4_K: case Layout::G4: return {Form::NIBBLES, 0, true};
    case Layout::Q8_0: return {Form::BYTES, 128, false, 1, true};
    case Layout::G8: return {Form::BYTES, 0, true, 1, true};
    case Layout::Q5_0: return {Form::PLANES, 16};
    case Layout::Q5_1: case Layout::Q5_K: case Layout::G2: case Layout::G3: return {Form::PLANES, 0, true};
    case Layout::Q2_K: return {Form::PLANES, 0, true, 2};
    case Layout::Q3_K: return {Form::PLANES, 4, false, 2};
    case Layout::Q6_K: return {Form::PLANES, 32, false, 2};
    case Layout::IQ4_NL: case Layout::IQ4_XS: return {Form::PLANES, 128, false, 1, true};
    case Layout::MXFP4: return {Form::PLANES, 12};
    case Layout::NVFP4: return {Form::PLANES, 12, false, 2};
    case Layout::TQ2_0: case Layout::Q1_0: return {Form::PLANES, 1};
    case Layout::TQ1_0: return {Form::DECODED, 1};
    case Layout::IQ2_XXS: case Layout::IQ3_XXS: return {Form::DECODED, SIGNED_ZERO};
    case Layout::IQ2_XS: case Layout::IQ2_S: return {Form::DECODED, SIGNED_ZERO, false, 2};
    case Layout::IQ3_S: return {Form::DECODED, SIGNED_ZERO};
    case Layout::IQ1_S: return {Form::DECODED, SHIFTED_ZERO};
    case Layout::IQ1_M: return {Form::DECODED, SHIFTED_ZERO, false, 2};
    default: return {Form::BYTES};
  }
}

// The least a group's integer sum takes off for each of its activations: DOT4_ZERO is taken off by full products already.
template <Layout L> constexpr int zero_of() { return kind_of(L).zero - (kind_of(L).full ? DOT4_ZERO : 0); }

struct Factors {
  VF scale[2], min[2];
};

// Scale and minimum of a block, where its header has them.
template <Layout L> inline void read_header(const uint8_t* header, VF& d, VF& m) {
  constexpr Shape S = shape_of(L);
  d = m = zero();
  if constexpr (S.halves > 0) d = load_f16((const uint16_t*)header);
  if constexpr (S.halves > 1) m = load_f16((const uint16_t*)(header + 32));
  if constexpr (S.head > 0) m = zero() - d * to_float(load_u8(header + 32));
}

// (2 n + 1) * unit * d, for scales in small integers n.
inline VF odd_scale(VF d, VI n, float unit) { return d * (to_float(shl<1>(n) + set1i(1)) * set1(unit)); }

// Scales and minima of a group, from those of its block and its record.
template <Layout L> inline void read_factors(VF d, VF m, const uint8_t* record, Factors& f) {
  const uint8_t* bytes = record + shape_of(L).words * 64;
  const VI low = set1i(15);
  f.scale[0] = f.scale[1] = d;
  f.min[0] = f.min[1] = m;
  if constexpr (L == Layout::Q4_K || L == Layout::Q5_K) {
    f.scale[0] = d * to_float(load_u8(bytes));
    f.min[0] = m * to_float(load_u8(bytes + 16));
  } else if constexpr (L == Layout::Q3_K || L == Layout::Q6_K) {
    for (int h = 0; h < 2; ++h) f.scale[h] = d * to_float(load_i8(bytes + 16 * h));
  } else if constexpr (L == Layout::Q2_K) {
    for (int h = 0; h < 2; ++h) {
      const VI both = load_u8(bytes + 16 * h);
      f.scale[h] = d * to_float(both & low);
      f.min[h] = m * to_float(shr<4>(both));
    }
  } else if constexpr (L == Layout::IQ4_XS) {
    f.scale[0] = d * to_float(load_i8(bytes));
  } else if constexpr (L == Layout::MXFP4) {
    // 2^(e - 128), as a product of two powers that are normal numbers even where it is not.
    const VI e = load_u8(bytes), half = shr<1>(e), bias = set1i(63);
    f.scale[0] = as_float(shl<23>(half + bias)) * as_float(shl<23>(e - half + bias));
  } else if constexpr (L == Layout::NVFP4) {
    // E4M3 without a sign: its bits are those of a single-precision number 2^120 times as large; values are halves.
    for (int h = 0; h < 2; ++h) f.scale[h] = as_float(shl<20>(load_u8(bytes + 16 * h))) * set1(0x1p119f);
  } else if constexpr (L == Layout::IQ2_XXS) {
    f.scale[0] = odd_scale(d, shr<28>(loadi(record + 64)), 0.125f);
  } else if constexpr (L == Layout::IQ3_XXS) {
    f.scale[0] = odd_scale(d, shr<28>(loadi(record + 128)), 0.25f);
  } else if constexpr (L == Layout::IQ2_XS || L == Layout::IQ2_S) {
    const VI both = load_u8(bytes + (L == Layout::IQ2_S ? 16 : 0));
    f.scale[0] = odd_scale(d, both & low, 0.125f);
    f.scale[1] = odd_scale(d, shr<4>(both), 0.125f);
  } else if constexpr (L == Layout::IQ3_S) {
    f.scale[0] = odd_scale(d, load_u8(bytes + 16), 1.0f);
  } else if constexpr (L == Layout::IQ1_S) {
    f.scale[0] = odd_scale(d, shr<4>(load_u8(bytes + 16)) & set1i(7), 0.125f);
  } else if constexpr (L == Layout::IQ1_M) {
    const VI both = load_u8(bytes + 32);
    f.scale[0] = odd_scale(d, both & set1i(7), 0.125f);
    f.scale[1] = odd_scale(d, shr<3>(both), 0.125f);
  }
}

// q[j] = run j of sixteen columns; four, two or one bits of all runs. `bit` is where the lowest one goes.
inline void plane4(const uint8_t* words, VI (&q)[8]) {
  const VI low = set1i(0x0F0F0F0F);
  for (int j = 0; j < 4; ++j) {
    const VI both = loadi(words + 64 * j);
    q[2 * j] = both & low;
    q[2 * j + 1] = shr<4>(both) & low;
  }
}
// Bits `at` and up of each byte, moved to `to` and up; the others zero.
template <int AT, int TO> inline VI bits_of(VI x, int mask) {
  if constexpr (AT >= TO) return shr<AT - TO>(x) & set1i(mask << TO);
  else return shl<TO - AT>(x) & set1i(mask << TO);
}
template <int TO> inline void plane2(const uint8_t* words, VI (&q)[8]) {
  constexpr int MASK = 0x03030303;
  for (int i = 0; i < 2; ++i) {
    const VI four = loadi(words + 64 * i);
    VI* to = q + 4 * i;
    if constexpr (TO == 0) {
      to[0] = bits_of<0, TO>(four, MASK), to[1] = bits_of<2, TO>(four, MASK);
      to[2] = bits_of<4, TO>(four, MASK), to[3] = bits_of<6, TO>(four, MASK);
    } else {
      to[0] = to[0] | bits_of<0, TO>(four, MASK), to[1] = to[1] | bits_of<2, TO>(four, MASK);
      to[2] = to[2] | bits_of<4, TO>(four, MASK), to[3] = to[3] | bits_of<6, TO>(four, MASK);
    }
  }
}
template <int TO> inline void plane1(const uint8_t* words, VI (&q)[8]) {
  constexpr int MASK = 0x01010101;
  const VI all = loadi(words);
  const VI bits[8] = {bits_of<0, TO>(all, MASK), bits_of<1, TO>(all, MASK), bits_of<2, TO>(all, MASK), bits_of<3, TO>(all, MASK),
                      bits_of<4, TO>(all, MASK), bits_of<5, TO>(all, MASK), bits_of<6, TO>(all, MASK), bits_of<7, TO>(all, MASK)};
  for (int j = 0; j < 8; ++j) q[j] = q[j] | bits[j];
}

alignas(16) inline constexpr uint8_t IQ4_VALUES[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};  // + 128
alignas(16) inline constexpr uint8_t FP4_VALUES[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};  // halves, + 12

// A group's values of sixteen columns, for all forms but DECODED.
template <Layout L> inline void unpack(const uint8_t* words, VI (&q)[8]) {
  constexpr Shape S = shape_of(L);
  if constexpr (S.words == 8) {
    for (int j = 0; j < 8; ++j) q[j] = loadi(words + 64 * j);
  } else if constexpr (S.words >= 4) {
    plane4(words, q);
    if constexpr (S.words == 5) plane1<4>(words + 256, q);
    if constexpr (S.words == 6) plane2<4>(words + 256, q);
    if constexpr (L == Layout::IQ4_NL || L == Layout::IQ4_XS)
      for (VI& run : q) run = table16(IQ4_VALUES, run);
    if constexpr (L == Layout::MXFP4 || L == Layout::NVFP4)
      for (VI& run : q) run = table16(FP4_VALUES, run);
  } else if constexpr (S.words >= 2) {
    plane2<0>(words, q);
    if constexpr (S.words == 3) plane1<2>(words + 128, q);
  } else {
    for (VI& run : q) run = set1i(0);
    plane1<1>(words, q);  // 0 and 2, around the zero point 1
  }
}

}  // namespace tt::TT_ISA
