// Products of int8 activations with weights in integers: exact sums over a group, for a tile of rows and panels.
#pragma once

#include "kernels/kernels.h"
#include "simd/vec.h"

namespace tt::TT_ISA {

// A tile's sums stay in registers: AVX2's hold eight of our vectors, NEON's as many but in four times smaller pieces.
#if defined(TT_VEC_AVX2)
constexpr int ROWS = 4, PANELS = 1;
#elif defined(TT_VEC_NEON)
constexpr int ROWS = 6, PANELS = 1;
#else
constexpr int ROWS = 6, PANELS = 2;
#endif

inline VI broadcast4(const int8_t* p) {
  int32_t x;
  __builtin_memcpy(&x, p, 4);
  return set1i(x);
}

// acc += u s; `Full` where u may be 128 and more.
template <bool Full> inline VI product(VI acc, VI u, VI s) {
  if constexpr (Full) return dot4(acc, u, s);
  else return dot4_nibble(acc, u, s);
}

// dot[r][p] += one group of MR rows times NP panels of nibbles.
template <int MR, int NP>
inline void dot_nibbles(const uint8_t* w, size_t stride, const int8_t* q, int64_t row_stride, VI (&dot)[MR][NP]) {
  const VI low = set1i(0x0F0F0F0F);
  for (int j = 0; j < 4; ++j) {
    VI lo[NP], hi[NP];
    for (int p = 0; p < NP; ++p) {
      const VI b = loadi(w + p * stride + 64 * j);
      lo[p] = b & low;
      hi[p] = shr<4>(b) & low;
    }
    for (int r = 0; r < MR; ++r) {
      const VI a = broadcast4(q + r * row_stride + 8 * j), b = broadcast4(q + r * row_stride + 8 * j + 4);
      for (int p = 0; p < NP; ++p) dot[r][p] = dot8_nibble(dot[r][p], lo[p], a, hi[p], b);
    }
  }
}

// The same with bytes, `RUNS` runs of four values.
template <bool Full, int RUNS, int MR, int NP>
inline void dot_bytes(const uint8_t* w, size_t stride, const int8_t* q, int64_t row_stride, VI (&dot)[MR][NP]) {
  for (int j = 0; j < RUNS; ++j) {
    VI b[NP];
    for (int p = 0; p < NP; ++p) b[p] = loadi(w + p * stride + 64 * j);
    for (int r = 0; r < MR; ++r) {
      const VI a = broadcast4(q + r * row_stride + 4 * j);
      for (int p = 0; p < NP; ++p) dot[r][p] = product<Full>(dot[r][p], b[p], a);
    }
  }
}

#if defined(TT_ROW_PAIRS)
// The same, two rows at once; the last one of an odd number goes alone. `eight(panel, j, first, second)` gives a panel's values
// 8 j … 8 j + 3 and 8 j + 4 … 8 j + 7.
template <int EIGHTS, int MR, int NP, class F>
inline void dot_pairs(F&& eight, const int8_t* q, int64_t row_stride, VI (&dot)[MR][NP]) {
  RowPair sums[MR / 2][NP] = {};
  for (int j = 0; j < EIGHTS; ++j)
    for (int p = 0; p < NP; ++p) {
      VI first, second;
      eight(p, j, first, second);
      const Columns columns = columns8(first, second);
      for (int r = 0; r + 1 < MR; r += 2)
        dot8_rows(sums[r / 2][p], columns, rows8(q + r * row_stride + 8 * j, q + (r + 1) * row_stride + 8 * j));
    }
  for (int r = 0; r + 1 < MR; r += 2)
    for (int p = 0; p < NP; ++p) add_rows(sums[r / 2][p], dot[r][p], dot[r + 1][p]);
}
template <int MR, int NP>
  requires(MR > 1)
inline void dot_nibbles(const uint8_t* w, size_t stride, const int8_t* q, int64_t row_stride, VI (&dot)[MR][NP]) {
  dot_pairs<4>([&](int p, int j, VI& first, VI& second) {
    const VI low = set1i(0x0F0F0F0F), b = loadi(w + p * stride + 64 * j);
    first = b & low;
    second = shr<4>(b) & low;
  }, q, row_stride, dot);
  if constexpr (MR % 2) dot_nibbles<1, NP>(w, stride, q + (MR - 1) * row_stride, row_stride, *reinterpret_cast<VI(*)[1][NP]>(&dot[MR - 1]));
}
template <bool Full, int RUNS, int MR, int NP>
  requires(MR > 1)
inline void dot_bytes(const uint8_t* w, size_t stride, const int8_t* q, int64_t row_stride, VI (&dot)[MR][NP]) {
  dot_pairs<RUNS / 2>([&](int p, int j, VI& first, VI& second) {
    first = loadi(w + p * stride + 128 * j);
    second = loadi(w + p * stride + 128 * j + 64);
  }, q, row_stride, dot);
  if constexpr (MR % 2)
    dot_bytes<Full, RUNS, 1, NP>(w, stride, q + (MR - 1) * row_stride, row_stride, *reinterpret_cast<VI(*)[1][NP]>(&dot[MR - 1]));
}
#endif

// One row's high bytes in the runs of four that `wide` names, in 256 times their value: `high` counts sixteens of the low
// byte's units, and nibbles can be read as 16 times their value.
template <int NP> inline void dot_nibble_runs(int wide, const uint8_t* w, size_t stride, const int8_t* high, VI (&dot)[NP]) {
  for (; wide; wide &= wide - 1) {
    const int run = __builtin_ctz((unsigned)wide);
    const VI a = broadcast4(high + 4 * run);
    for (int p = 0; p < NP; ++p)
      dot[p] = dot4_even(dot[p], shl(loadi(w + p * stride + 64 * (run / 2)), 4 - run % 2 * 4) & set1i((int32_t)0xF0F0F0F0), a);
  }
}
// The same with bytes, in 16 times their value.
template <bool Full, int NP> inline void dot_byte_runs(int wide, const uint8_t* w, size_t stride, const int8_t* high, VI (&dot)[NP]) {
  for (; wide; wide &= wide - 1) {
    const int run = __builtin_ctz((unsigned)wide);
    const VI a = broadcast4(high + 4 * run);
    for (int p = 0; p < NP; ++p) dot[p] = product<Full>(dot[p], loadi(w + p * stride + 64 * run), a);
  }
}

// out of one row's panel = acc (+ bias) (+ residual).
inline void finish(VF acc, int64_t row, int64_t panel, int64_t n, const float* bias, const float* residual, float* out) {
  const int64_t col = panel * PANEL;
  const int lanes = n - col < PANEL ? (int)(n - col) : PANEL;
  float* o = out + row * n + col;
  if (lanes == PANEL) {
    if (bias) acc = acc + load(bias + col);
    if (residual) acc = acc + load(residual + row * n + col);
    store(o, acc);
  } else {
    if (bias) acc = acc + load_n(bias + col, lanes);
    if (residual) acc = acc + load_n(residual + row * n + col, lanes);
    store_n(o, acc, lanes);
  }
}

// Products with layouts that have to be decoded (matmul_decoded.cpp).
void matmul_decoded(const Matrix& w, const Activation& x, int64_t row0, int64_t row1, int64_t panel0, int64_t panel1,
                    const float* bias, const float* residual, float* out);

}  // namespace tt::TT_ISA
