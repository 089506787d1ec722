// Attention over paged keys and values.
//
// Positions are cut into absolute segments of 256. For each query row and head a segment gives a fresh part: the
// maximum score m, the sum l of exp(s - m), and o = sum exp(s - m) v. Parts are merged in ascending order of segments, so
// prefill chunks, decode steps and splits over threads all give the same bits. Queries and weights are rounded to the
// cache's type; masked lanes weigh exactly zero; keys and values are read as stored, those of the own chunk included.
#include "kernels/kernels.h"
#include "simd/vec.h"

namespace tt::TT_ISA {

namespace {

inline uint32_t round_bf16(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (bits >> 16) | 0x40u;  // NaN stays NaN
  return (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
}

// bfloat16 bits in the low half of each lane, rounded to nearest even (for numbers, which is all that comes here).
inline VI round_bf16(VF x) {
  const VI bits = as_int(x);
  return shr<16>(bits + set1i(0x7FFF) + (shr<16>(bits) & set1i(1)));
}

constexpr int MAX_ROWS = 6;

// What differs between the cache types: how pairs are multiplied, and how queries and weights are kept.
struct Bf16 {
  using Stored = uint16_t;
  // acc[r][n] += q . k over the head, for NT tiles of 16 positions
  template <int MR, int NT>
  static inline void scores(const uint8_t* const* k_tile, const Stored* const* q, int head_dim, VF acc[][NT]) {
    for (int d = 0; d < head_dim; d += 2) {
      VI k[NT];
      for (int n = 0; n < NT; ++n) k[n] = loadi(k_tile[n] + (size_t)d * 32);
      for (int r = 0; r < MR; ++r) {
        int32_t pair;
        __builtin_memcpy(&pair, q[r] + d, 4);
        const VI b = set1i(pair);
        for (int n = 0; n < NT; ++n) acc[r][n] = dot2_bf16(acc[r][n], k[n], b);
      }
    }
  }
  // out[r][16 dims at d, NV vectors] += weights . v over the first `positions` positions of a tile
  template <int MR, int NV>
  static inline void values(const uint8_t* v_tile, const Stored* const* w, int head_dim, int d, int positions, VF acc[][NV]) {
    for (int i = 0; i < positions; i += 2) {
      VI v[NV];
      for (int n = 0; n < NV; ++n) v[n] = loadi(v_tile + ((size_t)(i / 2) * head_dim + d + 16 * n) * 4);
      for (int r = 0; r < MR; ++r) {
        int32_t pair;
        __builtin_memcpy(&pair, w[r] + i, 4);
        const VI p = set1i(pair);
        for (int n = 0; n < NV; ++n) acc[r][n] = dot2_bf16(acc[r][n], v[n], p);
      }
    }
  }
  static inline VF keep(Stored* to, VF x) {
    const VI h = round_bf16(x);
    store_u16(to, h);
    return as_float(shl<16>(h));
  }
};

struct F32 {
  using Stored = float;
  template <int MR, int NT>
  static inline void scores(const uint8_t* const* k_tile, const Stored* const* q, int head_dim, VF acc[][NT]) {
    for (int d = 0; d < head_dim; ++d) {
      VF k[NT];
      for (int n = 0; n < NT; ++n) k[n] = load((const float*)k_tile[n] + (size_t)d * TILE);
      for (int r = 0; r < MR; ++r) {
        const VF b = set1(q[r][d]);
        for (int n = 0; n < NT; ++n) acc[r][n] = fma(k[n], b, acc[r][n]);
      }
    }
  }
  template <int MR, int NV>
  static inline void values(const uint8_t* v_tile, const Stored* const* w, int head_dim, int d, int positions, VF acc[][NV]) {
    for (int i = 0; i < positions; ++i) {
      VF v[NV];
      for (int n = 0; n < NV; ++n) v[n] = load((const float*)v_tile + (size_t)i * head_dim + d + 16 * n);
      for (int r = 0; r < MR; ++r) {
        const VF p = set1(w[r][i]);
        for (int n = 0; n < NV; ++n) acc[r][n] = fma(v[n], p, acc[r][n]);
      }
    }
  }
  static inline VF keep(Stored* to, VF x) {
    store(to, x);
    return x;
  }
};

struct Row {
  int64_t position;   // of the query
  int64_t first;      // lowest position it sees
};

template <class Kv> struct Task {
  using Stored = typename Kv::Stored;
  const KvLayer& kv;
  const AttentionArgs& a;
  const int32_t* table;
  int32_t kv_head;
  float* scores;            // [rows, SEGMENT]
  Stored* weights;          // [rows, SEGMENT]
  Stored* queries;          // [rows, head_dim]
  float* running;           // [rows, 2 + head_dim]
  Row rows[ATTENTION_TOKENS];

  const uint8_t* tile(const uint8_t* base, int64_t position) const {
    const int64_t block = table[position / kv.block_size];
    return base + (size_t)block * kv.block_bytes() + (size_t)kv_head * kv.head_bytes() +
           (size_t)(position % kv.block_size) / TILE * kv.tile_bytes();
  }

  // A fresh part of MR rows over one segment; `limits` are their position ranges; out[r] gets (m, l, o).
  template <int MR> void segment(int64_t segment, const int* row_ids, const Row* limits, float* const* out) {
    const int hd = kv.head_dim;
    const int64_t begin = segment * SEGMENT;
    int64_t last = 0, first = INT64_MAX;
    for (int r = 0; r < MR; ++r) {
      last = limits[r].position > last ? limits[r].position : last;
      first = limits[r].first < first ? limits[r].first : first;
    }
    // Few rows take several tiles at once, to have enough independent sums under way.
    constexpr int NT = MR >= 5 ? 2 : 4;
    // All rows walk the same tiles; a tile that one of them may not see weighs zero for it.
    const int tile0 = first > begin ? (int)(first - begin) / TILE : 0;
    const int count = (int)(last + 1 - begin < SEGMENT ? last + 1 - begin : SEGMENT);
    const int tile1 = (count + TILE - 1) / TILE;
    const Stored* q[MR];
    Stored* w[MR];
    float* s[MR];
    VF top[MR];
    for (int r = 0; r < MR; ++r) {
      q[r] = queries + (size_t)row_ids[r] * hd;
      w[r] = weights + (size_t)row_ids[r] * SEGMENT;
      s[r] = scores + (size_t)row_ids[r] * SEGMENT;
      top[r] = set1(-INF);
    }
    int t = tile0;
    for (; t + NT <= tile1; t += NT) scored<MR, NT>(begin, t, q, limits, s, top);
    for (; t < tile1; ++t) scored<MR, 1>(begin, t, q, limits, s, top);
    float m[MR];
    for (int r = 0; r < MR; ++r) {
      m[r] = hmax(top[r]);
      const VF mv = set1(m[r]);
      VF sum = zero();
      for (int t = tile0; t < tile1; ++t) sum = sum + Kv::keep(w[r] + t * TILE, exp(load(s[r] + t * TILE) - mv));
      out[r][0] = m[r];
      out[r][1] = hsum(sum);
    }
    int d = 0;
    for (; d + 64 <= hd; d += 64) weighted<MR, 4>(begin, tile0, tile1, count, w, d, out);
    for (; d + 32 <= hd; d += 32) weighted<MR, 2>(begin, tile0, tile1, count, w, d, out);
    for (; d < hd; d += 16) weighted<MR, 1>(begin, tile0, tile1, count, w, d, out);
  }

  // Scaled, capped and masked scores of NT tiles; `top` takes their maxima.
  template <int MR, int NT>
  void scored(int64_t begin, int t, const Stored* const* q, const Row* limits, float* const* s, VF* top) {
    const uint8_t* tiles[NT];
    VF acc[MR][NT];
    for (int n = 0; n < NT; ++n) tiles[n] = tile(kv.k, begin + (int64_t)(t + n) * TILE);
    for (int r = 0; r < MR; ++r)
      for (int n = 0; n < NT; ++n) acc[r][n] = zero();
    Kv::template scores<MR, NT>(tiles, q, kv.head_dim, acc);
    for (int n = 0; n < NT; ++n) {
      const int64_t at = begin + (int64_t)(t + n) * TILE;
      for (int r = 0; r < MR; ++r) {
        VF x = acc[r][n] * set1(a.scale);
        if (a.softcap > 0.0f) x = set1(a.softcap) * tanh(x / set1(a.softcap));
        const int64_t lo = limits[r].first - at, hi = limits[r].position + 1 - at;
        if (lo > 0 || hi < TILE)
          x = select_range(x, set1(-INF), lo > TILE ? TILE : lo < 0 ? 0 : (int)lo, hi > TILE ? TILE : hi < 0 ? 0 : (int)hi);
        store(s[r] + (t + n) * TILE, x);
        top[r] = max(top[r], x);
      }
    }
  }

  template <int MR, int NV>
  void weighted(int64_t begin, int tile0, int tile1, int count, Stored* const* w, int d, float* const* out) {
    VF acc[MR][NV];
    for (int r = 0; r < MR; ++r)
      for (int n = 0; n < NV; ++n) acc[r][n] = zero();
    for (int t = tile0; t < tile1; ++t) {
      const Stored* wt[MR];
      for (int r = 0; r < MR; ++r) wt[r] = w[r] + t * TILE;
      const int left = count - t * TILE;
      Kv::template values<MR, NV>(tile(kv.v, begin + (int64_t)t * TILE), wt, kv.head_dim, d, left < TILE ? left : TILE, acc);
    }
    for (int r = 0; r < MR; ++r)
      for (int n = 0; n < NV; ++n) store(out[r] + 2 + d + 16 * n, acc[r][n]);
  }

  void segment_rows(int rows, int64_t segment_id, const int* ids, const Row* limits, float* const* out) {
    switch (rows) {
      case 1: return segment<1>(segment_id, ids, limits, out);
      case 2: return segment<2>(segment_id, ids, limits, out);
      case 3: return segment<3>(segment_id, ids, limits, out);
      case 4: return segment<4>(segment_id, ids, limits, out);
      case 5: return segment<5>(segment_id, ids, limits, out);
      default: return segment<6>(segment_id, ids, limits, out);
    }
  }
};

// running (m, l, o) and a later part, joined: both scaled to the common maximum.
inline void merge(float* running, const float* part, int head_dim) {
  const float m = part[0] > running[0] ? part[0] : running[0];
  alignas(64) float lanes[LANES];
  VF shift = zero();
  lanes[0] = running[0] - m;
  lanes[1] = part[0] - m;
  for (int i = 2; i < LANES; ++i) lanes[i] = 0.0f;
  shift = exp(load(lanes));
  store(lanes, shift);
  const VF old_scale = set1(lanes[0]), new_scale = set1(lanes[1]);
  running[0] = m;
  running[1] = running[1] * lanes[0] + part[1] * lanes[1];
  for (int d = 0; d < head_dim; d += LANES)
    store(running + 2 + d, fma(load(part + 2 + d), new_scale, load(running + 2 + d) * old_scale));
}

inline void normalize(const float* running, int head_dim, float* out) {
  const VF inverse = set1(1.0f / running[1]);
  for (int d = 0; d < head_dim; d += LANES) store(out + d, load(running + 2 + d) * inverse);
}

template <class Kv>
void attend(const KvLayer& kv, const AttentionArgs& a, const StepView& s, int64_t sequence, int64_t row0, int64_t row1,
            int32_t kv_head, int64_t segment0, int64_t segment1, uint8_t* scratch, float* partial, float* out) {
  using Stored = typename Kv::Stored;
  const int hd = kv.head_dim, group = a.heads / kv.heads;
  const int tokens = (int)(row1 - row0), rows = tokens * group;
  const int part = 2 + hd;
  float* f = (float*)scratch;
  Task<Kv> task{kv, a, s.block_tables + sequence * s.table_width, kv_head, f, nullptr, nullptr, nullptr, {}};
  f += (size_t)rows * SEGMENT;
  task.running = f;
  f += (size_t)rows * part;
  float* fresh = f;
  f += (size_t)MAX_ROWS * part;
  task.weights = (Stored*)f;
  task.queries = task.weights + (size_t)rows * SEGMENT;
  for (int t = 0; t < tokens; ++t) {
    const int64_t position = s.positions[row0 + t];
    const int64_t first = a.window > 0 && position + 1 > a.window ? position + 1 - a.window : 0;
    task.rows[t] = {position, first};
    for (int h = 0; h < group; ++h) {
      const float* q = a.q + ((row0 + t) * a.heads + kv_head * group + h) * hd;
      Stored* to = task.queries + (size_t)(t * group + h) * hd;
      for (int d = 0; d < hd; d += LANES) Kv::keep(to + d, load(q + d));
      task.running[(size_t)(t * group + h) * part] = -INF;
    }
  }
  for (int64_t seg = segment0; seg < segment1; ++seg) {
    const int64_t begin = seg * SEGMENT, end = begin + SEGMENT;
    int ids[MAX_ROWS];
    Row limits[MAX_ROWS];
    float* outs[MAX_ROWS];
    int n = 0;
    auto flush = [&] {
      if (!n) return;
      task.segment_rows(n, seg, ids, limits, outs);
      if (!partial)
        for (int i = 0; i < n; ++i) {
          float* running = task.running + (size_t)ids[i] * part;
          // The first part is taken as it is: merging it with an empty one would be the same, at a cost.
          if (running[0] == -INF) for (int d = 0; d < part; ++d) running[d] = outs[i][d];
          else merge(running, outs[i], hd);
        }
      n = 0;
    };
    for (int r = 0; r < rows; ++r) {
      const Row& row = task.rows[r / group];
      if (row.position < begin || row.first >= end) {
        if (partial) partial[((size_t)(seg - segment0) * a.heads + kv_head * group + r) * part] = -INF;
        continue;
      }
      ids[n] = r;
      limits[n] = row;
      outs[n] = partial ? partial + ((size_t)(seg - segment0) * a.heads + kv_head * group + r) * part
                        : fresh + (size_t)n * part;
      if (++n == MAX_ROWS) flush();
    }
    flush();
  }
  if (partial) return;
  for (int r = 0; r < rows; ++r)
    normalize(task.running + (size_t)r * part, hd, out + ((row0 + r / group) * a.heads + kv_head * group + r % group) * hd);
}

}  // namespace

void attention(const KvLayer& kv, const AttentionArgs& a, const StepView& s, int64_t sequence, int64_t row0,
               int64_t row1, int32_t kv_head, int64_t segment0, int64_t segment1, uint8_t* scratch, float* partial,
               float* out) {
  if (kv.type == KvType::BF16) attend<Bf16>(kv, a, s, sequence, row0, row1, kv_head, segment0, segment1, scratch, partial, out);
  else attend<F32>(kv, a, s, sequence, row0, row1, kv_head, segment0, segment1, scratch, partial, out);
}

void attention_merge(const float* partial, int64_t segments, int64_t stride, int32_t head_dim, float* out) {
  float running[2 + 1024];
  running[0] = -INF;
  for (int64_t i = 0; i < segments; ++i, partial += stride) {
    if (partial[0] == -INF) continue;
    if (running[0] == -INF) for (int d = 0; d < 2 + head_dim; ++d) running[d] = partial[d];
    else merge(running, partial, head_dim);
  }
  normalize(running, head_dim, out);
}

void kv_store(const KvLayer& kv, const float* k, const float* v, int32_t block, int32_t offset, bool last) {
  const int hd = kv.head_dim, tile = offset / TILE, lane = offset % TILE;
  for (int h = 0; h < kv.heads; ++h) {
    const size_t at = (size_t)block * kv.block_bytes() + (size_t)h * kv.head_bytes() + (size_t)tile * kv.tile_bytes();
    const float *kh = k + (size_t)h * hd, *vh = v + (size_t)h * hd;
    if (kv.type == KvType::BF16) {
      uint16_t* kt = (uint16_t*)(kv.k + at);
      uint16_t* vt = (uint16_t*)(kv.v + at);
      for (int d = 0; d < hd; ++d) kt[(size_t)(d / 2) * 32 + lane * 2 + (d & 1)] = (uint16_t)round_bf16(kh[d]);
      uint16_t* pair = vt + (size_t)(lane / 2) * hd * 2;
      for (int d = 0; d < hd; ++d) pair[2 * d + (lane & 1)] = (uint16_t)round_bf16(vh[d]);
      // The partner of a last, even position is read with weight zero: it must be a number, whoever had it before.
      if (last && !(lane & 1)) for (int d = 0; d < hd; ++d) pair[2 * d + 1] = 0;
    } else {
      float* kt = (float*)(kv.k + at);
      float* vt = (float*)(kv.v + at);
      for (int d = 0; d < hd; ++d) kt[(size_t)d * TILE + lane] = kh[d];
      for (int d = 0; d < hd; ++d) vt[(size_t)lane * hd + d] = vh[d];
    }
  }
}

}  // namespace tt::TT_ISA
