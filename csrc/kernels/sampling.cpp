// One row of logits to one token and its log-probability.
//
// Order: log-probabilities of the raw logits; penalties, logit bias, mask; temperature, min-p, top-k, top-p, typical-p; one draw keyed by
// (seed, choice, position), which walks what is left in ascending token order. Sums run over fixed tiles in that order
// too, and equal values are ordered by token, so a row's result depends on nothing but the row.
#include <algorithm>

#include "kernels/kernels.h"
#include "math64.h"
#include "simd/vec.h"

namespace tt::TT_ISA {

namespace {

// Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): 53 random bits of a keyed counter.
double uniform(uint64_t seed, uint32_t choice, uint32_t position) {
  uint32_t c[4] = {position, choice, 0, 0}, k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int i = 0; i < 10; ++i) {
    const uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
    const uint32_t n[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k1, (uint32_t)a};
    for (int j = 0; j < 4; ++j) c[j] = n[j];
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const uint64_t bits = ((uint64_t)c[0] << 32 | c[1]) >> 11;
  return (double)bits * 0x1.0p-53;
}

constexpr int64_t SUM_TILE = 256;  // tokens whose probabilities are summed together

struct Candidate {
  float p;
  int32_t id;
};
inline bool before(const Candidate& a, const Candidate& b) { return a.p > b.p || (a.p == b.p && a.id < b.id); }

float maximum(const float* x, int64_t n) {
  VF top = set1(-INF);
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) top = max(load(x + i), top);
  float m = hmax(top);
  for (; i < n; ++i) m = x[i] > m ? x[i] : m;
  return m;
}

// The lowest index that holds the maximum; 0 where every value is NaN.
int32_t argmax(const float* x, int64_t n) {
  const float m = maximum(x, n);
  const VF mv = set1(m);
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES)
    if (const uint32_t hits = mask_ge(load(x + i), mv)) return (int32_t)(i + __builtin_ctz(hits));
  for (; i < n; ++i)
    if (x[i] >= m) return (int32_t)i;
  return 0;
}

// Sum of exp((x - top) * inverse) in tiles; the exponentials go to `p` where it is given, the tiles' sums to `sums`.
double exponentials(const float* x, int64_t n, float top, float inverse, float* p, float* sums) {
  const VF tv = set1(top), iv = set1(inverse);
  double total = 0.0;
  for (int64_t t = 0; t < n; t += SUM_TILE) {
    const int64_t end = t + SUM_TILE < n ? t + SUM_TILE : n;
    VF sum = zero();
    int64_t i = t;
    for (; i + LANES <= end; i += LANES) {
      const VF e = exp((load(x + i) - tv) * iv);
      if (p) store(p + i, e);
      sum = sum + e;
    }
    if (i < end) {
      const int left = (int)(end - i);
      const VF e = select_range(exp((load_n(x + i, left) - tv) * iv), zero(), 0, left);
      if (p) store_n(p + i, e, left);
      sum = sum + e;
    }
    const float s = hsum(sum);
    if (sums) sums[t / SUM_TILE] = s;
    total += (double)s;
  }
  return total;
}

// Keep the k best of `x` that reach `floor` (by value, then lower id) in `best`, sorted. `best` has room for 2 k.
int64_t top_k(const float* x, int64_t n, int64_t k, float floor, Candidate* best) {
  int64_t count = 0;
  float cut = floor;
  auto shrink = [&] {
    if (count <= k) return;
    std::nth_element(best, best + k - 1, best + count, before);
    count = k;
    cut = best[k - 1].p;
  };
  auto take = [&](int64_t i) {
    best[count++] = {x[i], (int32_t)i};
    if (count == 2 * k) shrink();
  };
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    uint32_t hits = mask_ge(load(x + i), set1(cut));
    for (; hits; hits &= hits - 1) take(i + __builtin_ctz(hits));
  }
  for (; i < n; ++i)
    if (x[i] >= cut) take(i);
  shrink();
  std::sort(best, best + count, before);
  return count;
}

// The first token, in ascending order, at which the running sum passes u times the whole.
int32_t draw_listed(const Candidate* c, int64_t count, double u) {
  double total = 0.0;
  for (int64_t i = 0; i < count; ++i) total += (double)c[i].p;
  const double want = u * total;
  double sum = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    sum += (double)c[i].p;
    if (sum > want) return c[i].id;
  }
  return c[count - 1].id;
}

// Over all tokens in ascending order: the tile first, then the token within.
int32_t draw_all(const float* p, const float* sums, int64_t n, double total, double u) {
  const double want = u * total;
  double sum = 0.0;
  int32_t last = 0;
  for (int64_t t = 0; t < n; t += SUM_TILE) {
    const double s = (double)sums[t / SUM_TILE];
    const int64_t end = t + SUM_TILE < n ? t + SUM_TILE : n;
    if (sum + s > want) {
      double inner = sum;
      for (int64_t i = t; i < end; ++i) {
        if (p[i] <= 0.0f) continue;
        last = (int32_t)i;
        inner += (double)p[i];
        if (inner > want) return last;
      }
      return last;  // the tile's own sum rounded a little higher than its parts
    }
    if (s > 0.0f)
      for (int64_t i = end; i-- > t;)
        if (p[i] > 0.0f) { last = (int32_t)i; break; }
    sum += s;
  }
  return last;
}

// Drop candidates that come after `last` in the order of likelihood; the others stay in token order.
int64_t keep_until(Candidate* c, int64_t count, Candidate last) {
  return std::remove_if(c, c + count, [&](const Candidate& x) { return before(last, x); }) - c;
}

// All tokens with p >= floor, in ascending order.
int64_t gather(const float* p, int64_t n, float floor, Candidate* out) {
  int64_t count = 0, i = 0;
  for (; i + LANES <= n; i += LANES)
    for (uint32_t hits = mask_ge(load(p + i), set1(floor)); hits; hits &= hits - 1) {
      const int64_t at = i + __builtin_ctz(hits);
      out[count++] = {p[at], (int32_t)at};
    }
  for (; i < n; ++i)
    if (p[i] >= floor) out[count++] = {p[i], (int32_t)i};
  return count;
}

// Keep the k best of the candidates, in ascending token order.
int64_t keep_best(Candidate* c, int64_t count, int64_t k, Candidate* work) {
  if (count <= k) return count;
  std::copy(c, c + count, work);
  std::nth_element(work, work + k - 1, work + count, before);
  return keep_until(c, count, work[k - 1]);
}

// Keep the smallest set of most likely candidates whose probabilities reach `want`, in ascending token order. Sums
// first go by magnitude, in sixteenths of an octave; only the candidates of the last magnitude are sorted.
int64_t keep_nucleus(Candidate* c, int64_t count, double want, Candidate* work) {
  constexpr int MAGNITUDES = (0x3F800000 >> 19) + 1;  // probabilities relative to the best one: at most 1
  auto magnitude = [](float p) {
    uint32_t bits;
    __builtin_memcpy(&bits, &p, 4);
    return (int)(bits >> 19);
  };
  double sums[MAGNITUDES] = {};
  for (int64_t i = 0; i < count; ++i) sums[magnitude(c[i].p)] += (double)c[i].p;
  double sum = 0.0;
  int m = MAGNITUDES - 1;
  while (m > 0 && sum + sums[m] < want) sum += sums[m--];
  int64_t n = 0;
  for (int64_t i = 0; i < count; ++i)
    if (magnitude(c[i].p) == m) work[n++] = c[i];
  if (!n) return count;  // rounding left a little unreached: keep all
  std::sort(work, work + n, before);
  int64_t last = 0;
  while (last < n - 1 && (sum += (double)work[last].p) < want) ++last;
  return keep_until(c, count, work[last]);
}

// Locally typical sampling (Meister et al. 2022, arXiv:2202.00666), over what the candidates before have left: keep those
// whose surprise is nearest to the mean surprise, the entropy, until their probabilities reach `mass` of the whole; in
// ascending token order.
int64_t keep_typical(Candidate* c, int64_t count, double mass, Candidate* work) {
  double total = 0.0, entropy = 0.0;
  for (int64_t i = 0; i < count; ++i) total += (double)c[i].p;
  for (int64_t i = 0; i < count; ++i) {
    const double q = (double)c[i].p / total;
    entropy -= q * log64(q);
  }
  for (int64_t i = 0; i < count; ++i) {
    const double off = -log64((double)c[i].p / total) - entropy;
    work[i] = {(float)(off < 0.0 ? off : -off), (int32_t)i};  // nearest first
  }
  std::sort(work, work + count, before);
  double sum = 0.0;
  int64_t kept = 0;
  while (kept < count && sum < mass * total) sum += (double)c[work[kept++].id].p;
  std::sort(work, work + kept, [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  for (int64_t i = 0; i < kept; ++i) c[i] = c[work[i].id];
  return kept;
}

struct Scratch {
  float* p;            // [vocab]
  float* sums;         // [vocab / SUM_TILE + 1]
  int32_t* counts;     // [vocab], all zero between calls
  Candidate* best;     // [2 * vocab]
  Candidate* work;     // [vocab]
  Candidate* changed;  // [2 * vocab], raw logits that penalties or biases replaced
  int64_t num_changed = 0;
  Scratch(uint8_t* at, int64_t vocab) {
    const int64_t v = (vocab + 15) / 16 * 16;
    counts = (int32_t*)at;
    p = (float*)(counts + v);
    sums = p + v;
    best = (Candidate*)(sums + v / SUM_TILE + 16);
    work = best + 2 * v;
    changed = work + v;
  }
  float raw(const float* x, int32_t id) const {
    for (int64_t i = 0; i < num_changed; ++i)
      if (changed[i].id == id) return changed[i].p;
    return x[id];
  }
};

// Penalties as vLLM defines them (repetition over prompt and output, frequency and presence over the output), then biases.
void adjust(const SampleArgs& a, int64_t row, float* x, Scratch& s) {
  constexpr int32_t IN_PROMPT = 1 << 30;
  if (a.output_offsets) {
    const float repetition = a.repetition[row], frequency = a.frequency[row], presence = a.presence[row];
    const int32_t *prompt = a.prompt_tokens + a.prompt_offsets[row], *prompt_end = a.prompt_tokens + a.prompt_offsets[row + 1];
    const int32_t *output = a.output_tokens + a.output_offsets[row], *output_end = a.output_tokens + a.output_offsets[row + 1];
    for (const int32_t* t = prompt; t < prompt_end; ++t) s.counts[*t] |= IN_PROMPT;
    for (const int32_t* t = output; t < output_end; ++t) s.counts[*t] += 1;
    auto penalize = [&](int32_t id) {
      const int32_t count = s.counts[id] & ~IN_PROMPT;
      if (!s.counts[id]) return;  // seen before in this walk
      s.counts[id] = 0;
      s.changed[s.num_changed++] = {x[id], id};
      if (repetition != 1.0f) x[id] = x[id] > 0.0f ? x[id] / repetition : x[id] * repetition;
      x[id] -= frequency * (float)count;
      if (count) x[id] -= presence;
    };
    for (const int32_t* t = prompt; t < prompt_end; ++t) penalize(*t);
    for (const int32_t* t = output; t < output_end; ++t) penalize(*t);
  }
  if (a.bias_offsets) {
    const int32_t first = a.bias_offsets[row], last = a.bias_offsets[row + 1];
    for (int32_t i = first; i < last; ++i) {
      const int32_t id = a.bias_tokens[i];
      if (!s.counts[id]) s.changed[s.num_changed++] = {x[id], id};  // once a token, however often it is named
      s.counts[id] = 1;
      x[id] += a.bias_values[i];
    }
    for (int32_t i = first; i < last; ++i) s.counts[a.bias_tokens[i]] = 0;
  }
}

// Logits of tokens that the row's mask does not allow become -infinity. Most words of a mask are all ones or all zeros.
void apply_mask(const SampleArgs& a, int64_t row, float* x) {
  if (!a.mask_rows || a.mask_rows[row] < 0) return;
  const uint32_t* mask = a.masks + a.mask_rows[row] * ((a.vocab + 31) / 32);
  for (int64_t first = 0; first < a.vocab; first += 32) {
    const uint32_t word = mask[first / 32];
    if (word == ~0u) continue;
    const int64_t count = a.vocab - first < 32 ? a.vocab - first : 32;
    for (int64_t i = 0; i < count; ++i) x[first + i] = word >> i & 1 ? x[first + i] : -INF;
  }
}

int32_t draw(const SampleArgs& a, int64_t row, const float* x, Scratch& s) {
  const int64_t n = a.vocab;
  const float inverse = 1.0f / a.temperature[row], top_p = a.top_p[row], min_p = a.min_p[row];
  const double u = uniform(a.seed[row], (uint32_t)a.choice[row], (uint32_t)a.position[row]);
  const float top = maximum(x, n);
  const double total = exponentials(x, n, top, inverse, s.p, s.sums);
  if (!(total > 0.0)) return argmax(x, n);  // nothing is allowed, or not a number: take what greedy takes
  const int64_t k = a.top_k[row] > 0 && a.top_k[row] < n ? a.top_k[row] : 0;
  const float typical = a.typical_p ? a.typical_p[row] : 1.0f;
  if (!k && top_p >= 1.0f && min_p <= 0.0f && typical >= 1.0f) return draw_all(s.p, s.sums, n, total, u);
  // The most likely token has p = 1 here, so min-p is a floor as it stands. Tokens below (1 - top_p) / n of the mass lie
  // outside the nucleus whatever they are.
  float floor = min_p > 0.0f ? min_p : std::numeric_limits<float>::min();
  if (k) {
    const int64_t found = top_k(s.p, n, k, floor, s.best);
    if (found == k) floor = s.best[k - 1].p;
  } else if (min_p <= 0.0f) floor = std::max(floor, (float)((1.0 - (double)top_p) * total / (double)n * 0.999));
  int64_t count = gather(s.p, n, floor, s.best);
  if (k) count = keep_best(s.best, count, k, s.work);
  if (top_p < 1.0f) {
    double kept = total;
    if (k || min_p > 0.0f) {
      kept = 0.0;
      for (int64_t i = 0; i < count; ++i) kept += (double)s.best[i].p;
    }
    count = keep_nucleus(s.best, count, (double)top_p * kept, s.work);
  }
  if (typical < 1.0f) count = keep_typical(s.best, count, (double)typical, s.work);
  return draw_listed(s.best, count, u);
}

}  // namespace

void sample_row(const SampleArgs& a, int64_t row, uint8_t* scratch) {
  Scratch s(scratch, a.vocab);
  float* x = a.logits + row * a.vocab;
  const float top = maximum(x, a.vocab);
  const double log_total = (double)top + log64(exponentials(x, a.vocab, top, 1.0f, nullptr, nullptr));
  auto logprob = [&](float raw) { return (float)((double)raw - log_total); };
  if (a.top_width) {
    int32_t* ids = a.out_top_token + row * a.top_width;
    float* values = a.out_top_logprob + row * a.top_width;
    const int64_t count = a.num_top[row] > 0 ? top_k(x, a.vocab, a.num_top[row], -INF, s.best) : 0;
    for (int64_t i = 0; i < a.top_width; ++i) {
      ids[i] = i < count ? s.best[i].id : -1;
      values[i] = i < count ? logprob(s.best[i].p) : 0.0f;
    }
  }
  int32_t token = a.target[row];
  const float first = x[0];  // which is taken where a mask allows nothing
  if (token < 0) {
    adjust(a, row, x, s);
    apply_mask(a, row, x);
    token = a.temperature[row] > 0.0f ? draw(a, row, x, s) : argmax(x, a.vocab);
  }
  a.out_token[row] = token;
  a.out_logprob[row] = logprob(token ? s.raw(x, token) : first);
}

}  // namespace tt::TT_ISA
