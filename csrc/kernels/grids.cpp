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

}  // namespace

constinit const Table<uint64_t, 2048> SHIFTED_GRID = shifted_grid();
constinit const Table<uint64_t, 256> SIGN_MASKS = sign_masks();
constinit const Table<uint64_t, 128> EVEN_SIGN_MASKS = even_sign_masks();

}  // namespace tt
