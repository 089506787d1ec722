// Attention over paged keys and values.
//
// Positions are cut into absolute segments of 256. For each query row and head a segment gives a fresh part: the
// maximum score m, the sum l of 2^(s - m), and o = sum 2^(s - m) v, scores being scaled to base two. Parts are merged in
// ascending order of segments, so prefill chunks, decode steps and splits over threads all give the same bits. A row's
// scores are summed in order of the head's values, its weighted values in order of positions, however many rows and
// tiles are computed together. What a row may not see is not read for it, or weighs an integer zero: stale blocks and
// later rows of the chunk cannot reach it, not even as NaN. Keys and values are read as stored, the own chunk's included.
#include "kernels/kernels.h"
#include "simd/vec.h"

// Loops over a block's rows and columns: their sums are to stay in registers.
#define TT_UNROLL _Pragma("GCC unroll 16")

namespace tt::TT_ISA {

namespace {

// Sums that a block of rows and columns keeps in registers: what 32 AVX-512 registers hold beside the operands; the other
// sets hold eight of our vectors in all.
#if defined(TT_VEC_AVX512)
constexpr int SUMS = 24, MAX_ROWS = 12;
#else
constexpr int SUMS = 6, MAX_ROWS = 6;
#endif
static_assert(MAX_ROWS <= ATTENTION_ROWS);
constexpr int TILES = SEGMENT / TILE;
constexpr float LOG2E = 1.44269504088896341f;

constexpr int columns(int rows, int sums_each) {
  const int n = SUMS / (rows * sums_each);
  return n >= 4 ? 4 : n >= 2 ? 2 : 1;
}

// Keeps a loaded vector in its register: where several rows use it, GCC would load it again for each of them.
template <class V> TT_INLINE V held(V x) {
#if defined(TT_VEC_AVX512)
  __asm__("" : "+v"(x.v));
#endif
  return x;
}

TT_INLINE VI broadcast4(const void* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return set1i(word);
}

// x ~ step * q with |q| <= 127, step = max|x| / 127. A row that is not all numbers gets a step that is none.
inline float quantize_int8(const float* x, int n, int8_t* q, int32_t* sum) {
  VF top = zero(), poison = zero();
  for (int d = 0; d < n; d += LANES) {
    const VF v = load(x + d);
    top = max(top, abs(v));
    poison = fma(v, zero(), poison);
  }
  const float largest = hmax(top), bad = hsum(poison);
  const float step = largest > 1e-20f ? largest / 127.0f : 0.0f;
  const VF inverse = set1(step > 0.0f && bad == 0.0f ? 1.0f / step : 0.0f);
  VI total = set1i(0);
  for (int d = 0; d < n; d += LANES) {
    const VI i = bad == 0.0f ? round_to_int(load(x + d) * inverse) : set1i(0);
    total = total + i;
    store_i8(q + d, i);
  }
  *sum = hsumi(total);
  return step + bad;
}

// The positions of a segment that a row sees: [lo, hi), at least one.
struct Span {
  int lo, hi;
};

// Tiles to be asked for from memory while others are worked on; none where `tiles` is null.
struct Ahead {
  const uint8_t* const* tiles;
  int count;
  size_t tile_bytes;
  TT_INLINE void ask(int t) const {
    if (!tiles || t >= count) return;
    for (size_t i = 0; i < tile_bytes; i += 64) __builtin_prefetch(tiles[t] + i, 0, 2);
  }
};

// Lanes [lo, hi) of x, those of y elsewhere; the borders may lie outside the vector.
TT_INLINE VF visible(VF x, VF y, int lo, int hi) {
  return select_range(x, y, lo < 0 ? 0 : lo > TILE ? TILE : lo, hi < 0 ? 0 : hi > TILE ? TILE : hi);
}

// What a row's score is multiplied with, and what its sum starts from.
struct Query {
  float factor;
  int32_t start;
};

// What differs between the cache types. Queries of the MR rows of a block stand word by word side by side, [values][MR];
// weights of a row stand ROW bytes behind those of the row before. `scores` adds q . k over the head for NT tiles of 16
// positions; `score` makes numbers of the sums; `weigh` turns a row's scores into weights as stored and gives their sum and
// what the weighted values are multiplied with; `values` adds weights times values over a span with borders of STEP.

struct Bf16 {
  using Sum = VF;
  static constexpr int ELEMENT = 2, STEP = 2, SUMS_EACH = 1;
  static constexpr bool EXACT = false;
  static constexpr size_t ROW = SEGMENT * 2;

  static float keep_query(const float* q, int n, uint8_t* to, int32_t* start) {
    for (int d = 0; d < n; d += LANES) store_bf16((uint16_t*)to + d, load(q + d));
    *start = 0;
    return 1.0f;
  }
  static TT_INLINE VF begin(int32_t) { return zero(); }
  template <int MR, int NT>
  static TT_INLINE void scores(const uint8_t* const* k_tile, const uint8_t* q, int head_dim, VF acc[][NT]) {
    for (int d = 0; d < head_dim; d += 2) {
      VI k[NT];
      TT_UNROLL for (int n = 0; n < NT; ++n) k[n] = held(loadi(k_tile[n] + (size_t)d * 32));
      TT_UNROLL for (int r = 0; r < MR; ++r) {
        const VI b = broadcast4(q + ((size_t)(d / 2) * MR + r) * 4);
        TT_UNROLL for (int n = 0; n < NT; ++n) acc[r][n] = dot2_bf16(acc[r][n], k[n], b);
      }
    }
  }
  static TT_INLINE VF score(VF sum, float factor, const uint8_t*, int) { return sum * set1(factor); }

  static TT_INLINE float weigh(float* s, VF m, int tile0, int tile1, Span, const uint8_t* const*, int, uint8_t* w, float* scale) {
    uint16_t* to = (uint16_t*)w;
    const VI ones = set1i(0x3F803F80);
    VF sum = zero();
    // Weights are summed in pairs of tiles. The half that is not computed is zero, and changes no bit.
    if (tile0 & 1) store_bf16(to + (tile0 - 1) * TILE, zero());
    if (tile1 & 1) store_bf16(to + tile1 * TILE, zero());
    for (int t = tile0; t < tile1; ++t) store_bf16(to + t * TILE, exp2(load(s + t * TILE) - m));
    for (int t = tile0 & ~1; t < tile1; t += 2) sum = dot2_bf16(sum, loadi(to + t * TILE), ones);
    *scale = 1.0f;
    return hsum(sum);
  }
  template <int MR, int NV>
  static TT_INLINE void values(const uint8_t* const* v_tiles, const uint8_t* w, const float*, int head_dim, int d, Span span, Ahead ahead, VF acc[][NV]) {
    const size_t step = (size_t)head_dim * 4;
    for (int i = span.lo; i < span.hi;) {
      const int t = i / TILE, stop = (t + 1) * TILE < span.hi ? (t + 1) * TILE : span.hi;
      ahead.ask(t);
      const uint8_t *at = v_tiles[t] + (size_t)(i - t * TILE) / 2 * step + (size_t)d * 4, *weight = w + (size_t)i * 2;
      for (; i < stop; i += 2, at += step, weight += 4) {
        VI v[NV];
        TT_UNROLL for (int n = 0; n < NV; ++n) v[n] = held(loadi(at + 64 * n));
        TT_UNROLL for (int r = 0; r < MR; ++r) {
          const VI p = broadcast4(weight + r * ROW);
          TT_UNROLL for (int n = 0; n < NV; ++n) acc[r][n] = dot2_bf16(acc[r][n], v[n], p);
        }
      }
    }
  }
  // One row's values over a few positions, any borders: of a pair that is seen by half, the other half is not read.
  static void edge(const uint8_t* const* v_tiles, const uint8_t* w, int head_dim, int begin, int end, float* out) {
    for (int i = begin & ~1; i < end; i += 2) {
      const int32_t seen = (i >= begin ? 0xFFFF : 0) | (i + 1 < end ? (int32_t)0xFFFF0000 : 0);
      const VI mask = set1i(seen), p = broadcast4(w + (size_t)i * 2) & mask;
      const uint8_t* pair = v_tiles[i / TILE] + (size_t)(i % TILE / 2) * head_dim * 4;
      for (int d = 0; d < head_dim; d += LANES)
        store(out + d, dot2_bf16(load(out + d), loadi(pair + (size_t)d * 4) & mask, p));
    }
  }

  static void store_kv(uint8_t* k_tile, uint8_t* v_tile, int lane, int head_dim, const float* k, const float* v) {
    uint16_t* kt = (uint16_t*)k_tile + lane * 2;
    uint16_t* vt = (uint16_t*)v_tile + (size_t)(lane / 2) * head_dim * 2 + (lane & 1);
    alignas(64) uint16_t rounded[MAX_HEAD_DIM];
    for (int d = 0; d < head_dim; d += LANES) store_bf16(rounded + d, load(k + d));
    for (int d = 0; d < head_dim; d += 2) __builtin_memcpy(kt + (size_t)d * TILE, rounded + d, 4);
    for (int d = 0; d < head_dim; d += LANES) store_bf16(rounded + d, load(v + d));
    for (int d = 0; d < head_dim; ++d) vt[2 * d] = rounded[d];
  }
};

struct F32 {
  using Sum = VF;
  static constexpr int ELEMENT = 4, STEP = 1, SUMS_EACH = 1;
  static constexpr bool EXACT = false;
  static constexpr size_t ROW = SEGMENT * 4;

  static float keep_query(const float* q, int n, uint8_t* to, int32_t* start) {
    __builtin_memcpy(to, q, (size_t)n * 4);
    *start = 0;
    return 1.0f;
  }
  static TT_INLINE VF begin(int32_t) { return zero(); }
  template <int MR, int NT>
  static TT_INLINE void scores(const uint8_t* const* k_tile, const uint8_t* q, int head_dim, VF acc[][NT]) {
    for (int d = 0; d < head_dim; ++d) {
      VF k[NT];
      TT_UNROLL for (int n = 0; n < NT; ++n) k[n] = held(load((const float*)k_tile[n] + (size_t)d * TILE));
      TT_UNROLL for (int r = 0; r < MR; ++r) {
        const VF b = set1(((const float*)q)[(size_t)d * MR + r]);
        TT_UNROLL for (int n = 0; n < NT; ++n) acc[r][n] = fma(k[n], b, acc[r][n]);
      }
    }
  }
  static TT_INLINE VF score(VF sum, float factor, const uint8_t*, int) { return sum * set1(factor); }

  static TT_INLINE float weigh(float* s, VF m, int tile0, int tile1, Span, const uint8_t* const*, int, uint8_t* w, float* scale) {
    VF sum = zero();
    for (int t = tile0; t < tile1; ++t) {
      const VF p = exp2(load(s + t * TILE) - m);
      store((float*)w + t * TILE, p);
      sum = sum + p;
    }
    *scale = 1.0f;
    return hsum(sum);
  }
  template <int MR, int NV>
  static TT_INLINE void values(const uint8_t* const* v_tiles, const uint8_t* w, const float*, int head_dim, int d, Span span, Ahead ahead, VF acc[][NV]) {
    for (int i = span.lo; i < span.hi; ++i) {
      if (i % TILE == 0) ahead.ask(i / TILE);
      const float* at = (const float*)v_tiles[i / TILE] + (size_t)(i % TILE) * head_dim + d;
      VF v[NV];
      TT_UNROLL for (int n = 0; n < NV; ++n) v[n] = held(load(at + 16 * n));
      TT_UNROLL for (int r = 0; r < MR; ++r) {
        const VF p = set1(((const float*)(w + r * ROW))[i]);
        TT_UNROLL for (int n = 0; n < NV; ++n) acc[r][n] = fma(v[n], p, acc[r][n]);
      }
    }
  }
  static void edge(const uint8_t* const* v_tiles, const uint8_t* w, int head_dim, int begin, int end, float* out) {
    for (int i = begin; i < end; ++i) {
      const float* at = (const float*)v_tiles[i / TILE] + (size_t)(i % TILE) * head_dim;
      const VF p = set1(((const float*)w)[i]);
      for (int d = 0; d < head_dim; d += LANES) store(out + d, fma(load(at + d), p, load(out + d)));
    }
  }

  static void store_kv(uint8_t* k_tile, uint8_t* v_tile, int lane, int head_dim, const float* k, const float* v) {
    float* kt = (float*)k_tile + lane;
    for (int d = 0; d < head_dim; ++d) kt[(size_t)d * TILE] = k[d];
    __builtin_memcpy((float*)v_tile + (size_t)lane * head_dim, v, (size_t)head_dim * 4);
  }
};

// Keys are bytes offset by 128 and queries int8, so a score's sum is an exact integer. Weights already hold their value's
// scale; they are whole numbers up to 2^14 - 1 of the largest, in two pieces of seven bits: exact sums again, in any order.
struct Int8 {
  using Sum = VI;
  static constexpr int ELEMENT = 1, STEP = 4, SUMS_EACH = 2;
  static constexpr bool EXACT = true;
  static constexpr size_t ROW = SEGMENT * 2, PIECE = SEGMENT;  // the low pieces of a row's weights lie PIECE behind the high ones
  static constexpr float LEVELS = 16383.0f;

  static TT_INLINE const float* scales(const uint8_t* tile, int head_dim) { return (const float*)(tile + (size_t)TILE * head_dim); }

  static float keep_query(const float* q, int n, uint8_t* to, int32_t* start) {
    int32_t sum;
    const float step = quantize_int8(q, n, (int8_t*)to, &sum);
    *start = (DOT4_ZERO - 128) * sum;
    return step;
  }
  static TT_INLINE VI begin(int32_t start) { return set1i(start); }
  template <int MR, int NT>
  static TT_INLINE void scores(const uint8_t* const* k_tile, const uint8_t* q, int head_dim, VI acc[][NT]) {
    for (int d = 0; d < head_dim; d += 4) {
      VI k[NT];
      TT_UNROLL for (int n = 0; n < NT; ++n) k[n] = held(loadi(k_tile[n] + (size_t)d * TILE));
      TT_UNROLL for (int r = 0; r < MR; ++r) {
        const VI b = broadcast4(q + (size_t)d * MR + r * 4);
        TT_UNROLL for (int n = 0; n < NT; ++n) acc[r][n] = dot4(acc[r][n], k[n], b);
      }
    }
  }
  static TT_INLINE VF score(VI sum, float factor, const uint8_t* k_tile, int head_dim) {
    return to_float(sum) * (load(scales(k_tile, head_dim)) * set1(factor));
  }

  static TT_INLINE float weigh(float* s, VF m, int tile0, int tile1, Span span, const uint8_t* const* v_tiles, int head_dim, uint8_t* w,
                               float* scale) {
    VF sum = zero(), top = zero(), poison = zero();
    for (int t = tile0; t < tile1; ++t) {
      const VF p = exp2(load(s + t * TILE) - m);
      VF steps = load(scales(v_tiles[t], head_dim));
      const int lo = span.lo - t * TILE, hi = span.hi - t * TILE;
      if (lo > 0 || hi < TILE) steps = visible(steps, zero(), lo, hi);
      const VF weight = p * steps;
      sum = sum + p;
      top = max(top, weight);
      poison = fma(weight, zero(), poison);
      store(s + t * TILE, weight);
    }
    const float largest = hmax(top), bad = hsum(poison);
    const float step = largest > 1e-30f ? largest / LEVELS : 0.0f;
    const VF inverse = set1(step > 0.0f && bad == 0.0f ? 1.0f / step : 0.0f);
    const VI low = set1i(127);
    int8_t* to = (int8_t*)w;
    for (int t = tile0; t < tile1; ++t) {
      const VI i = bad == 0.0f ? round_to_int(load(s + t * TILE) * inverse) : set1i(0);
      store_i8(to + t * TILE, shr<7>(i));
      store_i8(to + PIECE + t * TILE, i & low);
    }
    *scale = step + bad;
    return hsum(sum);
  }
  template <int MR, int NV>
  static TT_INLINE void values(const uint8_t* const* v_tiles, const uint8_t* w, const float* scale, int head_dim, int d, Span span, Ahead ahead, VF out[][NV]) {
    VI high[MR][NV], low[MR][NV];
    TT_UNROLL for (int r = 0; r < MR; ++r)
      TT_UNROLL for (int n = 0; n < NV; ++n) high[r][n] = low[r][n] = set1i(0);
    const size_t step = (size_t)head_dim * 4;
    for (int i = span.lo; i < span.hi;) {
      const int t = i / TILE, stop = (t + 1) * TILE < span.hi ? (t + 1) * TILE : span.hi;
      ahead.ask(t);
      const uint8_t *at = v_tiles[t] + (size_t)(i - t * TILE) / 4 * step + (size_t)d * 4, *weight = w + i;
      for (; i < stop; i += 4, at += step, weight += 4) {
        VI v[NV];
        TT_UNROLL for (int n = 0; n < NV; ++n) v[n] = held(loadi(at + 64 * n));
        TT_UNROLL for (int r = 0; r < MR; ++r) {
          const VI h = broadcast4(weight + r * ROW), l = broadcast4(weight + r * ROW + PIECE);
          TT_UNROLL for (int n = 0; n < NV; ++n) high[r][n] = dot4_nibble(high[r][n], h, v[n]);
          TT_UNROLL for (int n = 0; n < NV; ++n) low[r][n] = dot4_nibble(low[r][n], l, v[n]);
        }
      }
    }
    TT_UNROLL for (int r = 0; r < MR; ++r)
      TT_UNROLL for (int n = 0; n < NV; ++n) out[r][n] = to_float(shl<7>(high[r][n]) + low[r][n]) * set1(scale[r]);
  }

  static void store_kv(uint8_t* k_tile, uint8_t* v_tile, int lane, int head_dim, const float* k, const float* v) {
    alignas(64) int8_t q[MAX_HEAD_DIM];
    int32_t sum;
    ((float*)scales(k_tile, head_dim))[lane] = quantize_int8(k, head_dim, q, &sum);
    for (int d = 0; d < head_dim; d += 4) {
      uint32_t four;
      __builtin_memcpy(&four, q + d, 4);
      four ^= 0x80808080u;
      __builtin_memcpy(k_tile + (size_t)d * TILE + lane * 4, &four, 4);
    }
    ((float*)scales(v_tile, head_dim))[lane] = quantize_int8(v, head_dim, q, &sum);
    int8_t* vt = (int8_t*)v_tile + (size_t)(lane / 4) * head_dim * 4 + (lane & 3);
    for (int d = 0; d < head_dim; ++d) vt[4 * d] = q[d];
  }
};

// Maximum and sum of a part stand behind its values.
TT_INLINE float& top_of(float* part, int head_dim) { return part[head_dim]; }
TT_INLINE float& sum_of(float* part, int head_dim) { return part[head_dim + 1]; }

// An empty part; or that of a sink, whose weight has no value.
inline void clear(float* part, int head_dim, const float* sink = nullptr) {
  for (int d = 0; d < head_dim; d += LANES) store(part + d, zero());
  top_of(part, head_dim) = sink ? *sink * LOG2E : -INF;
  sum_of(part, head_dim) = sink ? 1.0f : 0.0f;
}

// Join later parts to running ones, up to sixteen rows at once: both scaled to the common maximum.
inline void merge(int rows, float* const* running, float* const* parts, int head_dim) {
  alignas(64) float before[LANES] = {}, after[LANES] = {};
  for (int r = 0; r < rows; ++r) {
    const float a = top_of(running[r], head_dim), b = top_of(parts[r], head_dim);
    const float m = b > a ? b : a;
    before[r] = a - m, after[r] = b - m;
    top_of(running[r], head_dim) = m;
  }
  store(before, exp2(load(before)));
  store(after, exp2(load(after)));
  for (int r = 0; r < rows; ++r) {
    float *to = running[r], *from = parts[r];
    const VF old_scale = set1(before[r]), new_scale = set1(after[r]);
    sum_of(to, head_dim) = sum_of(to, head_dim) * before[r] + sum_of(from, head_dim) * after[r];
    for (int d = 0; d < head_dim; d += LANES) store(to + d, fma(load(from + d), new_scale, load(to + d) * old_scale));
  }
}

inline void normalize(float* running, int head_dim, float* out) {
  const VF inverse = set1(1.0f / sum_of(running, head_dim));
  for (int d = 0; d < head_dim; d += LANES) store(out + d, load(running + d) * inverse);
}

// Fresh parts of a few rows over one segment.
template <class Kv> struct Segment {
  const AttentionArgs& a;
  const int head_dim;
  float* const scores;     // [MAX_ROWS, SEGMENT]
  uint8_t* const weights;  // [MAX_ROWS, SEGMENT] of four bytes at most
  const uint8_t* k[TILES];
  const uint8_t* v[TILES];
  Ahead values_ahead, keys_ahead;  // asked for while scores are computed; while values are weighted

  template <int MR> void part(const uint8_t* values, const Query* q, const Span* spans, float* const* out) {
    Span all = spans[0], common = spans[0];  // what any row sees, and what every one does
    for (int r = 1; r < MR; ++r) {
      all = {spans[r].lo < all.lo ? spans[r].lo : all.lo, spans[r].hi > all.hi ? spans[r].hi : all.hi};
      common = {spans[r].lo > common.lo ? spans[r].lo : common.lo, spans[r].hi < common.hi ? spans[r].hi : common.hi};
    }
    const int tile0 = all.lo / TILE, tile1 = (all.hi + TILE - 1) / TILE;
    constexpr int NT = columns(MR, 1);
    int t = tile0;
    for (; t + NT <= tile1; t += NT) scored<MR, NT>(t, values, q, spans, common);
    if constexpr (NT > 2) for (; t + 2 <= tile1; t += 2) scored<MR, 2>(t, values, q, spans, common);
    for (; t < tile1; ++t) scored<MR, 1>(t, values, q, spans, common);

    float scale[MR];
    for (int r = 0; r < MR; ++r) {
      float* s = scores + (size_t)r * SEGMENT;
      const float m = largest(s, tile0, tile1);
      top_of(out[r], head_dim) = m;
      sum_of(out[r], head_dim) =
          Kv::weigh(s, set1(m), tile0, tile1, spans[r], v, head_dim, weights + r * Kv::ROW, scale + r);
    }
    // What all of these rows see is weighted together, what only some see row by row before and after it: a row's order of
    // positions stays the same, and nothing unseen is touched. Integers need no such care: their unseen weights are zero.
    const Span joint = Kv::EXACT ? Span{all.lo & ~(Kv::STEP - 1), all.hi}
                                 : Span{(common.lo + Kv::STEP - 1) & ~(Kv::STEP - 1), common.hi & ~(Kv::STEP - 1)};
    bool begun[MR] = {};
    if constexpr (!Kv::EXACT) {
      for (int r = 0; r < MR; ++r) {
        begun[r] = joint.lo >= joint.hi || spans[r].lo < joint.lo;
        if (!begun[r]) continue;
        for (int d = 0; d < head_dim; d += LANES) store(out[r] + d, zero());
        Kv::edge(v, weights + r * Kv::ROW, head_dim, spans[r].lo, joint.lo < joint.hi ? joint.lo : spans[r].hi, out[r]);
      }
      if (joint.lo >= joint.hi) return;
    }
    constexpr int NV = columns(MR, Kv::SUMS_EACH);
    int d = 0;
    for (; d + 16 * NV <= head_dim; d += 16 * NV) weighted<MR, NV>(joint, scale, d, begun, out);
    if constexpr (NV > 1) for (; d < head_dim; d += 16) weighted<MR, 1>(joint, scale, d, begun, out);
    if constexpr (!Kv::EXACT)
      TT_UNROLL for (int r = 0; r < MR; ++r)
        if (spans[r].hi > joint.hi) Kv::edge(v, weights + r * Kv::ROW, head_dim, joint.hi, spans[r].hi, out[r]);
  }

 private:
  // The largest score of a row; a maximum does not depend on the order.
  static TT_INLINE float largest(const float* s, int tile0, int tile1) {
    VF a = load(s + tile0 * TILE), b = a;
    for (int t = tile0 + 1; t + 1 < tile1; t += 2) a = max(a, load(s + t * TILE)), b = max(b, load(s + (t + 1) * TILE));
    return hmax(max(max(a, b), load(s + (tile1 - 1) * TILE)));
  }

  // Scaled, capped and masked scores of NT tiles; `common` is what all rows see.
  template <int MR, int NT> TT_INLINE void scored(int t, const uint8_t* values, const Query* q, const Span* spans, Span common) {
    typename Kv::Sum acc[MR][NT];
    TT_UNROLL for (int r = 0; r < MR; ++r)
      TT_UNROLL for (int n = 0; n < NT; ++n) acc[r][n] = Kv::begin(q[r].start);
    TT_UNROLL for (int n = 0; n < NT; ++n) values_ahead.ask(t + n);
    Kv::template scores<MR, NT>(k + t, values, head_dim, acc);
    float* s = scores + t * TILE;
    TT_UNROLL for (int r = 0; r < MR; ++r)
      TT_UNROLL for (int n = 0; n < NT; ++n) store(s + r * SEGMENT + n * TILE, Kv::score(acc[r][n], q[r].factor, k[t + n], head_dim));
    const bool masked = common.lo > t * TILE || common.hi < (t + NT) * TILE;
    if (!masked && a.softcap <= 0.0f) return;
    for (int r = 0; r < MR; ++r) {
      for (int n = 0; n < NT; ++n) {
        VF x = load(s + r * SEGMENT + n * TILE);
        if (a.softcap > 0.0f) x = set1(a.softcap * LOG2E) * tanh(x / set1(a.softcap));
        x = visible(x, set1(-INF), spans[r].lo - (t + n) * TILE, spans[r].hi - (t + n) * TILE);
        store(s + r * SEGMENT + n * TILE, x);
      }
    }
  }

  // Weighted values of 16 NV of the head's dimensions, going on from what `out` holds of the rows that have begun.
  template <int MR, int NV>
  TT_INLINE void weighted(Span joint, const float* scale, int d, const bool* begun, float* const* out) {
    VF acc[MR][NV];
    TT_UNROLL for (int r = 0; r < MR; ++r)
      TT_UNROLL for (int n = 0; n < NV; ++n) acc[r][n] = begun[r] ? load(out[r] + d + 16 * n) : zero();
    Kv::template values<MR, NV>(v, weights, scale, head_dim, d, joint, d ? Ahead{} : keys_ahead, acc);
    TT_UNROLL for (int r = 0; r < MR; ++r)
      TT_UNROLL for (int n = 0; n < NV; ++n) store(out[r] + d + 16 * n, acc[r][n]);
  }
};

// How many of the rows that are left one block takes.
inline int block_rows(int left) {
  const int rows = left < MAX_ROWS ? left : MAX_ROWS;
  return rows == 12 || rows <= 4 ? rows : rows >= 6 ? 6 : 4;
}

template <class Kv> void block_part(Segment<Kv>& segment, int rows, const uint8_t* values, const Query* q, const Span* spans, float* const* out) {
  switch (rows) {
    case 1: return segment.template part<1>(values, q, spans, out);
    case 2: return segment.template part<2>(values, q, spans, out);
    case 3: return segment.template part<3>(values, q, spans, out);
    case 4: return segment.template part<4>(values, q, spans, out);
    case 6: return segment.template part<6>(values, q, spans, out);
    default:
      if constexpr (MAX_ROWS == 12) segment.template part<12>(values, q, spans, out);
  }
}

// Where the keys of a segment's tiles lie; returns how many tiles the sequence has of it.
inline int key_tiles(const KvLayer& kv, const StepView& s, int64_t sequence, int32_t kv_head, int64_t segment, const uint8_t** tiles) {
  const int32_t* table = s.block_tables + sequence * s.table_width;
  const int64_t begin = segment * SEGMENT, last = s.positions[s.row_starts[sequence + 1] - 1];
  int t = 0;
  for (; t < TILES && begin + t * TILE <= last; ++t) {
    const int64_t position = begin + t * TILE, block = table[position / kv.block_size];
    tiles[t] = kv.k + (size_t)block * kv.block_bytes() + (size_t)kv_head * kv.head_bytes() +
               (size_t)(position % kv.block_size) / TILE * kv.tile_bytes();
  }
  return t;
}

template <class Kv>
void attend(const KvLayer& kv, const AttentionArgs& a, const StepView& s, const AttentionTask& task, const AttentionTask* next,
            uint8_t* scratch, float* partial, float* out) {
  const int64_t row0 = task.row0, row1 = task.row1, segment0 = task.segment0;
  const int32_t kv_head = task.kv_head;
  const int hd = kv.head_dim, group = a.heads / kv.heads;
  const int rows = (int)(row1 - row0) * group, part = (int)part_size(hd);
  auto take = [&](size_t bytes) {
    uint8_t* p = scratch;
    scratch += (bytes + 63) / 64 * 64;
    return p;
  };
  Segment<Kv> segment{a, hd, (float*)take((size_t)MAX_ROWS * SEGMENT * 4), take((size_t)MAX_ROWS * SEGMENT * 4), {}, {}, {}, {}};
  float* fresh = (float*)take((size_t)MAX_ROWS * part * 4);
  float* running = (float*)take((size_t)rows * part * 4);
  // A head's queries and results lie too far apart for the hardware to foresee.
  for (int64_t row = row0; row < row1; ++row) {
    const size_t at = (size_t)(row * a.heads + kv_head * group) * hd;
    for (int d = 0; d < group * hd; d += LANES) {
      __builtin_prefetch(a.q + at + d, 0, 3);
      if (!partial) __builtin_prefetch(out + at + d, 1, 2);
    }
  }
  Query* queries = (Query*)take((size_t)rows * sizeof(Query));
  const size_t words = (size_t)hd * Kv::ELEMENT / 4;
  uint32_t* values = (uint32_t*)take((size_t)rows * words * 4);
  for (int r0 = 0; r0 < rows;) {
    const int n = block_rows(rows - r0);
    for (int r = r0; r < r0 + n; ++r) {
      alignas(64) uint8_t kept[MAX_HEAD_DIM * 4];
      int32_t start;
      const float step = Kv::keep_query(a.q + ((row0 + r / group) * a.heads + kv_head * group + r % group) * hd, hd, kept, &start);
      queries[r] = {step * (a.softcap > 0.0f ? a.scale : a.scale * LOG2E), start};
      for (size_t i = 0; i < words; ++i) __builtin_memcpy(values + r0 * words + i * n + (r - r0), kept + 4 * i, 4);
      if (!partial) clear(running + (size_t)r * part, hd, a.sinks ? a.sinks + kv_head * group + r % group : nullptr);
    }
    r0 += n;
  }
  const uint8_t* coming[TILES];
  for (int64_t seg = segment0; seg < task.segment1; ++seg) {
    const int64_t begin = seg * SEGMENT, end = begin + SEGMENT;
    const int tiles = key_tiles(kv, s, task.sequence, task.kv_head, seg, segment.k);
    for (int t = 0; t < tiles; ++t) segment.v[t] = segment.k[t] + (kv.v - kv.k);
    // Few rows are done with a segment sooner than memory brings it: ask for its values, and for the keys to come, in time.
    if (rows == block_rows(rows)) {
      int count = 0;
      if (seg + 1 < task.segment1) count = key_tiles(kv, s, task.sequence, task.kv_head, seg + 1, coming);
      else if (next) count = key_tiles(kv, s, next->sequence, next->kv_head, next->segment0, coming);
      segment.values_ahead = {segment.v, tiles, kv.tile_bytes()};
      segment.keys_ahead = {coming, count, kv.tile_bytes()};
    }
    for (int r0 = 0, n; r0 < rows; r0 += n) {
      n = block_rows(rows - r0);
      Span spans[MAX_ROWS], any{0, 0};
      float *parts[MAX_ROWS], *seen[MAX_ROWS], *joined[MAX_ROWS];
      int count = 0;
      for (int i = 0; i < n; ++i) {
        const int r = r0 + i;
        const int64_t row = row0 + r / group, position = s.positions[row];
        const int64_t first = a.window > 0 && position + 1 > a.window ? position + 1 - a.window : 0;
        float* to = partial ? partial + (((seg - segment0) * (row1 - row0) + r / group) * a.heads + kv_head * group + r % group) * part : nullptr;
        parts[i] = fresh + (size_t)i * part;
        spans[i] = {0, 0};
        if (position < begin || first >= end) {
          if (partial) clear(to, hd);
          continue;
        }
        any = spans[i] = {first > begin ? (int)(first - begin) : 0, position + 1 < end ? (int)(position + 1 - begin) : SEGMENT};
        if (partial) parts[i] = to;
        seen[count] = parts[i];
        joined[count++] = running + (size_t)r * part;
      }
      if (!count) continue;
      // At the border of a segment a block may hold rows that see nothing of it: they run along, and nobody takes their part.
      for (int i = 0; i < n; ++i)
        if (!spans[i].hi) spans[i] = any;
      block_part(segment, n, (const uint8_t*)(values + r0 * words), queries + r0, spans, parts);
      if (!partial) merge(count, joined, seen, hd);
    }
  }
  if (partial) return;
  for (int r = 0; r < rows; ++r)
    normalize(running + (size_t)r * part, hd, out + ((row0 + r / group) * a.heads + kv_head * group + r % group) * hd);
}

template <class Kv> void store_row(const KvLayer& kv, const float* k, const float* v, int32_t block, int32_t offset) {
  for (int h = 0; h < kv.heads; ++h) {
    const size_t at = (size_t)block * kv.block_bytes() + (size_t)h * kv.head_bytes() + (size_t)(offset / TILE) * kv.tile_bytes();
    Kv::store_kv(kv.k + at, kv.v + at, offset % TILE, kv.head_dim, k + (size_t)h * kv.head_dim, v + (size_t)h * kv.head_dim);
  }
}

}  // namespace

void attention(const KvLayer& kv, const AttentionArgs& a, const StepView& s, const AttentionTask& task, const AttentionTask* next,
               uint8_t* scratch, float* partial, float* out) {
  auto* run = kv.type == KvType::BF16 ? attend<Bf16> : kv.type == KvType::INT8 ? attend<Int8> : attend<F32>;
  run(kv, a, s, task, next, scratch, partial, out);
}

void attention_merge(float* partial, int64_t segments, int64_t stride, int32_t head_dim, const float* sink, float* out) {
  alignas(64) float running[MAX_HEAD_DIM + 16];
  clear(running, head_dim, sink);
  float* to = running;
  for (int64_t i = 0; i < segments; ++i, partial += stride)
    if (top_of(partial, head_dim) != -INF) merge(1, &to, &partial, head_dim);
  normalize(running, head_dim, out);
}

void kv_store(const KvLayer& kv, const float* k, const float* v, int32_t block, int32_t offset) {
  auto* store = kv.type == KvType::BF16 ? store_row<Bf16> : kv.type == KvType::INT8 ? store_row<Int8> : store_row<F32>;
  store(kv, k, v, block, offset);
}

}  // namespace tt::TT_ISA
