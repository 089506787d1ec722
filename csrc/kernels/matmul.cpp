// Products of activations with packed weights, for every layout.
//
// Integer layouts: exact int32 dot products within a group of 32, then one float multiply-add per group, in ascending
// order of K: acc = fma(float(dot), d_w * d_x, acc), and for layouts with minima acc = fma(m_w, dsum_x, acc). The zero
// point joins the integer sum, and so do the high bytes of outliers (see Activation). Float layouts: one multiply-add per
// k, ascending.
#include "kernels/kernels.h"
#include "simd/vec.h"

namespace tt::TT_ISA {

namespace {

template <Layout L> struct Traits;
template <> struct Traits<Layout::Q4_ZERO8> { static constexpr int zero = 8; static constexpr bool nibbles = true, min = false; };
template <> struct Traits<Layout::Q4_MIN> { static constexpr int zero = 0; static constexpr bool nibbles = true, min = true; };
template <> struct Traits<Layout::Q8> { static constexpr int zero = 128 - DOT4_ZERO; static constexpr bool nibbles = false, min = false; };

inline VI broadcast4(const int8_t* p) {
  int32_t x;
  __builtin_memcpy(&x, p, 4);
  return set1i(x);
}

// Which runs of four lanes hold a number other than zero.
inline int runs(VI a) {
  const uint32_t lanes = mask_ge(abs(to_float(a)), set1(1.0f));
  return (lanes & 0xF ? 1 : 0) | (lanes & 0xF0 ? 2 : 0) | (lanes & 0xF00 ? 4 : 0) | (lanes & 0xF000 ? 8 : 0);
}

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

// dot[r][p] += one group of MR rows of int8 values times NP panels.
template <Layout L, int MR, int NP>
inline void dot_group(const uint8_t* w, size_t stride, const int8_t* q, int64_t row_stride, VI (&dot)[MR][NP]) {
  if constexpr (Traits<L>::nibbles) {
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
  } else {
    for (int j = 0; j < 8; ++j) {
      VI b[NP];
      for (int p = 0; p < NP; ++p) {
        b[p] = loadi(w + p * stride + 64 * j);
      }
      for (int r = 0; r < MR; ++r) {
        const VI a = broadcast4(q + r * row_stride + 4 * j);
        for (int p = 0; p < NP; ++p) dot[r][p] = dot4(dot[r][p], b[p], a);
      }
    }
  }
}

#if defined(TT_ROW_PAIRS)
// The same, two rows at once; the last one of an odd number goes alone.
template <Layout L, int MR, int NP>
  requires(MR > 1)
inline void dot_group(const uint8_t* w, size_t stride, const int8_t* q, int64_t row_stride, VI (&dot)[MR][NP]) {
  RowPair sums[MR / 2][NP] = {};
  for (int j = 0; j < 4; ++j)
    for (int p = 0; p < NP; ++p) {
      VI first, second;  // k = 8 j … 8 j + 3, and the four behind them
      if constexpr (Traits<L>::nibbles) {
        const VI low = set1i(0x0F0F0F0F), b = loadi(w + p * stride + 64 * j);
        first = b & low;
        second = shr<4>(b) & low;
      } else {
        first = loadi(w + p * stride + 128 * j);
        second = loadi(w + p * stride + 128 * j + 64);
      }
      const Columns columns = columns8(first, second);
      for (int r = 0; r + 1 < MR; r += 2)
        dot8_rows(sums[r / 2][p], columns, rows8(q + r * row_stride + 8 * j, q + (r + 1) * row_stride + 8 * j));
    }
  for (int r = 0; r + 1 < MR; r += 2)
    for (int p = 0; p < NP; ++p) add_rows(sums[r / 2][p], dot[r][p], dot[r + 1][p]);
  if constexpr (MR % 2)
    dot_group<L, 1, NP>(w, stride, q + (MR - 1) * row_stride, row_stride, *reinterpret_cast<VI(*)[1][NP]>(&dot[MR - 1]));
}
#endif

// dot[p] += one row's high bytes in the runs of four of a group that `wide` names, 256 times their value (16 times where
// weights are bytes: `high` counts sixteens of the low byte's units, and nibbles can be read as 16 times their value).
template <Layout L, int NP>
inline void dot_runs(int wide, const uint8_t* w, size_t stride, const int8_t* high, VI (&dot)[NP]) {
  for (; wide; wide &= wide - 1) {
    const int run = __builtin_ctz((unsigned)wide);
    const VI a = broadcast4(high + 4 * run);
    for (int p = 0; p < NP; ++p) {
      if constexpr (Traits<L>::nibbles)
        dot[p] = dot4_even(dot[p], shl(loadi(w + p * stride + 64 * (run / 2)), 4 - run % 2 * 4) & set1i((int32_t)0xF0F0F0F0), a);
      else
        dot[p] = dot4(dot[p], loadi(w + p * stride + 64 * run), a);
    }
  }
}

// MR rows times NP panels, integer layouts. Weights `ahead` of those in use are fetched into the cache.
template <Layout L, int MR, int NP>
inline void tile_integer(const Matrix& w, const Activation& x, int64_t row, int64_t panel, size_t ahead, const float* bias,
                         const float* residual, float* out) {
  using T = Traits<L>;
  const int64_t groups = w.k / GROUP, first = row * groups;
  const size_t stride = w.panel_bytes(), bytes = group_bytes(L);
  const uint8_t* base = w.data + (size_t)panel * stride;
  const int8_t *low = x.low + row * w.k, *high = x.high + row * w.k;
  const float *step = x.step + first, *dsum = x.dsum + first;
  const int32_t* sum = x.sum + first;
  const uint8_t* wide_rows = x.wide + first;
  VF acc[MR][NP];
  for (int r = 0; r < MR; ++r)
    for (int p = 0; p < NP; ++p) acc[r][p] = zero();
  for (int64_t g = 0; g < groups; ++g) {
    const uint8_t* wg = base + (size_t)g * bytes;
    VI dot[MR][NP];
    for (int r = 0; r < MR; ++r)
      for (int p = 0; p < NP; ++p) dot[r][p] = set1i(0);
    int wide = 0;
    for (int r = 0; r < MR; ++r) wide |= wide_rows[r * groups + g];
    if (wide) {
#pragma GCC unroll 6
      for (int r = 0; r < MR; ++r) {
        dot_runs<L, NP>(wide_rows[r * groups + g], wg, stride, high + r * w.k + g * GROUP, dot[r]);
        if (!T::nibbles)
          for (int p = 0; p < NP; ++p) dot[r][p] = shl<4>(dot[r][p]);
      }
    }
    if (T::zero)
      for (int r = 0; r < MR; ++r)
        for (int p = 0; p < NP; ++p) dot[r][p] = dot[r][p] - set1i(T::zero * sum[r * groups + g]);
    dot_group<L, MR, NP>(wg, stride, low + g * GROUP, w.k, dot);
    const uint8_t* tail = wg + (T::nibbles ? 256 : 512);
    if (ahead)
      for (int p = 0; p < NP; ++p)
        for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(wg + p * stride + at + ahead);
    for (int p = 0; p < NP; ++p) {
      const VF d = load_f16((const uint16_t*)(tail + p * stride));
      for (int r = 0; r < MR; ++r) acc[r][p] = fma(to_float(dot[r][p]), d * set1(step[r * groups + g]), acc[r][p]);
      if constexpr (T::min) {
        const VF m = load_f16((const uint16_t*)(tail + p * stride + 32));
        for (int r = 0; r < MR; ++r) acc[r][p] = fma(m, set1(dsum[r * groups + g]), acc[r][p]);
      }
    }
  }
  for (int r = 0; r < MR; ++r)
    for (int p = 0; p < NP; ++p) finish(acc[r][p], row + r, panel + p, w.n, bias, residual, out);
}

// MR rows times NP panels, float layouts.
template <Layout L, int MR, int NP>
inline void tile_float(const Matrix& w, const Activation& x, int64_t row, int64_t panel, const float* bias,
                       const float* residual, float* out) {
  const size_t stride = w.panel_bytes();
  const uint8_t* base = w.data + (size_t)panel * stride;
  const int64_t dim = x.dim;
  const float* f = x.f + row * dim;
  VF acc[MR][NP];
  for (int r = 0; r < MR; ++r)
    for (int p = 0; p < NP; ++p) acc[r][p] = zero();
  if constexpr (L == Layout::BF16) {
    const VI high = set1i((int32_t)0xFFFF0000);
    const int64_t even_dim = dim & ~(int64_t)1;
    for (int64_t k = 0; k < even_dim; k += 2) {
      for (int p = 0; p < NP; ++p) {
        const VI pair = loadi(base + p * stride + (size_t)k * 32);
        const VF even = as_float(shl<16>(pair)), odd = as_float(pair & high);
        for (int r = 0; r < MR; ++r) acc[r][p] = fma(even, set1(f[r * dim + k]), acc[r][p]);
        for (int r = 0; r < MR; ++r) acc[r][p] = fma(odd, set1(f[r * dim + k + 1]), acc[r][p]);
      }
    }
    if (even_dim < dim)
      for (int p = 0; p < NP; ++p) {
        const VF even = as_float(shl<16>(loadi(base + p * stride + (size_t)even_dim * 32)));
        for (int r = 0; r < MR; ++r) acc[r][p] = fma(even, set1(f[r * dim + even_dim]), acc[r][p]);
      }
  } else {
    for (int64_t k = 0; k < dim; ++k) {
      for (int p = 0; p < NP; ++p) {
        VF b;
        if constexpr (L == Layout::F16) b = load_f16((const uint16_t*)(base + p * stride) + k * PANEL);
        else b = load((const float*)(base + p * stride) + k * PANEL);
        for (int r = 0; r < MR; ++r) acc[r][p] = fma(b, set1(f[r * dim + k]), acc[r][p]);
      }
    }
  }
  for (int r = 0; r < MR; ++r)
    for (int p = 0; p < NP; ++p) finish(acc[r][p], row + r, panel + p, w.n, bias, residual, out);
}

template <Layout L, int MR, int NP>
inline void tile(const Matrix& w, const Activation& x, int64_t row, int64_t panel, size_t ahead, const float* bias,
                 const float* residual, float* out) {
  if constexpr (L == Layout::BF16 || L == Layout::F16 || L == Layout::F32)
    tile_float<L, MR, NP>(w, x, row, panel, bias, residual, out);
  else
    tile_integer<L, MR, NP>(w, x, row, panel, ahead, bias, residual, out);
}

// A tile's sums stay in registers: AVX2's hold eight of our vectors, NEON's as many but in four times smaller pieces.
#if defined(TT_VEC_AVX2)
constexpr int ROWS = 4, PANELS = 1;
#elif defined(TT_VEC_NEON)
constexpr int ROWS = 6, PANELS = 1;
#else
constexpr int ROWS = 6, PANELS = 2;
#endif

// The rows in tiles of nearly equal height: a low tile unpacks the same weights for few rows. The first one, which brings
// the panels into the cache, has the next ones fetched.
template <Layout L, int NP>
void panels_by_rows(const Matrix& w, const Activation& x, int64_t row0, int64_t row1, int64_t panel, const float* bias,
                    const float* residual, float* out) {
  size_t ahead = NP * w.panel_bytes();
  for (int64_t row = row0, tiles = (row1 - row0 + ROWS - 1) / ROWS; tiles; --tiles, ahead = 0) {
    const int64_t rows = (row1 - row + tiles - 1) / tiles;
    switch (rows) {
      case 1: tile<L, 1, NP>(w, x, row, panel, ahead, bias, residual, out); break;
      case 2: tile<L, 2, NP>(w, x, row, panel, ahead, bias, residual, out); break;
      case 3: tile<L, 3, NP>(w, x, row, panel, ahead, bias, residual, out); break;
      case 4: tile<L, 4, NP>(w, x, row, panel, ahead, bias, residual, out); break;
      case 5: tile<L, 5, NP>(w, x, row, panel, ahead, bias, residual, out); break;
      default: tile<L, 6, NP>(w, x, row, panel, ahead, bias, residual, out); break;
    }
    row += rows;
  }
}

template <Layout L>
void matmul_layout(const Matrix& w, const Activation& x, int64_t row0, int64_t row1, int64_t panel0, int64_t panel1,
                   const float* bias, const float* residual, float* out) {
  int64_t panel = panel0;
  // One row waits for memory: one panel after the other is one stream, which both prefetchers follow.
  if (row1 - row0 == 1)
    for (; panel < panel1; ++panel) tile<L, 1, 1>(w, x, row0, panel, 4096, bias, residual, out);
  for (; panel + PANELS <= panel1; panel += PANELS) panels_by_rows<L, PANELS>(w, x, row0, row1, panel, bias, residual, out);
  for (; panel < panel1; ++panel) panels_by_rows<L, 1>(w, x, row0, row1, panel, bias, residual, out);
}

}  // namespace

void matmul(const Matrix& w, const Activation& x, int64_t row0, int64_t row1, int64_t panel0, int64_t panel1,
            const float* bias, const float* residual, float* out) {
  switch (w.layout) {
    case Layout::Q4_ZERO8: return matmul_layout<Layout::Q4_ZERO8>(w, x, row0, row1, panel0, panel1, bias, residual, out);
    case Layout::Q4_MIN: return matmul_layout<Layout::Q4_MIN>(w, x, row0, row1, panel0, panel1, bias, residual, out);
    case Layout::Q8: return matmul_layout<Layout::Q8>(w, x, row0, row1, panel0, panel1, bias, residual, out);
    case Layout::BF16: return matmul_layout<Layout::BF16>(w, x, row0, row1, panel0, panel1, bias, residual, out);
    case Layout::F16: return matmul_layout<Layout::F16>(w, x, row0, row1, panel0, panel1, bias, residual, out);
    case Layout::F32: return matmul_layout<Layout::F32>(w, x, row0, row1, panel0, panel1, bias, residual, out);
  }
}

void dequantize_row(const Matrix& w, int64_t row, int64_t dim, float* out) {
  const uint8_t* base = w.data + (size_t)(row / PANEL) * w.panel_bytes();
  const int col = (int)(row % PANEL);
  alignas(64) float lanes[LANES];
  const size_t step = group_bytes(w.layout);
  for (int64_t g = 0; g < w.k / GROUP; ++g, base += step) {
    float* o = out + g * GROUP;
    const int left = dim - g * GROUP < GROUP ? (int)(dim - g * GROUP) : GROUP;  // below 32 in float layouts only
    switch (w.layout) {
      case Layout::Q4_ZERO8:
      case Layout::Q4_MIN: {
        store(lanes, load_f16((const uint16_t*)(base + 256)));
        const float d = lanes[col];
        float m = -8.0f * d;
        if (w.layout == Layout::Q4_MIN) {
          store(lanes, load_f16((const uint16_t*)(base + 288)));
          m = lanes[col];
        }
        for (int j = 0; j < 4; ++j)
          for (int i = 0; i < 4; ++i) {
            const uint8_t b = base[64 * j + 4 * col + i];
            o[8 * j + i] = d * (float)(b & 15) + m;
            o[8 * j + 4 + i] = d * (float)(b >> 4) + m;
          }
        break;
      }
      case Layout::Q8: {
        store(lanes, load_f16((const uint16_t*)(base + 512)));
        const float d = lanes[col];
        for (int j = 0; j < 8; ++j)
          for (int i = 0; i < 4; ++i) o[4 * j + i] = d * (float)((int)base[64 * j + 4 * col + i] - 128);
        break;
      }
      case Layout::BF16:
        for (int k = 0; k < left; ++k) {
          uint16_t h;
          __builtin_memcpy(&h, base + (k / 2) * 64 + col * 4 + (k & 1) * 2, 2);
          const uint32_t bits = (uint32_t)h << 16;
          __builtin_memcpy(o + k, &bits, 4);
        }
        break;
      case Layout::F16:
        for (int k = 0; k < left; ++k) {
          store(lanes, load_f16((const uint16_t*)base + k * PANEL));
          o[k] = lanes[col];
        }
        break;
      case Layout::F32:
        for (int k = 0; k < left; ++k) o[k] = ((const float*)base)[k * PANEL + col];
        break;
    }
  }
}

void quantize(const Activation& x, int64_t row) {
  const int64_t groups = x.dim / GROUP, first = row * groups;
  const float* f = x.f + row * x.dim;
  float* step = x.step + first;
  float squares = 0.0f;
  for (int64_t g = 0; g < groups; ++g) {
    const float top = hmax(max(abs(load(f + g * GROUP)), abs(load(f + g * GROUP + 16))));
    step[g] = top > 1e-20f ? top / 127.0f : 0.0f;
    squares += step[g] * step[g];
  }
  const float limit = __builtin_sqrtf(squares / (float)groups * x.outlier_limit);
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t at = row * x.dim + g * GROUP;
    // With the high part (from -8 to 7 times 256) values reach 15 times as far as with the low byte alone.
    const bool outliers = step[g] > 2.0f * limit;
    const float d = outliers ? limit > step[g] * (1.0f / 15.0f) ? limit : step[g] * (1.0f / 15.0f) : step[g];
    const VF inverse = set1(d > 0.0f ? 1.0f / d : 0.0f);
    // Numbers are within these bounds; what is not a number becomes one, lest the sums overflow.
    const VF most = set1(outliers ? 1905.0f : 127.0f), least = zero() - most;
    VI qa = round_to_int(min(max(load(f + g * GROUP) * inverse, least), most));
    VI qb = round_to_int(min(max(load(f + g * GROUP + 16) * inverse, least), most));
    const int32_t sum = hsumi(qa + qb);
    int wide = 0;
    if (outliers) {
      // Rounded, so that the low byte has a sign.
      const VI high_a = shr<8>(qa + set1i((1 << 20) + 128)) - set1i(1 << 12);
      const VI high_b = shr<8>(qb + set1i((1 << 20) + 128)) - set1i(1 << 12);
      store_i8(x.high + at, shl<4>(high_a));
      store_i8(x.high + at + 16, shl<4>(high_b));
      wide = runs(high_a) | runs(high_b) << 4;
      qa = qa - shl<8>(high_a);
      qb = qb - shl<8>(high_b);
    }
    store_i8(x.low + at, qa);
    store_i8(x.low + at + 16, qb);
    // A group that holds an infinity or a NaN makes its whole row NaN, to be seen: x - x is zero for numbers only.
    const VF a = load(f + g * GROUP), b = load(f + g * GROUP + 16);
    const float poison = hsum((a - a) + (b - b));
    step[g] = d + poison;
    x.sum[first + g] = sum;
    x.dsum[first + g] = d * (float)sum + poison;
    x.wide[first + g] = (uint8_t)wide;
  }
}

}  // namespace tt::TT_ISA
