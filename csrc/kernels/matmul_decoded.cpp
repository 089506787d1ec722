// Products with integer layouts whose values stand in planes of bits, or in tables.
//
// Tiles of a few rows read planes into registers. For more rows, a panel's groups are decoded once and multiplied with all of
// them, while they are in the second-level cache. Where halves of a group have scales of their
// own: part = float(dot_0) * scale_0, part = fma(float(dot_1), scale_1, part), acc = fma(part, step, acc), and minima with the
// halves' sums; else as in matmul.cpp. The same for any number of rows.
#include "kernels/decode.h"
#include "kernels/products.h"

namespace tt::TT_ISA {

namespace {

constexpr int BLOCK_ROWS = 132;  // rows for which groups are decoded once
constexpr int DECODED_GROUPS = 64;  // of a panel, 48 KB: for rows longer than these, sums wait in memory
// Rows for which planes are put together in registers, anew for each tile, rather than once in memory: fewer where a tile's
// registers are soon full.
constexpr int few_rows(Kind kind) { return kind.halves == 2 || kind.min ? 4 : 12; }

// What a group adds to one row and panel, when all its products are there.
template <int H, bool Min>
inline void add_minima(VF& acc, const VF* min, float step, float dsum, const int16_t* halves) {
  if constexpr (Min && H == 1) acc = fma(min[0], set1(dsum), acc);
  if constexpr (Min && H == 2)
    for (int h = 0; h < 2; ++h) acc = fma(min[h], set1(step * (float)halves[h]), acc);
}

// MR rows times one panel of planes, which stay in registers.
template <Layout L, int MR>
inline void tile_of_planes(const Matrix& w, const Activation& x, int64_t row, int64_t panel, size_t ahead, const float* bias,
                           const float* residual, float* out) {
  constexpr Shape S = shape_of(L);
  constexpr Kind T = kind_of(L);
  constexpr int H = T.halves, RUNS = 8 / H, ZERO = zero_of<L>();
  constexpr size_t HEADER = S.header_bytes(), RECORD = S.record_bytes();
  const int64_t groups = w.k / GROUP, per_block = (S.block ? S.block : w.group) / GROUP;
  const uint8_t* at = w.data + (size_t)panel * w.panel_bytes;
  const int8_t *low = x.low + row * w.k, *high = x.high + row * w.k;
  VF acc[MR];
  for (int r = 0; r < MR; ++r) acc[r] = zero();
  for (int64_t g = 0; g < groups;) {
    const uint8_t* header = at;
    at += HEADER;
    for (const int64_t end = g + per_block; g < end; ++g, at += RECORD) {
      if (ahead)
        for (size_t i = 0; i < RECORD; i += 64) __builtin_prefetch(at + i + ahead);
      const int64_t first = row * groups + g;
      VI q[8];
      unpack<L>(at, q);
      VI dot[H][MR];
      for (int h = 0; h < H; ++h)
        for (int r = 0; r < MR; ++r) {
          const int64_t at_row = first + r * groups;
          dot[h][r] = ZERO ? set1i(-ZERO * (H == 1 ? x.sum[at_row] : x.halves[2 * at_row + h])) : set1i(0);
        }
      int wide = 0;
      for (int r = 0; r < MR; ++r) wide |= x.wide[first + r * groups];
      if (wide) {
        alignas(64) uint8_t bytes[GROUP * PANEL];
        for (int j = 0; j < 8; ++j) storei(bytes + 64 * j, q[j]);
#pragma GCC unroll 6
        for (int r = 0; r < MR; ++r)
#pragma GCC unroll 2
          for (int h = 0; h < H; ++h) {
            VI runs[1] = {set1i(0)};
            dot_byte_runs<T.full, 1>(x.wide[first + r * groups] >> RUNS * h & ((1 << RUNS) - 1), bytes + 64 * RUNS * h, 0,
                                     high + r * w.k + g * GROUP + 4 * RUNS * h, runs);
            dot[h][r] = dot[h][r] + shl<4>(runs[0]);
          }
      }
      for (int j = 0; j < 8; ++j)
        for (int r = 0; r < MR; ++r)
          dot[j / RUNS][r] = product<T.full>(dot[j / RUNS][r], q[j], broadcast4(low + r * w.k + g * GROUP + 4 * j));
      VF d, m;
      read_header<L>(header, d, m);
      Factors f;
      read_factors<L>(d, m, at, f);
      for (int r = 0; r < MR; ++r) {
        const int64_t at_row = first + r * groups;
        const float step = x.step[at_row];
        if constexpr (H == 1) acc[r] = fma(to_float(dot[0][r]), f.scale[0] * set1(step), acc[r]);
        else acc[r] = fma(fma(to_float(dot[1][r]), f.scale[1], to_float(dot[0][r]) * f.scale[0]), set1(step), acc[r]);
        add_minima<H, T.min>(acc[r], f.min, step, x.dsum[at_row], x.halves + 2 * at_row);
      }
    }
  }
  for (int r = 0; r < MR; ++r) finish(acc[r], row + r, panel, w.n, bias, residual, out);
}

// The rows in tiles of nearly equal height; the first one has the panel fetched into the cache.
template <Layout L>
void rows_of_planes(const Matrix& w, const Activation& x, int64_t row0, int64_t row1, int64_t panel, const float* bias,
                    const float* residual, float* out) {
  size_t ahead = row1 - row0 == 1 ? 4096 : w.panel_bytes;
  for (int64_t row = row0, tiles = (row1 - row0 + ROWS - 1) / ROWS; tiles; --tiles, ahead = 0) {
    const int64_t rows = (row1 - row + tiles - 1) / tiles;
    switch (rows) {
      case 1: tile_of_planes<L, 1>(w, x, row, panel, ahead, bias, residual, out); break;
      case 2: tile_of_planes<L, 2>(w, x, row, panel, ahead, bias, residual, out); break;
      case 3: tile_of_planes<L, 3>(w, x, row, panel, ahead, bias, residual, out); break;
      case 4: tile_of_planes<L, 4>(w, x, row, panel, ahead, bias, residual, out); break;
      case 5: if constexpr (ROWS >= 5) tile_of_planes<L, 5>(w, x, row, panel, ahead, bias, residual, out); break;
      case 6: if constexpr (ROWS >= 6) tile_of_planes<L, 6>(w, x, row, panel, ahead, bias, residual, out); break;
    }
    row += rows;
  }
}

// MR rows times `count` decoded groups of NP panels, which stand side by side. sums[r][p]: those of the rows so far, none at the
// first group.
template <Layout L, int MR, int NP>
inline void tile_decoded(const DecodedGroup* at, int64_t group, int count, const Activation& x, int64_t row, float* sums) {
  constexpr Kind T = kind_of(L);
  constexpr int H = T.halves, RUNS = 8 / H, ZERO = zero_of<L>();
  constexpr size_t STRIDE = sizeof(DecodedGroup);
  const int64_t k = x.dim, groups = k / GROUP, first = row * groups + group;
  const int8_t *low = x.low + first * GROUP, *high = x.high + first * GROUP;
  const float *step = x.step + first, *dsum = x.dsum + first;
  const int32_t* sum = x.sum + first;
  const int16_t* halves = x.halves + 2 * first;
  const uint8_t* wide_rows = x.wide + first;
  VF acc[MR][NP];
  for (int r = 0; r < MR; ++r)
    for (int p = 0; p < NP; ++p) acc[r][p] = group ? load(sums + (r * NP + p) * PANEL) : zero();
  for (int g = 0; g < count; ++g, at += NP) {
    int wide = 0;
    for (int r = 0; r < MR; ++r) wide |= wide_rows[r * groups + g];
    VF part[MR][NP];
#pragma GCC unroll 2
    for (int h = 0; h < H; ++h) {
      const uint8_t* q = at->q + 64 * RUNS * h;
      VI dot[MR][NP];
      for (int r = 0; r < MR; ++r)
        for (int p = 0; p < NP; ++p) dot[r][p] = set1i(0);
      if (wide) {
#pragma GCC unroll 6
        for (int r = 0; r < MR; ++r) {
          const int64_t i = r * groups + g;
          dot_byte_runs<T.full, NP>(wide_rows[i] >> RUNS * h & ((1 << RUNS) - 1), q, STRIDE, high + i * GROUP + 4 * RUNS * h, dot[r]);
          for (int p = 0; p < NP; ++p) dot[r][p] = shl<4>(dot[r][p]);
        }
      }
      if (ZERO)
        for (int r = 0; r < MR; ++r) {
          const int64_t i = r * groups + g;
          for (int p = 0; p < NP; ++p) dot[r][p] = dot[r][p] - set1i(ZERO * (H == 1 ? sum[i] : halves[2 * i + h]));
        }
      dot_bytes<T.full, RUNS, MR, NP>(q, STRIDE, low + g * GROUP + 4 * RUNS * h, k, dot);
      for (int p = 0; p < NP; ++p) {
        const VF scale = load(at[p].scale[h]);
        for (int r = 0; r < MR; ++r) {
          if constexpr (H == 1) acc[r][p] = fma(to_float(dot[r][p]), scale * set1(step[r * groups + g]), acc[r][p]);
          else part[r][p] = h ? fma(to_float(dot[r][p]), scale, part[r][p]) : to_float(dot[r][p]) * scale;
        }
      }
    }
    for (int p = 0; p < NP; ++p) {
      VF min[H];
      if constexpr (T.min)
        for (int h = 0; h < H; ++h) min[h] = load(at[p].min[h]);
      for (int r = 0; r < MR; ++r) {
        const int64_t i = r * groups + g;
        if constexpr (H == 2) acc[r][p] = fma(part[r][p], set1(step[i]), acc[r][p]);
        add_minima<H, T.min>(acc[r][p], min, step[i], dsum[i], halves + 2 * i);
      }
    }
  }
  for (int r = 0; r < MR; ++r)
    for (int p = 0; p < NP; ++p) store(sums + (r * NP + p) * PANEL, acc[r][p]);
}

// Rows [row0, row1) times decoded groups, in tiles of nearly equal height.
template <Layout L, int NP>
__attribute__((noinline)) void rows_decoded(const DecodedGroup* at, int64_t group, int count, const Activation& x, int64_t row0,
                                            int64_t row1, float* sums) {
  constexpr int MOST = kind_of(L).halves == 2 && ROWS > 4 ? 4 : ROWS;  // two sums a row
  for (int64_t row = row0, tiles = (row1 - row0 + MOST - 1) / MOST; tiles; --tiles) {
    const int64_t rows = (row1 - row + tiles - 1) / tiles;
    switch (rows) {
      case 1: tile_decoded<L, 1, NP>(at, group, count, x, row, sums); break;
      case 2: tile_decoded<L, 2, NP>(at, group, count, x, row, sums); break;
      case 3: tile_decoded<L, 3, NP>(at, group, count, x, row, sums); break;
      case 4: tile_decoded<L, 4, NP>(at, group, count, x, row, sums); break;
      case 5: if constexpr (MOST >= 5) tile_decoded<L, 5, NP>(at, group, count, x, row, sums); break;
      case 6: if constexpr (MOST >= 6) tile_decoded<L, 6, NP>(at, group, count, x, row, sums); break;
    }
    row += rows;
    sums += rows * NP * PANEL;
  }
}

template <Layout L, int NP>
void panels_decoded(const Matrix& w, const Activation& x, int64_t row0, int64_t row1, int64_t panel, const float* bias,
                    const float* residual, float* out) {
  const int64_t groups = w.k / GROUP;
  DecodedGroup decoded[DECODED_GROUPS * NP];
  alignas(64) float sums[BLOCK_ROWS * NP * PANEL];
  for (; row0 < row1; row0 += BLOCK_ROWS) {
    const int64_t end = row1 - row0 < BLOCK_ROWS ? row1 : row0 + BLOCK_ROWS;
    for (int64_t group = 0; group < groups; group += DECODED_GROUPS) {
      const int count = groups - group < DECODED_GROUPS ? (int)(groups - group) : DECODED_GROUPS;
      for (int p = 0; p < NP; ++p)
        for (int g = 0; g < count; g += CHUNK)
          decode<L>(w, w.data + (size_t)(panel + p) * w.panel_bytes, group + g, count - g < CHUNK ? count - g : CHUNK, 2048,
                    decoded + g * NP + p, NP);
      rows_decoded<L, NP>(decoded, group, count, x, row0, end, sums);
    }
    for (int64_t r = row0; r < end; ++r)
      for (int p = 0; p < NP; ++p)
        finish(load(sums + ((r - row0) * NP + p) * PANEL), r, panel + p, w.n, bias, residual, out);
  }
}

template <Layout L>
void matmul_layout(const Matrix& w, const Activation& x, int64_t row0, int64_t row1, int64_t panel0, int64_t panel1,
                   const float* bias, const float* residual, float* out) {
  int64_t panel = panel0;
  if constexpr (kind_of(L).form == Form::PLANES)
    if (row1 - row0 <= few_rows(kind_of(L)))
      for (; panel < panel1; ++panel) rows_of_planes<L>(w, x, row0, row1, panel, bias, residual, out);
  for (; panel + PANELS <= panel1; panel += PANELS) panels_decoded<L, PANELS>(w, x, row0, row1, panel, bias, residual, out);
  if constexpr (PANELS > 1)
    for (; panel < panel1; ++panel) panels_decoded<L, 1>(w, x, row0, row1, panel, bias, residual, out);
}

}  // namespace

void matmul_decoded(const Matrix& w, const Activation& x, int64_t row0, int64_t row1, int64_t panel0, int64_t panel1,
                    const float* bias, const float* residual, float* out) {
  switch (w.layout) {
#define TT_PRODUCT(L) \
  case Layout::L: return matmul_layout<Layout::L>(w, x, row0, row1, panel0, panel1, bias, residual, out)
    TT_PRODUCT(Q5_0);
    TT_PRODUCT(Q5_1);
    TT_PRODUCT(Q5_K);
    TT_PRODUCT(Q6_K);
    TT_PRODUCT(Q2_K);
    TT_PRODUCT(Q3_K);
    TT_PRODUCT(IQ4_NL);
    TT_PRODUCT(IQ4_XS);
    TT_PRODUCT(MXFP4);
    TT_PRODUCT(NVFP4);
    TT_PRODUCT(TQ2_0);
    TT_PRODUCT(Q1_0);
    TT_PRODUCT(G2);
    TT_PRODUCT(G3);
    TT_PRODUCT(TQ1_0);
    TT_PRODUCT(IQ2_XXS);
    TT_PRODUCT(IQ2_XS);
    TT_PRODUCT(IQ2_S);
    TT_PRODUCT(IQ3_XXS);
    TT_PRODUCT(IQ3_S);
    TT_PRODUCT(IQ1_S);
    TT_PRODUCT(IQ1_M);
    default: return;
  }
#undef TT_PRODUCT
}

}  // namespace tt::TT_ISA
