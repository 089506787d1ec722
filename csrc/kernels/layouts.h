// How weights are packed. A matrix [N, K] is cut into panels of 16 output columns (the last one padded with zeros). A panel is
// a run of blocks along K; a block is a header (scales) and a run of records (values, and scales of their own).
#pragma once

#include <cstddef>
#include <cstdint>

// Inline helpers must never survive as a function of their own: the linker would keep one copy for all instruction sets.
#define TT_INLINE inline __attribute__((always_inline))

namespace tt {

constexpr int GROUP = 32;  // values of K that share a step of the activations
constexpr int PANEL = 16;  // output columns packed together, one per vector lane

// Named after the formats they hold, exactly as precise: ggml's types; G: `group` values with a scale and a zero point.
enum class Layout : int32_t {
  // Values of 4 or 8 bits that products take as they are.
  Q4_0, Q4_1, Q4_K, G4, Q8_0, G8,
  // Planes of bits, put together in registers.
  Q5_0, Q5_1, Q5_K, Q6_K, Q2_K, Q3_K, IQ4_NL, IQ4_XS, MXFP4, NVFP4, TQ2_0, Q1_0, G2, G3,
  // Indices into grids, signs, digits of three: the bytes of the file.
  TQ1_0, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ1_S, IQ1_M,
  // BF16: [K/2][16][2], the others [K][16].
  BF16, F16, F32,
};
TT_INLINE constexpr bool is_integer(Layout l) { return l < Layout::BF16; }

// A panel's block: `halves` times 16 half-precision numbers and `head` times 16 bytes; then, for every `record` values of K,
// `words` times 16 words of four bytes and `bytes` times 16 bytes. Everywhere, column after column.
//
// Words hold values as products take them, four of a column side by side: run j of a group is its values 4 j … 4 j + 3.
// With 8 bits, word j is run j; with 4 bits (word j of the first four), runs 2 j and 2 j + 1 from the low bits up; with
// 2 bits (two words), runs 4 j … 4 j + 3; with 1 bit (one word), all eight. Other widths are made of these planes: the 4 low
// bits first, or the 2 low ones. Of grid types words are the file's indices, then signs.
struct Shape {
  int block;  // values of K behind one header; 0: as the matrix says
  int halves, head;
  int record, words, bytes;
  TT_INLINE constexpr size_t header_bytes() const { return (size_t)halves * 2 * PANEL + (size_t)head * PANEL; }
  TT_INLINE constexpr size_t record_bytes() const { return (size_t)words * 4 * PANEL + (size_t)bytes * PANEL; }
};

TT_INLINE constexpr Shape shape_of(Layout l) {
  switch (l) {
    case Layout::Q4_0: return {32, 1, 0, 32, 4, 0};     // d
    case Layout::Q4_1: return {32, 2, 0, 32, 4, 0};     // d, m
    case Layout::Q8_0: return {32, 1, 0, 32, 8, 0};
    case Layout::G2: return {0, 1, 1, 32, 2, 0};        // scale; zero point
    case Layout::G3: return {0, 1, 1, 32, 3, 0};
    case Layout::G4: return {0, 1, 1, 32, 4, 0};
    case Layout::G8: return {0, 1, 1, 32, 8, 0};
    case Layout::Q5_0: return {32, 1, 0, 32, 5, 0};
    case Layout::Q5_1: return {32, 2, 0, 32, 5, 0};
    case Layout::Q4_K: return {256, 2, 0, 32, 4, 2};    // d, -dmin; scale and minimum of each group
    case Layout::Q5_K: return {256, 2, 0, 32, 5, 2};
    case Layout::Q2_K: return {256, 2, 0, 32, 2, 2};    // scale and minimum in one byte, of each half of a group
    case Layout::Q3_K: return {256, 1, 0, 32, 3, 2};    // signed scales of the halves
    case Layout::Q6_K: return {256, 1, 0, 32, 6, 2};
    case Layout::IQ4_NL: return {32, 1, 0, 32, 4, 0};
    case Layout::IQ4_XS: return {256, 1, 0, 32, 4, 1};  // signed scale
    case Layout::MXFP4: return {32, 0, 0, 32, 4, 1};    // exponent
    case Layout::NVFP4: return {64, 0, 0, 32, 4, 2};    // scales of the halves in E4M3
    case Layout::TQ2_0: return {0, 1, 0, 32, 2, 0};    // and Q2_0, with a scale for 64 values
    case Layout::Q1_0: return {128, 1, 0, 32, 1, 0};
    case Layout::TQ1_0: return {256, 1, 0, 256, 13, 0};
    case Layout::IQ2_XXS: return {256, 1, 0, 32, 2, 0};  // indices; signs and scale
    case Layout::IQ2_XS: return {256, 1, 0, 32, 2, 1};   // indices with signs; scales
    case Layout::IQ2_S: return {256, 1, 0, 32, 2, 2};    // indices, signs; high bits of indices, scales
    case Layout::IQ3_XXS: return {256, 1, 0, 32, 3, 0};  // indices, indices; signs and scale
    case Layout::IQ3_S: return {256, 1, 0, 32, 3, 2};    // indices, indices, signs; high bits of indices, scale
    case Layout::IQ1_S: return {256, 1, 0, 32, 1, 2};    // indices; high bits, scale and sign of the shift, low byte first
    case Layout::IQ1_M: return {256, 1, 0, 32, 1, 3};    // indices; high bits and signs of the shifts; scales
    case Layout::BF16: case Layout::F16: return {32, 0, 0, 32, 16, 0};
    case Layout::F32: return {32, 0, 0, 32, 32, 0};
  }
  return {};
}

struct Matrix {
  Layout layout;
  int64_t n, k;        // k counts padded values for the float layouts too: a multiple of 32
  int64_t group;       // values of K behind one header
  size_t panel_bytes;  // of all blocks of a panel
  const uint8_t* data;
  TT_INLINE int64_t panels() const { return (n + PANEL - 1) / PANEL; }
};

TT_INLINE size_t panel_bytes(Layout layout, int64_t k, int64_t group) {
  const Shape s = shape_of(layout);
  return (size_t)(k / group) * s.header_bytes() + (size_t)(k / s.record) * s.record_bytes();
}

}  // namespace tt
