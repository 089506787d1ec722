// Elementary functions in double precision from IEEE additions, multiplications and divisions alone: the same bits on
// every machine, which libm does not promise. Internal linkage on purpose: the file is compiled for several instruction sets.
#pragma once

#include <cstdint>

namespace tt {
namespace {

// Natural logarithm of a positive, normal number: x = m 2^e with m in [sqrt(1/2), sqrt(2)], then the atanh series. Error below 1e-13.
[[maybe_unused]] double log64(double x) {
  uint64_t bits;
  __builtin_memcpy(&bits, &x, 8);
  int64_t e = (int64_t)(bits >> 52) - 1023;
  bits = (bits & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull;
  double m;
  __builtin_memcpy(&m, &bits, 8);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    e += 1;
  }
  const double t = (m - 1.0) / (m + 1.0), t2 = t * t;
  double p = 1.0 / 23.0;
  for (int n = 21; n >= 1; n -= 2) p = p * t2 + 1.0 / n;
  return (double)e * 0.6931471805599453 + 2.0 * t * p;
}

// e^x for |x| < 700: x = n ln2 + r, Taylor polynomial of degree 13. Relative error below 1e-15.
[[maybe_unused]] double exp64(double x) {
  const double scaled = x * 1.4426950408889634;
  const int64_t n = (int64_t)(scaled + (scaled < 0 ? -0.5 : 0.5));
  const double r = (x - (double)n * 0.6931471803691238) - (double)n * 1.9082149292705877e-10;
  double p = 1.0;
  for (int i = 13; i >= 1; --i) p = 1.0 + p * r / i;
  const uint64_t bits = (uint64_t)(n + 1023) << 52;
  double two_n;
  __builtin_memcpy(&two_n, &bits, 8);
  return p * two_n;
}

// Sine and cosine of x, 0 <= x < 1e8: reduced by pi/2 in three parts (Cody and Waite), Taylor to x^17 and x^16. Error below 1e-13.
[[maybe_unused]] void sincos64(double x, double* sine, double* cosine) {
  const int64_t n = (int64_t)(x * 0.6366197723675814 + 0.5);
  const double f = (double)n;
  double r = x - f * 1.57079632673412561417e+00;
  r -= f * 6.07710050630396597660e-11;
  r -= f * 2.02226624879595063154e-21;
  const double r2 = r * r;
  double s = 1.0 / 355687428096000.0 - r2 / 121645100408832000.0;
  s = -1.0 / 1307674368000.0 + r2 * s;
  s = 1.0 / 6227020800.0 + r2 * s;
  s = -1.0 / 39916800.0 + r2 * s;
  s = 1.0 / 362880.0 + r2 * s;
  s = -1.0 / 5040.0 + r2 * s;
  s = 1.0 / 120.0 + r2 * s;
  s = -1.0 / 6.0 + r2 * s;
  s = r + r * r2 * s;
  double c = 1.0 / 20922789888000.0 - r2 / 6402373705728000.0;
  c = -1.0 / 87178291200.0 + r2 * c;
  c = 1.0 / 479001600.0 + r2 * c;
  c = -1.0 / 3628800.0 + r2 * c;
  c = 1.0 / 40320.0 + r2 * c;
  c = -1.0 / 720.0 + r2 * c;
  c = 1.0 / 24.0 + r2 * c;
  c = -0.5 + r2 * c;
  c = 1.0 + r2 * c;
  switch (n & 3) {
    case 0: *sine = s, *cosine = c; break;
    case 1: *sine = c, *cosine = -s; break;
    case 2: *sine = -s, *cosine = -c; break;
    default: *sine = -c, *cosine = s; break;
  }
}

}  // namespace
}  // namespace tt
