// Mixtures of experts, a row at a time: which experts a router's scores choose, and what happens between and behind the
// experts' products.
#include "kernels/kernels.h"
#include "simd/vec.h"

namespace tt::TT_ISA {

namespace {

constexpr uint32_t ALL_LANES = 0xFFFF;

inline VF sigmoid(VF x) { return set1(1.0f) / (set1(1.0f) + exp(zero() - x)); }

// The first `n` lanes from memory, `fill` in the others.
inline VF load_or(const float* p, int n, float fill) { return select_range(load_n(p, n), set1(fill), 0, n); }

// exp(x - max x) of n values, which may be overwritten; returns their sum, by sixteen partial sums and the fixed tree.
float softmax_terms(const float* x, int64_t n, float* out) {
  VF top = set1(-INF), sum = zero();
  for (int64_t i = 0; i < n; i += LANES) top = max(load_or(x + i, (int)(n - i), -INF), top);
  const VF most = set1(hmax(top));
  for (int64_t i = 0; i < n; i += LANES) {
    // Lanes behind the end are zero: exp(-infinity).
    const VF e = exp(load_or(x + i, (int)(n - i), -INF) - most);
    store_n(out + i, e, (int)(n - i));
    sum = sum + e;
  }
  return hsum(sum);
}

template <class F> inline void each_lane(const float* x, int64_t n, float* out, F&& f) {
  for (int64_t i = 0; i < n; i += LANES) store_n(out + i, f(load_n(x + i, (int)(n - i))), (int)(n - i));
}

}  // namespace

void route(const RouteArgs& a, const float* scores, float* weights) {
  const int64_t n = a.experts;
  bool numbers = true;
  for (int64_t i = 0; i < n; i += LANES) {
    const VF v = load_n(scores + i, (int)(n - i));
    numbers &= mask_ge(v, v) == ALL_LANES;
  }
  // What scoring makes of the scores stands in `weights` meanwhile.
  const float* scored = weights;
  if (a.scoring == Scoring::SOFTMAX) {
    const VF sum = set1(softmax_terms(scores, n, weights));
    each_lane(weights, n, weights, [&](VF v) { return v / sum; });
  } else if (a.scoring == Scoring::SIGMOID) {
    each_lane(scores, n, weights, [](VF v) { return sigmoid(v); });
  } else {
    scored = scores;
  }

  // The best so far, in descending order; of equals the one that came first. What is no number is the least of all.
  float best[MAX_CHOSEN];
  int32_t ids[MAX_CHOSEN];
  int32_t count = 0;
  for (int64_t e = 0; e < n; ++e) {
    float by = a.correction ? scored[e] + a.correction[e] : scored[e];
    if (!(by == by)) by = -INF;
    if (count == a.chosen) {
      if (!(by > best[count - 1])) continue;
      --count;
    }
    int32_t at = count++;
    for (; at > 0 && best[at - 1] < by; --at) best[at] = best[at - 1], ids[at] = ids[at - 1];
    best[at] = by, ids[at] = (int32_t)e;
  }
  for (int32_t i = 1; i < count; ++i) {  // ids in ascending order
    const int32_t id = ids[i];
    int32_t at = i;
    for (; at > 0 && ids[at - 1] > id; --at) ids[at] = ids[at - 1];
    ids[at] = id;
  }

  float picked[MAX_CHOSEN];
  for (int32_t i = 0; i < count; ++i) picked[i] = scored[ids[i]];
  float sum = 1.0f;
  if (a.scoring == Scoring::SOFTMAX_OF_CHOSEN) {
    sum = softmax_terms(picked, count, picked);
  } else if (a.normalize) {
    sum = 0.0f;
    for (int32_t i = 0; i < count; ++i) sum += picked[i];
    if (sum < LEAST_WEIGHT) sum = LEAST_WEIGHT;
  }
  for (int64_t e = 0; e < n; ++e) weights[e] = 0.0f;
  // A score that is no number makes its row none, to be seen; it chooses as many experts as any other.
  for (int32_t i = 0; i < count; ++i) weights[ids[i]] = numbers ? picked[i] / sum * a.scale : __builtin_nanf("");
}

int32_t chosen_of(const float* weights, int64_t experts, int32_t limit, int32_t* ids) {
  int32_t count = 0;
  for (int64_t i = 0; i < experts; i += LANES) {
    // Zeros behind the end are not chosen. What is no number is.
    uint32_t lanes = ~mask_ge(zero(), abs(load_n(weights + i, (int)(experts - i)))) & ALL_LANES;
    for (; lanes && count < limit; lanes &= lanes - 1) ids[count++] = (int32_t)i + __builtin_ctz(lanes);
  }
  return count;
}

void add_scaled(const float* x, float scale, int64_t n, float* out) {
  const VF by = set1(scale);
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) store(out + i, fma(load(x + i), by, load(out + i)));
  if (i < n) {
    const int left = (int)(n - i);
    store_n(out + i, fma(load_n(x + i, left), by, load_n(out + i, left)), left);
  }
}

}  // namespace tt::TT_ISA
