#include "activation.h"

namespace tt {

namespace {
size_t padded(size_t bytes) { return (bytes + 63) / 64 * 64; }
}  // namespace

size_t activation_bytes(int64_t rows, int64_t dim, bool integers, bool floats) {
  const size_t values = (size_t)rows * dim, groups = (size_t)rows * (dim / GROUP);
  size_t bytes = 64;
  if (floats) bytes += padded(values * 4);
  if (integers) bytes += 2 * padded(values) + 4 * padded(groups * 4) + padded(groups);
  return bytes;
}

Activation place_activation(uint8_t* at, int64_t rows, int64_t dim, bool integers, bool floats) {
  const size_t values = (size_t)rows * dim, groups = (size_t)rows * (dim / GROUP);
  auto take = [&](size_t bytes) {
    uint8_t* p = at;
    at += padded(bytes);
    return p;
  };
  Activation x;
  x.dim = dim;
  if (floats) x.f = (float*)take(values * 4);
  if (integers) {
    x.low = (int8_t*)take(values);
    x.high = (int8_t*)take(values);
    x.step = (float*)take(groups * 4);
    x.dsum = (float*)take(groups * 4);
    x.sum = (int32_t*)take(groups * 4);
    x.halves = (int16_t*)take(groups * 4);
    x.wide = take(groups);
  }
  return x;
}

}  // namespace tt
