// Half precision (IEEE 754 binary16) from and to single, a number at a time; vectors have load_f16.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/layouts.h"

namespace tt {

// Rounded to nearest even; beyond the largest one infinity; NaN stays NaN.
TT_INLINE uint16_t to_half(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return (uint16_t)(sign | 0x7E00);
  if (magnitude >= 0x47800000) return (uint16_t)(sign | 0x7C00);
  if (magnitude < 0x38800000) {  // counts of 2^-24, in which single precision rounds next to 1/2
    float counted;
    std::memcpy(&counted, &magnitude, 4);
    counted += 0.5f;
    std::memcpy(&bits, &counted, 4);
    return (uint16_t)(sign | (bits - 0x3F000000));
  }
  return (uint16_t)(sign | (magnitude - (112u << 23) + 0xFFF + (magnitude >> 13 & 1)) >> 13);
}

TT_INLINE float from_half(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7FFF;
  if (magnitude < 0x0400) return (sign ? -0x1p-24f : 0x1p-24f) * (float)magnitude;
  const uint32_t bits = sign | (magnitude < 0x7C00 ? (magnitude << 13) + (112u << 23) : 0x7F800000 | magnitude << 13);
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

}  // namespace tt
