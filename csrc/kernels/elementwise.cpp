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

void silu_mul(const float* gate, const float* up, int64_t n, float* out) {
  const VF one = set1(1.0f);
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    const VF g = load(gate + i);
    store(out + i, g / (one + exp(zero() - g)) * load(up + i));
  }
  if (i < n) {
    const int left = (int)(n - i);
    const VF g = load_n(gate + i, left);
    store_n(out + i, g / (one + exp(zero() - g)) * load_n(up + i, left), left);
  }
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
