// Products of activations with packed weights, for every layout.
//
// Integer layouts: exact int32 dot products within a group of 32, then one float multiply-add per group, in ascending
// order of K: acc = fma(float(dot), d_w * d_x, acc), and for layouts with minima acc = fma(m_w, dsum_x, acc). The zero
// point joins the integer sum, and so do the high bytes of outliers (see Activation). Layouts with scales for halves of
// groups: matmul_decoded.cpp. Float layouts: one multiply-add per k, ascending.
#include "kernels/decode.h"
#include "kernels/products.h"

namespace tt::TT_ISA {

namespace {

// Which runs of four lanes hold a number other than zero.
inline int runs(VI a) {
  const uint32_t lanes = mask_ge(abs(to_float(a)), set1(1.0f));
  return (lanes & 0xF ? 1 : 0) | (lanes & 0xF0 ? 2 : 0) | (lanes & 0xF00 ? 4 : 0) | (lanes & 0xF000 ? 8 : 0);
}

// MR rows times NP panels, layouts whose values products take as they are. Weights `ahead` of those in use are fetched into
// the cache.
template <Layout L, int MR, int NP>
inline void tile_integer(const Matrix& w, const Activation& x, int64_t row, int64_t panel, size_t ahead, const float* bias,
                         const float* residual, float* out) {
  constexpr Shape S = shape_of(L);
  constexpr Kind T = kind_of(L);
  constexpr bool NIBBLES = T.form == Form::NIBBLES;
  constexpr size_t HEADER = S.header_bytes(), RECORD = S.record_bytes(), FETCHED = RECORD + (S.block == GROUP ? HEADER : 0);
  constexpr int ZERO = zero_of<L>();
  const int64_t groups = w.k / GROUP, first = row * groups, per_block = (S.block ? S.block : w.group) / GROUP;
  const size_t stride = w.panel_bytes;
  const uint8_t* at = w.data + (size_t)panel * stride;
  const int8_t *low = x.low + row * w.k, *high = x.high + row * w.k;
  const float *step = x.step + first, *dsum = x.dsum + first;
  const int32_t* sum = x.sum + first;
  const uint8_t* wide_rows = x.wide + first;
  VF acc[MR][NP];
  for (int r = 0; r < MR; ++r)
    for (int p = 0; p < NP; ++p) acc[r][p] = zero();
  for (int64_t g = 0; g < groups;) {
    const uint8_t* header = at;
    at += HEADER;
    if (ahead && S.block != GROUP)
      for (int p = 0; p < NP; ++p) __builtin_prefetch(header + p * stride + ahead);
    for (const int64_t end = g + per_block; g < end; ++g, at += RECORD) {
      VI dot[MR][NP];
      for (int r = 0; r < MR; ++r)
        for (int p = 0; p < NP; ++p) dot[r][p] = set1i(0);
      int wide = 0;
      for (int r = 0; r < MR; ++r) wide |= wide_rows[r * groups + g];
      if (wide) {
#pragma GCC unroll 6
        for (int r = 0; r < MR; ++r) {
          const int8_t* values = high + r * w.k + g * GROUP;
          if constexpr (NIBBLES) {
            dot_nibble_runs<NP>(wide_rows[r * groups + g], at, stride, values, dot[r]);
          } else {
            dot_byte_runs<T.full, NP>(wide_rows[r * groups + g], at, stride, values, dot[r]);
            for (int p = 0; p < NP; ++p) dot[r][p] = shl<4>(dot[r][p]);
          }
        }
      }
      if (ZERO)
        for (int r = 0; r < MR; ++r)
          for (int p = 0; p < NP; ++p) dot[r][p] = dot[r][p] - set1i(ZERO * sum[r * groups + g]);
      if constexpr (NIBBLES) dot_nibbles<MR, NP>(at, stride, low + g * GROUP, w.k, dot);
      else dot_bytes<T.full, 8, MR, NP>(at, stride, low + g * GROUP, w.k, dot);
      if (ahead)
        for (int p = 0; p < NP; ++p)
          for (size_t i = 0; i < FETCHED; i += 64) __builtin_prefetch(at + RECORD - FETCHED + p * stride + i + ahead);
      for (int p = 0; p < NP; ++p) {
        VF d, m;
        read_header<L>(header + p * stride, d, m);
        Factors f;
        read_factors<L>(d, m, at + p * stride, f);
        for (int r = 0; r < MR; ++r) acc[r][p] = fma(to_float(dot[r][p]), f.scale[0] * set1(step[r * groups + g]), acc[r][p]);
        if constexpr (T.min)
          for (int r = 0; r < MR; ++r) acc[r][p] = fma(f.min[0], set1(dsum[r * groups + g]), acc[r][p]);
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
  const size_t stride = w.panel_bytes;
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

// The rows in tiles of nearly equal height: a low tile unpacks the same weights for few rows. The first one, which brings
// the panels into the cache, has the next ones fetched.
template <Layout L, int NP>
void panels_by_rows(const Matrix& w, const Activation& x, int64_t row0, int64_t row1, int64_t panel, const float* bias,
                    const float* residual, float* out) {
  size_t ahead = NP * w.panel_bytes;
  for (int64_t row = row0, tiles = (row1 - row0 + ROWS - 1) / ROWS; tiles; --tiles, ahead = 0) {
    const int64_t rows = (row1 - row + tiles - 1) / tiles;
    switch (rows) {
      case 1: tile<L, 1, NP>(w, x, row, panel, ahead, bias, residual, out); break;
      case 2: tile<L, 2, NP>(w, x, row, panel, ahead, bias, residual, out); break;
      case 3: tile<L, 3, NP>(w, x, row, panel, ahead, bias, residual, out); break;
      case 4: tile<L, 4, NP>(w, x, row, panel, ahead, bias, residual, out); break;
      case 5: if constexpr (ROWS >= 5) tile<L, 5, NP>(w, x, row, panel, ahead, bias, residual, out); break;
      case 6: if constexpr (ROWS >= 6) tile<L, 6, NP>(w, x, row, panel, ahead, bias, residual, out); break;
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
  if constexpr (PANELS > 1)
    for (; panel < panel1; ++panel) panels_by_rows<L, 1>(w, x, row0, row1, panel, bias, residual, out);
}

// Columns of a panel in integers, one after the other.
template <Layout L> void dequantize_integer(const Matrix& w, int64_t row, float* out) {
  const uint8_t* panel = w.data + (size_t)(row / PANEL) * w.panel_bytes;
  const int64_t col = row % PANEL, groups = w.k / GROUP;
  DecodedGroup decoded[CHUNK];
  for (int64_t g = 0; g < groups; g += CHUNK) {
    const int count = groups - g < CHUNK ? (int)(groups - g) : CHUNK;
    decode<L>(w, panel, g, count, 0, decoded);
    for (int i = 0; i < count; ++i)
      for (int j = 0; j < GROUP; ++j) {
        const int h = j * kind_of(L).halves / GROUP;
        const float value = decoded[i].scale[h][col] * (float)(decoded[i].q[j / 4 * 64 + 4 * col + j % 4] - kind_of(L).zero);
        *out++ = kind_of(L).min ? value + decoded[i].min[h][col] : value;
      }
  }
}

}  // namespace

void matmul(const Matrix& w, const Activation& x, int64_t row0, int64_t row1, int64_t panel0, int64_t panel1,
            const float* bias, const float* residual, float* out) {
#define TT_PRODUCT(L) \
  case Layout::L: return matmul_layout<Layout::L>(w, x, row0, row1, panel0, panel1, bias, residual, out)
  switch (w.layout) {
    TT_PRODUCT(Q4_0);
    TT_PRODUCT(Q4_1);
    TT_PRODUCT(Q4_K);
    TT_PRODUCT(G4);
    TT_PRODUCT(Q8_0);
    TT_PRODUCT(G8);
    TT_PRODUCT(BF16);
    TT_PRODUCT(F16);
    TT_PRODUCT(F32);
    default: return matmul_decoded(w, x, row0, row1, panel0, panel1, bias, residual, out);
  }
#undef TT_PRODUCT
}

void dequantize_row(const Matrix& w, int64_t row, int64_t dim, float* out) {
  const uint8_t* base = w.data + (size_t)(row / PANEL) * w.panel_bytes;
  const int col = (int)(row % PANEL);
  switch (w.layout) {
#define TT_DEQUANTIZE(L) \
  case Layout::L: return dequantize_integer<Layout::L>(w, row, out)
    TT_DEQUANTIZE(Q4_0);
    TT_DEQUANTIZE(Q4_1);
    TT_DEQUANTIZE(Q4_K);
    TT_DEQUANTIZE(G4);
    TT_DEQUANTIZE(Q8_0);
    TT_DEQUANTIZE(G8);
    TT_DEQUANTIZE(Q5_0);
    TT_DEQUANTIZE(Q5_1);
    TT_DEQUANTIZE(Q5_K);
    TT_DEQUANTIZE(Q6_K);
    TT_DEQUANTIZE(Q2_K);
    TT_DEQUANTIZE(Q3_K);
    TT_DEQUANTIZE(IQ4_NL);
    TT_DEQUANTIZE(IQ4_XS);
    TT_DEQUANTIZE(MXFP4);
    TT_DEQUANTIZE(NVFP4);
    TT_DEQUANTIZE(TQ2_0);
    TT_DEQUANTIZE(Q1_0);
    TT_DEQUANTIZE(G2);
    TT_DEQUANTIZE(G3);
    TT_DEQUANTIZE(TQ1_0);
    TT_DEQUANTIZE(IQ2_XXS);
    TT_DEQUANTIZE(IQ2_XS);
    TT_DEQUANTIZE(IQ2_S);
    TT_DEQUANTIZE(IQ3_XXS);
    TT_DEQUANTIZE(IQ3_S);
    TT_DEQUANTIZE(IQ1_S);
    TT_DEQUANTIZE(IQ1_M);
#undef TT_DEQUANTIZE
    case Layout::BF16:
      for (int64_t k = 0; k < dim; ++k) {
        uint16_t h;
        __builtin_memcpy(&h, base + (k / 2) * 64 + col * 4 + (k & 1) * 2, 2);
        const uint32_t bits = (uint32_t)h << 16;
        __builtin_memcpy(out + k, &bits, 4);
      }
      return;
    case Layout::F16:
      alignas(64) float lanes[LANES];
      for (int64_t k = 0; k < dim; ++k) {
        store(lanes, load_f16((const uint16_t*)base + k * PANEL));
        out[k] = lanes[col];
      }
      return;
    case Layout::F32:
      for (int64_t k = 0; k < dim; ++k) out[k] = ((const float*)base)[k * PANEL + col];
      return;
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
    // Both halves' sums at once: each fits in 16 bits, of which the lower ones borrow from the upper.
    const int32_t both = hsumi(qa + shl<16>(qb));
    const int16_t half = (int16_t)both, other = (int16_t)((both - half) >> 16);
    const int32_t sum = half + other;
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
    x.halves[2 * (first + g)] = half;
    x.halves[2 * (first + g) + 1] = other;
    x.dsum[first + g] = d * (float)sum + poison;
    x.wide[first + g] = (uint8_t)wide;
  }
}

}  // namespace tt::TT_ISA
