#include "kernels/grids.h"

#include "codebooks.h"

namespace tt {

namespace {

constexpr Table<uint64_t, 2048> shifted_grid() {
  Table<uint64_t, 2048> grid{};
  for (int i = 0; i < 2048; ++i)
    for (int v = 0; v < 8; ++v) {
      const int value = (int8_t)(IQ1S_CODEBOOK[i] >> 8 * v & 0xFF);
      grid.at[i] |= (uint64_t)(8 * value + SHIFTED_ZERO) << 8 * v;
    }
  return grid;
}

constexpr Table<uint64_t, 256> sign_masks() {
  Table<uint64_t, 256> masks{};
  for (int i = 0; i < 256; ++i)
    for (int bit = 0; bit < 8; ++bit)
      if (i >> bit & 1) masks.at[i] |= (uint64_t)0xFF << 8 * bit;
  return masks;
}

constexpr Table<uint64_t, 128> even_sign_masks() {
  Table<uint64_t, 128> masks{};
  for (int i = 0; i < 128; ++i) {
    int number = 0;
    for (int bit = 0; bit < 7; ++bit) number += i >> bit & 1;
    masks.at[i] = sign_masks().at[i | number % 2 << 7];
  }
  return masks;
}

// Magnitudes in IQ2 are 8, 25 and 43; in IQ3_XXS 4, 12 … 52 and 62; odd numbers in IQ3_S; values in IQ1 are -1, 0 and 1.
template <int Bits, class Entry, int N, class F> constexpr Table<uint16_t, N> codes(const Entry (&codebook)[N], F code) {
  Table<uint16_t, N> table{};
  for (int i = 0; i < N; ++i)
    for (int v = 0; v < (int)sizeof(Entry); ++v) table.at[i] |= (uint16_t)(code((int8_t)(codebook[i] >> 8 * v & 0xFF)) << Bits * v);
  return table;
}

}  // namespace

constinit const Table<uint16_t, 256> IQ2XXS_CODES = codes<2>(IQ2XXS_CODEBOOK, [](int v) { return v / 16; });
constinit const Table<uint16_t, 512> IQ2XS_CODES = codes<2>(IQ2XS_CODEBOOK, [](int v) { return v / 16; });
constinit const Table<uint16_t, 1024> IQ2S_CODES = codes<2>(IQ2S_CODEBOOK, [](int v) { return v / 16; });
constinit const Table<uint16_t, 256> IQ3XXS_CODES = codes<3>(IQ3XXS_CODEBOOK, [](int v) { return v / 8; });
constinit const Table<uint16_t, 512> IQ3S_CODES = codes<3>(IQ3S_CODEBOOK, [](int v) { return v / 2; });
constinit const Table<uint16_t, 2048> IQ1S_CODES = codes<2>(IQ1S_CODEBOOK, [](int v) { return v + 1; });

constinit const Table<uint64_t, 2048> SHIFTED_GRID = shifted_grid();
constinit const Table<uint64_t, 256> SIGN_MASKS = sign_masks();
constinit const Table<uint64_t, 128> EVEN_SIGN_MASKS = even_sign_masks();

}  // namespace tt
