// Kernels that work on one row at a time: normalization, activation functions, rotary embedding.
#include "kernels/kernels.h"
#include "simd/vec.h"

namespace tt::TT_ISA {

void rms_norm(const float* x, const float* weight, float eps, float weight_offset, int64_t n, float* out) {
  // Sixteen partial sums over ascending positions, then the fixed tree.
  VF squares = zero();
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    const VF v = load(x + i);
    squares = fma(v, v, squares);
  }
  const int left = (int)(n - i);
  if (left) {
    const VF v = load_n(x + i, left);
    squares = fma(v, v, squares);
  }
  const float mean = hsum(squares) / (float)n + eps;
  const VF inverse = set1(1.0f / __builtin_sqrtf(mean)), offset = set1(weight_offset);
  for (i = 0; i + LANES <= n; i += LANES) store(out + i, load(x + i) * inverse * (load(weight + i) + offset));
  if (left) store_n(out + i, load_n(x + i, left) * inverse * (load_n(weight + i, left) + offset), left);
}

namespace {

template <Gated G> inline VF gated_lanes(VF g, VF u) {
  const VF one = set1(1.0f);
  if constexpr (G == Gated::SWIGLU_OAI) {
    // Limits turn what is no number into one; the differences turn it back.
    const VF seven = set1(7.0f), bad = (g - g) + (u - u);
    const VF gate = min(g, seven), up = max(min(u, seven), zero() - seven);
    return gate / (one + exp(set1(-1.702f) * gate)) * (up + one) + bad;
  } else if constexpr (G == Gated::GELU_TANH) {
    // 0.5 g (1 + tanh(y)) = g / (1 + e^-2y) with y = sqrt(2/pi) (g + 0.044715 g^3): the second form does not cancel.
    return g / (one + exp(g * fma(g * g, set1(-0.0713548162726f), set1(-1.5957691216f)))) * u;
  } else {
    return g / (one + exp(zero() - g)) * u;
  }
}

template <Gated G> void gated_row(const float* gate, const float* up, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) store(out + i, gated_lanes<G>(load(gate + i), load(up + i)));
  if (i < n) {
    const int left = (int)(n - i);
    store_n(out + i, gated_lanes<G>(load_n(gate + i, left), load_n(up + i, left)), left);
  }
}

}  // namespace

void gated(Gated kind, const float* gate, const float* up, int64_t n, float* out) {
  switch (kind) {
    case Gated::SILU: return gated_row<Gated::SILU>(gate, up, n, out);
    case Gated::GELU_TANH: return gated_row<Gated::GELU_TANH>(gate, up, n, out);
    case Gated::SWIGLU_OAI: return gated_row<Gated::SWIGLU_OAI>(gate, up, n, out);
  }
}

void softcap(const float* x, float cap, int64_t n, float* out) {
  const VF limit = set1(cap);
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) store(out + i, limit * tanh(load(x + i) / limit));
  if (i < n) store_n(out + i, limit * tanh(load_n(x + i, (int)(n - i)) / limit), (int)(n - i));
}

void sigmoid_mul(float gate, const float* x, int64_t n, float* out) {
  const VF one = set1(1.0f), g = set1(gate);
  const VF weight = fma(g, zero(), one) / (one + exp(zero() - g));  // a gate that is no number makes none
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) store(out + i, weight * load(x + i));
  if (i < n) store_n(out + i, weight * load_n(x + i, (int)(n - i)), (int)(n - i));
}

void add(const float* a, const float* b, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) store(out + i, load(a + i) + load(b + i));
  if (i < n) store_n(out + i, load_n(a + i, (int)(n - i)) + load_n(b + i, (int)(n - i)), (int)(n - i));
}

void rope(float* x, int32_t heads, int32_t head_dim, int32_t dim, bool interleaved, const float* cos, const float* sin) {
  const int half = dim / 2;
  for (int h = 0; h < heads; ++h, x += head_dim) {
    if (interleaved) {
      for (int i = 0; i < half; ++i) {
        const float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cos[i] - b * sin[i];
        x[2 * i + 1] = a * sin[i] + b * cos[i];
      }
    } else {
      for (int i = 0; i < half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cos[i] - b * sin[i];
        x[i + half] = a * sin[i] + b * cos[i];
      }
    }
  }
}

}  // namespace tt::TT_ISA
