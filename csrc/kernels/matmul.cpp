// Products of activations with packed weights, for every layout.
//
// Integer layouts: exact int32 dot products within a group of 32, then one float multiply-add per group, in ascending
// order of K: acc = fma(float(dot), d_w * d_x, acc), and for layouts with minima acc = fma(m_w, dsum_x, acc). The zero
// point enters as the start value of the integer sum. Remainders of outlier groups (see Activation) join the same sum. Float layouts: one multiply-add per k, ascending.
#include "kernels/kernels.h"
#include "simd/vec.h"

namespace tt::TT_ISA {

namespace {

template <Layout L> struct Traits;
template <> struct Traits<Layout::Q4_ZERO8> { static constexpr int zero = 8; static constexpr bool nibbles = true, min = false; };
template <> struct Traits<Layout::Q4_MIN> { static constexpr int zero = 0; static constexpr bool nibbles = true, min = true; };
template <> struct Traits<Layout::Q8> { static constexpr int zero = 128; static constexpr bool nibbles = false, min = false; };

inline VI broadcast4(const int8_t* p) {
  int32_t x;
  __builtin_memcpy(&x, p, 4);
  return set1i(x);
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
template <Layout L, int MR, int NP, size_t AHEAD = 0>
inline void dot_group(const uint8_t* w, size_t stride, const int8_t* q, int64_t row_stride, VI (&dot)[MR][NP]) {
  if constexpr (Traits<L>::nibbles) {
    const VI low = set1i(0x0F0F0F0F);
    for (int j = 0; j < 4; ++j) {
      VI lo[NP], hi[NP];
      for (int p = 0; p < NP; ++p) {
        const VI b = loadi(w + p * stride + 64 * j);
        if (AHEAD) __builtin_prefetch(w + p * stride + 64 * j + AHEAD);
        lo[p] = b & low;
        hi[p] = shr<4>(b) & low;
      }
      for (int r = 0; r < MR; ++r) {
        const VI a = broadcast4(q + r * row_stride + 8 * j), b = broadcast4(q + r * row_stride + 8 * j + 4);
        for (int p = 0; p < NP; ++p) dot[r][p] = dot4_nibble(dot[r][p], lo[p], a);
        for (int p = 0; p < NP; ++p) dot[r][p] = dot4_nibble(dot[r][p], hi[p], b);
      }
    }
  } else {
    for (int j = 0; j < 8; ++j) {
      VI b[NP];
      for (int p = 0; p < NP; ++p) {
        b[p] = loadi(w + p * stride + 64 * j);
        if (AHEAD) __builtin_prefetch(w + p * stride + 64 * j + AHEAD);
      }
      for (int r = 0; r < MR; ++r) {
        const VI a = broadcast4(q + r * row_stride + 4 * j);
        for (int p = 0; p < NP; ++p) dot[r][p] = dot4(dot[r][p], b[p], a);
      }
    }
  }
}

// MR rows times NP panels, integer layouts.
template <Layout L, int MR, int NP>
inline void tile_integer(const Matrix& w, const Activation& x, int64_t row, int64_t panel, const float* bias,
                         const float* residual, float* out) {
  using T = Traits<L>;
  const int64_t groups = w.k / GROUP, first = row * groups;
  const size_t stride = w.panel_bytes(), step = group_bytes(L);
  const uint8_t* base = w.data + (size_t)panel * stride;
  const int8_t *q = x.q + row * w.k, *rest = x.rest + row * w.k;
  const float *scale = x.scale + first, *dsum = x.dsum + first;
  const int32_t *sum = x.sum + first, *rest_sum = x.rest_sum + first;
  const uint8_t* fine = x.fine + first;
  VF acc[MR][NP];
  for (int r = 0; r < MR; ++r)
    for (int p = 0; p < NP; ++p) acc[r][p] = zero();
  for (int64_t g = 0; g < groups; ++g) {
    const uint8_t* wg = base + (size_t)g * step;
    VI dot[MR][NP];
    for (int r = 0; r < MR; ++r)
      for (int p = 0; p < NP; ++p) dot[r][p] = T::zero ? set1i(-T::zero * sum[r * groups + g]) : set1i(0);
    // One row at a time is bound by memory, and its streams are many: fetch ahead.
    dot_group<L, MR, NP, MR == 1 ? 2048 : 0>(wg, stride, q + g * GROUP, w.k, dot);
    // Rows with remainders take their sums in 1/256 of the step (`scale` says so too).
    int fine_rows = 0;
    for (int r = 0; r < MR; ++r) fine_rows += fine[r * groups + g];
    if (fine_rows) {
#pragma GCC unroll 6
      for (int r = 0; r < MR; ++r)
        if (fine[r * groups + g])
          for (int p = 0; p < NP; ++p) {
            dot[r][p] = shl<8>(dot[r][p]);
            if (T::zero) dot[r][p] = dot[r][p] - set1i(T::zero * rest_sum[r * groups + g]);
          }
      if (2 * fine_rows > MR) {
        dot_group<L, MR, NP>(wg, stride, rest + g * GROUP, w.k, dot);
      } else {
#pragma GCC unroll 6
        for (int r = 0; r < MR; ++r)
          if (fine[r * groups + g]) dot_group<L, 1, NP>(wg, stride, rest + r * w.k + g * GROUP, w.k, *reinterpret_cast<VI(*)[1][NP]>(&dot[r]));
      }
    }
    const uint8_t* tail = wg + (T::nibbles ? 256 : 512);
    for (int p = 0; p < NP; ++p) {
      const VF d = load_f16((const uint16_t*)(tail + p * stride));
      for (int r = 0; r < MR; ++r) acc[r][p] = fma(to_float(dot[r][p]), d * set1(scale[r * groups + g]), acc[r][p]);
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
inline void tile(const Matrix& w, const Activation& x, int64_t row, int64_t panel, const float* bias,
                 const float* residual, float* out) {
  if constexpr (L == Layout::BF16 || L == Layout::F16 || L == Layout::F32)
    tile_float<L, MR, NP>(w, x, row, panel, bias, residual, out);
  else
    tile_integer<L, MR, NP>(w, x, row, panel, bias, residual, out);
}

constexpr int ROWS = 6;

// The rows that are left over below six, against NP panels.
template <Layout L, int NP>
void row_tail(int rows, const Matrix& w, const Activation& x, int64_t row, int64_t panel, const float* bias,
              const float* residual, float* out) {
  switch (rows) {
    case 1: return tile<L, 1, NP>(w, x, row, panel, bias, residual, out);
    case 2: return tile<L, 2, NP>(w, x, row, panel, bias, residual, out);
    case 3: return tile<L, 3, NP>(w, x, row, panel, bias, residual, out);
    case 4: return tile<L, 4, NP>(w, x, row, panel, bias, residual, out);
    case 5: return tile<L, 5, NP>(w, x, row, panel, bias, residual, out);
    default: return;
  }
}

template <Layout L, int NP>
void panels_by_rows(const Matrix& w, const Activation& x, int64_t row0, int64_t row1, int64_t panel,
                    const float* bias, const float* residual, float* out) {
  int64_t row = row0;
  for (; row + ROWS <= row1; row += ROWS) tile<L, ROWS, NP>(w, x, row, panel, bias, residual, out);
  row_tail<L, NP>((int)(row1 - row), w, x, row, panel, bias, residual, out);
}

template <Layout L>
void matmul_layout(const Matrix& w, const Activation& x, int64_t row0, int64_t row1, int64_t panel0, int64_t panel1,
                   const float* bias, const float* residual, float* out) {
  int64_t panel = panel0;
  if (row1 - row0 == 1)
    for (; panel + 4 <= panel1; panel += 4) tile<L, 1, 4>(w, x, row0, panel, bias, residual, out);
  for (; panel + 2 <= panel1; panel += 2) panels_by_rows<L, 2>(w, x, row0, row1, panel, bias, residual, out);
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
  float* scale = x.scale + first;
  float squares = 0.0f;
  for (int64_t g = 0; g < groups; ++g) {
    const float top = hmax(max(abs(load(f + g * GROUP)), abs(load(f + g * GROUP + 16))));
    scale[g] = top > 1e-20f ? top / 127.0f : 0.0f;
    squares += scale[g] * scale[g];
  }
  const float limit = squares / (float)groups * OUTLIER;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t at = row * x.dim + g * GROUP;
    const float d = scale[g];
    const VF inverse = set1(d > 0.0f ? 1.0f / d : 0.0f);
    // Numbers are within ±127 here; what is not a number becomes one, lest the sums overflow.
    const VF low = set1(-127.0f), high = set1(127.0f);
    const VF a = min(max(load(x.f + at) * inverse, low), high), b = min(max(load(x.f + at + 16) * inverse, low), high);
    const VI qa = round_to_int(a), qb = round_to_int(b);
    store_i8(x.q + at, qa);
    store_i8(x.q + at + 16, qb);
    const int32_t sum = hsumi(qa + qb);
    int32_t rest_sum = 0;
    const bool fine = d * d > limit;
    VI ra = set1i(0), rb = ra;
    if (fine) {
      const VF step = set1(256.0f), most = set1(127.0f);
      ra = round_to_int(min((a - to_float(qa)) * step, most));
      rb = round_to_int(min((b - to_float(qb)) * step, most));
      rest_sum = hsumi(ra + rb);
    }
    store_i8(x.rest + at, ra);
    store_i8(x.rest + at + 16, rb);
    // A group that holds an infinity or a NaN makes its whole row NaN, to be seen: x - x is zero for numbers only.
    const VF raw = load(x.f + at), raw_high = load(x.f + at + 16);
    const float poison = hsum((raw - raw) + (raw_high - raw_high));
    scale[g] = (fine ? d * 0x1.0p-8f : d) + poison;
    x.fine[first + g] = fine;
    x.sum[first + g] = sum;
    x.rest_sum[first + g] = rest_sum;
    x.dsum[first + g] = d * ((float)(256 * sum + rest_sum) * 0x1.0p-8f) + poison;
  }
}

}  // namespace tt::TT_ISA
