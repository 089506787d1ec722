#include "pack.h"

#include <atomic>
#include <charconv>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace tt {

namespace {

// A block of one column, taken apart: as Shape says, what stands in its header and in its records, one after the other.
struct Column {
  uint16_t half[2];
  uint8_t head;
  uint32_t word[64];
  uint8_t byte[24];
};

// A stored format whose blocks are those of its layout, and how one block is read.
struct Format {
  const char* name;
  Layout layout;
  int block_bytes;
  void (*read)(const uint8_t* block, Column* c);
  int block = 0;  // values of a block, where the layout leaves them open
};

TT_INLINE uint32_t load_word(const uint8_t* from) {
  uint32_t word;
  std::memcpy(&word, from, 4);
  return word;
}
TT_INLINE uint16_t load_half(const uint8_t* from) {
  uint16_t half;
  std::memcpy(&half, from, 2);
  return half;
}
TT_INLINE void load_words(uint32_t* to, const uint8_t* from, int count) { std::memcpy(to, from, 4 * (size_t)count); }

// A group's values, four a word, as planes of bits (see Shape).
using Runs = uint32_t[8];

void put_plane4(const Runs& v, uint32_t* words) {
  for (int j = 0; j < 4; ++j) words[j] = (v[2 * j] & 0x0F0F0F0F) | (v[2 * j + 1] & 0x0F0F0F0F) << 4;
}
void put_plane2(const Runs& v, int from, uint32_t* words) {
  for (int i = 0; i < 2; ++i) {
    words[i] = 0;
    for (int j = 0; j < 4; ++j) words[i] |= (v[4 * i + j] >> from & 0x03030303) << 2 * j;
  }
}
void put_plane1(const Runs& v, int from, uint32_t* word) {
  *word = 0;
  for (int j = 0; j < 8; ++j) *word |= (v[j] >> from & 0x01010101) << j;
}
template <int Bits> void put(const Runs& v, uint32_t* words) {
  if constexpr (Bits == 8) load_words(words, (const uint8_t*)v, 8);
  if constexpr (Bits == 4 || Bits == 5 || Bits == 6) put_plane4(v, words);
  if constexpr (Bits == 5) put_plane1(v, 4, words + 4);
  if constexpr (Bits == 6) put_plane2(v, 4, words + 4);
  if constexpr (Bits == 2 || Bits == 3) put_plane2(v, 0, words);
  if constexpr (Bits == 3) put_plane1(v, 2, words + 2);
  if constexpr (Bits == 1) put_plane1(v, 0, words);
}

// Sixteen bytes of nibbles: the low ones are values 0 … 15, the high ones 16 … 31.
TT_INLINE void nibbles(const uint8_t* qs, Runs& v) {
  for (int j = 0; j < 4; ++j) {
    v[j] = load_word(qs + 4 * j) & 0x0F0F0F0F;
    v[j + 4] = load_word(qs + 4 * j) >> 4 & 0x0F0F0F0F;
  }
}
// Four bits as four bytes.
TT_INLINE uint32_t spread_bits(uint32_t four) { return (four & 15) * 0x00204081u & 0x01010101; }
// Four times two bits as four bytes.
TT_INLINE uint32_t spread_pairs(uint32_t four) {
  four = (four | four << 12) & 0x000F000F;
  return (four | four << 6) & 0x03030303;
}
// Bits `at` and up of 32 bytes.
TT_INLINE void fields(const uint8_t* bytes, int at, uint32_t mask, Runs& v) {
  for (int j = 0; j < 8; ++j) v[j] = load_word(bytes + 4 * j) >> at & mask;
}

void read_q4_0(const uint8_t* b, Column* c) {
  Runs v;
  c->half[0] = load_half(b);
  nibbles(b + 2, v);
  put<4>(v, c->word);
}
void read_q4_1(const uint8_t* b, Column* c) {
  Runs v;
  c->half[0] = load_half(b), c->half[1] = load_half(b + 2);
  nibbles(b + 4, v);
  put<4>(v, c->word);
}
void read_q5(const uint8_t* high, const uint8_t* qs, Column* c) {
  Runs v;
  nibbles(qs, v);
  const uint32_t bits = load_word(high);
  for (int j = 0; j < 8; ++j) v[j] |= spread_bits(bits >> 4 * j) << 4;
  put<5>(v, c->word);
}
void read_q5_0(const uint8_t* b, Column* c) {
  c->half[0] = load_half(b);
  read_q5(b + 2, b + 6, c);
}
void read_q5_1(const uint8_t* b, Column* c) {
  c->half[0] = load_half(b), c->half[1] = load_half(b + 2);
  read_q5(b + 4, b + 8, c);
}
void read_q8_0(const uint8_t* b, Column* c) {
  c->half[0] = load_half(b);
  for (int j = 0; j < 8; ++j) c->word[j] = load_word(b + 2 + 4 * j) ^ 0x80808080;
}

// Scales and minima in six bits: those of the groups 0 … 3 in the first eight bytes, whose upper bits belong to the others.
void read_k_scales(const uint8_t* s, uint8_t* bytes) {
  for (int g = 0; g < 4; ++g) {
    bytes[2 * g] = s[g] & 63;
    bytes[2 * g + 1] = s[g + 4] & 63;
    bytes[2 * g + 8] = (uint8_t)((s[g + 8] & 15) | (s[g] >> 6 << 4));
    bytes[2 * g + 9] = (uint8_t)(s[g + 8] >> 4 | (s[g + 4] >> 6 << 4));
  }
}
void read_q4_k(const uint8_t* b, Column* c) {
  c->half[0] = load_half(b), c->half[1] = load_half(b + 2) ^ 0x8000;
  read_k_scales(b + 4, c->byte);
  for (int g = 0; g < 8; ++g) {
    Runs v;
    fields(b + 16 + g / 2 * 32, g % 2 * 4, 0x0F0F0F0F, v);
    put<4>(v, c->word + 4 * g);
  }
}
void read_q5_k(const uint8_t* b, Column* c) {
  c->half[0] = load_half(b), c->half[1] = load_half(b + 2) ^ 0x8000;
  read_k_scales(b + 4, c->byte);
  for (int g = 0; g < 8; ++g) {
    Runs v, high;
    fields(b + 48 + g / 2 * 32, g % 2 * 4, 0x0F0F0F0F, v);
    fields(b + 16, g, 0x01010101, high);
    for (int j = 0; j < 8; ++j) v[j] |= high[j] << 4;
    put<5>(v, c->word + 5 * g);
  }
}
void read_q6_k(const uint8_t* b, Column* c) {
  c->half[0] = load_half(b + 208);
  std::memcpy(c->byte, b + 192, 16);
  for (int g = 0; g < 8; ++g) {
    Runs v, high;
    fields(b + g / 4 * 64 + g % 2 * 32, g % 4 / 2 * 4, 0x0F0F0F0F, v);
    fields(b + 128 + g / 4 * 32, g % 4 * 2, 0x03030303, high);
    for (int j = 0; j < 8; ++j) v[j] |= high[j] << 4;
    put<6>(v, c->word + 6 * g);
  }
}
void read_q2_k(const uint8_t* b, Column* c) {
  c->half[0] = load_half(b + 80), c->half[1] = load_half(b + 82) ^ 0x8000;
  std::memcpy(c->byte, b, 16);
  for (int g = 0; g < 8; ++g) {
    Runs v;
    fields(b + 16 + g / 4 * 32, g % 4 * 2, 0x03030303, v);
    put<2>(v, c->word + 2 * g);
  }
}
void read_q3_k(const uint8_t* b, Column* c) {
  const uint8_t* scales = b + 96;
  c->half[0] = load_half(b + 108);
  for (int i = 0; i < 16; ++i) {
    const int low = i < 8 ? scales[i] & 15 : scales[i - 8] >> 4, high = scales[8 + i % 4] >> i / 4 * 2 & 3;
    c->byte[i] = (uint8_t)((low | high << 4) - 32);
  }
  for (int g = 0; g < 8; ++g) {
    Runs v, high;
    fields(b + 32 + g / 4 * 32, g % 4 * 2, 0x03030303, v);
    fields(b, g, 0x01010101, high);
    for (int j = 0; j < 8; ++j) v[j] |= high[j] << 2;
    put<3>(v, c->word + 3 * g);
  }
}
void read_iq4_xs(const uint8_t* b, Column* c) {
  c->half[0] = load_half(b);
  const uint32_t high = load_half(b + 2);
  for (int g = 0; g < 8; ++g) {
    c->byte[g] = (uint8_t)(((b[4 + g / 2] >> g % 2 * 4 & 15) | (high >> 2 * g & 3) << 4) - 32);
    Runs v;
    nibbles(b + 8 + 16 * g, v);
    put<4>(v, c->word + 4 * g);
  }
}
void read_mxfp4(const uint8_t* b, Column* c) {
  Runs v;
  c->byte[0] = b[0];
  nibbles(b + 1, v);
  put<4>(v, c->word);
}
void read_nvfp4(const uint8_t* b, Column* c) {
  // The scale has no sign, and 0x7F, which would be no number, counts as zero.
  for (int i = 0; i < 4; ++i) c->byte[i] = b[i] == 0x7F ? 0 : b[i] & 0x7F;
  for (int g = 0; g < 2; ++g) {
    Runs v;
    for (int h = 0; h < 2; ++h)
      for (int j = 0; j < 2; ++j) {
        const uint32_t both = load_word(b + 4 + 16 * g + 8 * h + 4 * j);
        v[4 * h + j] = both & 0x0F0F0F0F;
        v[4 * h + j + 2] = both >> 4 & 0x0F0F0F0F;
      }
    put<4>(v, c->word + 4 * g);
  }
}
void read_tq2_0(const uint8_t* b, Column* c) {
  c->half[0] = load_half(b + 64);
  for (int g = 0; g < 8; ++g) {
    Runs v;
    fields(b + g / 4 * 32, g % 4 * 2, 0x03030303, v);
    put<2>(v, c->word + 2 * g);
  }
}
void read_q2_0(const uint8_t* b, Column* c) {
  c->half[0] = load_half(b);
  for (int g = 0; g < 2; ++g) {
    Runs v;
    for (int j = 0; j < 8; ++j) v[j] = spread_pairs(b[2 + 8 * g + j]);
    put<2>(v, c->word + 2 * g);
  }
}
void read_q1_0(const uint8_t* b, Column* c) {
  c->half[0] = load_half(b);
  for (int g = 0; g < 4; ++g) {
    Runs v;
    for (int j = 0; j < 8; ++j) v[j] = spread_bits(load_word(b + 2 + 4 * g) >> 4 * j);
    put<1>(v, c->word + g);
  }
}
void read_tq1_0(const uint8_t* b, Column* c) {
  load_words(c->word, b, 13);
  c->half[0] = load_half(b + 52);
}

// Grid types: a group's indices, signs and scales side by side.
void read_iq2_xxs(const uint8_t* b, Column* c) {
  c->half[0] = load_half(b);
  load_words(c->word, b + 2, 16);
}
void read_iq2_xs(const uint8_t* b, Column* c) {
  c->half[0] = load_half(b);
  load_words(c->word, b + 2, 16);
  std::memcpy(c->byte, b + 66, 8);
}
void read_iq2_s(const uint8_t* b, Column* c) {
  c->half[0] = load_half(b);
  for (int g = 0; g < 8; ++g) {
    for (int i = 0; i < 2; ++i) c->word[2 * g + i] = load_word(b + 2 + 32 * i + 4 * g);
    for (int i = 0; i < 2; ++i) c->byte[2 * g + i] = b[66 + 8 * i + g];
  }
}
void read_iq3_xxs(const uint8_t* b, Column* c) {
  c->half[0] = load_half(b);
  for (int g = 0; g < 8; ++g) {
    load_words(c->word + 3 * g, b + 2 + 8 * g, 2);
    c->word[3 * g + 2] = load_word(b + 66 + 4 * g);
  }
}
void read_iq3_s(const uint8_t* b, Column* c) {
  c->half[0] = load_half(b);
  for (int g = 0; g < 8; ++g) {
    load_words(c->word + 3 * g, b + 2 + 8 * g, 2);
    c->word[3 * g + 2] = load_word(b + 74 + 4 * g);
    c->byte[2 * g] = b[66 + g];
    c->byte[2 * g + 1] = b[106 + g / 2] >> g % 2 * 4 & 15;
  }
}
void read_iq1_s(const uint8_t* b, Column* c) {
  c->half[0] = load_half(b);
  load_words(c->word, b + 2, 8);
  std::memcpy(c->byte, b + 34, 16);
}
void read_iq1_m(const uint8_t* b, Column* c) {
  const uint8_t* scales = b + 48;  // four halves: three bits for each half of two groups, and four bits of the block's scale
  load_words(c->word, b, 8);
  c->half[0] = 0;
  for (int i = 0; i < 4; ++i) c->half[0] |= (uint16_t)(load_half(scales + 2 * i) >> 12 << 4 * i);
  for (int g = 0; g < 8; ++g) {
    c->byte[3 * g] = b[32 + 2 * g];
    c->byte[3 * g + 1] = b[33 + 2 * g];
    c->byte[3 * g + 2] = load_half(scales + g / 2 * 2) >> g % 2 * 6 & 63;
  }
}

const Format FORMATS[] = {
    {"Q4_0", Layout::Q4_0, 18, read_q4_0},          {"Q4_1", Layout::Q4_1, 20, read_q4_1},
    {"Q5_0", Layout::Q5_0, 22, read_q5_0},          {"Q5_1", Layout::Q5_1, 24, read_q5_1},
    {"Q8_0", Layout::Q8_0, 34, read_q8_0},          {"Q2_K", Layout::Q2_K, 84, read_q2_k},
    {"Q3_K", Layout::Q3_K, 110, read_q3_k},         {"Q4_K", Layout::Q4_K, 144, read_q4_k},
    {"Q5_K", Layout::Q5_K, 176, read_q5_k},         {"Q6_K", Layout::Q6_K, 210, read_q6_k},
    {"IQ4_NL", Layout::IQ4_NL, 18, read_q4_0},      {"IQ4_XS", Layout::IQ4_XS, 136, read_iq4_xs},
    {"MXFP4", Layout::MXFP4, 17, read_mxfp4},       {"NVFP4", Layout::NVFP4, 36, read_nvfp4},
    {"TQ1_0", Layout::TQ1_0, 54, read_tq1_0},       {"TQ2_0", Layout::TQ2_0, 66, read_tq2_0, 256},
    {"Q1_0", Layout::Q1_0, 18, read_q1_0},          {"Q2_0", Layout::TQ2_0, 18, read_q2_0, 64},
    {"IQ2_XXS", Layout::IQ2_XXS, 66, read_iq2_xxs},
    {"IQ2_XS", Layout::IQ2_XS, 74, read_iq2_xs},    {"IQ2_S", Layout::IQ2_S, 82, read_iq2_s},
    {"IQ3_XXS", Layout::IQ3_XXS, 98, read_iq3_xxs}, {"IQ3_S", Layout::IQ3_S, 110, read_iq3_s},
    {"IQ1_S", Layout::IQ1_S, 50, read_iq1_s},       {"IQ1_M", Layout::IQ1_M, 56, read_iq1_m},
    {"BF16", Layout::BF16, 2, nullptr},             {"F16", Layout::F16, 2, nullptr},
    {"F32", Layout::F32, 4, nullptr},
};

constexpr int GROUPED_HEADER = 3;  // bytes of a G block before its values: scale and zero point

// How a format is stored and packed.
struct Packing {
  Layout layout;
  int64_t group;                      // values of a block, stored as packed; of floats, one
  size_t block_bytes;                 // as stored
  void (*read)(const uint8_t*, Column*);
  int bits = 0;                       // of G formats
};

[[noreturn]] void refuse(const std::string& format) { throw std::invalid_argument("no packed layout for weights stored as " + format); }

Packing find(const std::string& format) {
  for (const Format& f : FORMATS)
    if (format == f.name) {
      const int block = !is_integer(f.layout) ? 1 : f.block ? f.block : shape_of(f.layout).block;
      return {f.layout, block, (size_t)f.block_bytes, f.read};
    }
  // G{bits}_{group}
  static const std::pair<const char*, Layout> grouped[] = {{"G2_", Layout::G2}, {"G3_", Layout::G3}, {"G4_", Layout::G4}, {"G8_", Layout::G8}};
  for (const auto& [prefix, layout] : grouped) {
    if (format.compare(0, 3, prefix) || format.size() < 4 || format[3] == '0') continue;
    int64_t group = 0;
    const char* end = format.data() + format.size();
    const auto [at, error] = std::from_chars(format.data() + 3, end, group);
    if (error != std::errc() || at != end || group <= 0 || group > INT32_MAX || group % GROUP) refuse(format);
    const int bits = prefix[1] - '0';
    return {layout, group, (size_t)(GROUPED_HEADER + group / 8 * bits), nullptr, bits};
  }
  refuse(format);
}

// Thirty-two values of so many bits, the first one in the lowest.
void read_grouped(int bits, const uint8_t* from, uint32_t* words) {
  if (bits == 8) return load_words(words, from, 8);
  Runs v;
  for (int j = 0; j < 8; ++j) {
    uint32_t four = 0;  // the bits of four values
    const int at = j * bits / 2, odd = j * bits % 2 * 4;
    std::memcpy(&four, from + at, (size_t)(bits + 1) / 2);
    four >>= odd;
    const uint32_t mask = (1u << bits) - 1;
    v[j] = (four & mask) | (four >> bits & mask) << 8 | (four >> 2 * bits & mask) << 16 | (four >> 3 * bits & mask) << 24;
  }
  if (bits == 4) put<4>(v, words);
  else if (bits == 3) put<3>(v, words);
  else put<2>(v, words);
}

// The same part of each column's `Column`, side by side.
void put_halves(const Column* columns, int count, uint8_t*& to) {
  for (int i = 0; i < count; ++i)
    for (int c = 0; c < PANEL; ++c, to += 2) std::memcpy(to, &columns[c].half[i], 2);
}
void put_record(const Column* columns, const Shape& s, int index, uint8_t*& to) {
  for (int i = index * s.words; i < (index + 1) * s.words; ++i)
    for (int c = 0; c < PANEL; ++c, to += 4) std::memcpy(to, &columns[c].word[i], 4);
  for (int i = index * s.bytes; i < (index + 1) * s.bytes; ++i)
    for (int c = 0; c < PANEL; ++c) *to++ = columns[c].byte[i];
}

// Rows of `row_bytes` bytes, of which the first `count` elements of `Size` bytes go to to[element][column].
template <int Size> void transpose(const uint8_t* rows, size_t row_bytes, int cols, int64_t count, uint8_t* to) {
  for (int64_t i = 0; i < count; ++i)
    for (int c = 0; c < cols; ++c) std::memcpy(to + (i * PANEL + c) * Size, rows + (size_t)c * row_bytes + i * Size, Size);
}

void pack_panel(const Packing& f, const Matrix& m, const uint8_t* data, int64_t k, int64_t panel, uint8_t* to) {
  const int64_t col0 = panel * PANEL;
  const int cols = (int)(m.n - col0 < PANEL ? m.n - col0 : PANEL);
  const size_t row_bytes = (size_t)(k / f.group) * f.block_bytes;
  const uint8_t* rows = data + (size_t)col0 * row_bytes;
  switch (f.layout) {
    case Layout::BF16:  // pairs of K stand together
      transpose<4>(rows, row_bytes, cols, k / 2, to);
      if (k % 2)
        for (int c = 0; c < cols; ++c) std::memcpy(to + (size_t)(k / 2) * 64 + c * 4, rows + (size_t)c * row_bytes + (k - 1) * 2, 2);
      return;
    case Layout::F16: return transpose<2>(rows, row_bytes, cols, k, to);
    case Layout::F32: return transpose<4>(rows, row_bytes, cols, k, to);
    default: break;
  }
  const Shape s = shape_of(f.layout);
  Column columns[PANEL];
  std::memset(columns, 0, sizeof columns);
  for (int64_t block = 0; block < k / f.group; ++block) {
    const uint8_t* first = rows + (size_t)block * f.block_bytes;
    if (f.bits) {
      for (int c = 0; c < cols; ++c) columns[c].half[0] = load_half(first + (size_t)c * row_bytes), columns[c].head = first[(size_t)c * row_bytes + 2];
      put_halves(columns, 1, to);
      for (int c = 0; c < PANEL; ++c) *to++ = columns[c].head;
      for (int64_t g = 0; g < f.group / GROUP; ++g) {
        const size_t at = GROUPED_HEADER + (size_t)g * GROUP / 8 * (size_t)f.bits;
        for (int c = 0; c < cols; ++c) read_grouped(f.bits, first + (size_t)c * row_bytes + at, columns[c].word);
        put_record(columns, s, 0, to);
      }
      continue;
    }
    for (int c = 0; c < cols; ++c) f.read(first + (size_t)c * row_bytes, &columns[c]);
    put_halves(columns, s.halves, to);
    for (int i = 0; i < f.group / s.record; ++i) put_record(columns, s, i, to);
  }
}

// A matrix without memory.
Matrix shaped(const Packing& f, int64_t n, int64_t k) {
  const int64_t padded = (k + GROUP - 1) / GROUP * GROUP, group = is_integer(f.layout) ? f.group : GROUP;
  return {f.layout, n, padded, group, panel_bytes(f.layout, padded, group), nullptr};
}

void check_sizes(const Packing& f, const std::string& format, int64_t n, int64_t k) {
  if (n <= 0 || k <= 0 || n > INT32_MAX || k > INT32_MAX || n * k > (int64_t)1 << 48) throw std::invalid_argument("matrix sizes are out of range");
  if (k % f.group) throw std::invalid_argument("rows of " + std::to_string(k) + " values do not divide into blocks of " + format);
}

}  // namespace

Layout layout_of(const std::string& format) { return find(format).layout; }

const char* layout_name(Layout layout) {
  for (const Format& f : FORMATS)
    if (layout == f.layout) return f.name;
  return layout == Layout::G2 ? "G2" : layout == Layout::G3 ? "G3" : layout == Layout::G4 ? "G4" : "G8";
}

size_t stored_bytes(const std::string& format, int64_t n, int64_t k) {
  const Packing f = find(format);
  check_sizes(f, format, n, k);
  return (size_t)n * (size_t)(k / f.group) * f.block_bytes;
}

size_t packed_bytes(const std::string& format, int64_t n, int64_t k) {
  const Packing f = find(format);
  check_sizes(f, format, n, k);
  const Matrix m = shaped(f, n, k);
  return (size_t)m.panels() * m.panel_bytes;
}

std::vector<Matrix> pack(Arena& arena, ThreadPool& pool, const std::vector<Stored>& stored) {
  std::vector<Packing> packings;
  std::vector<Matrix> matrices;
  std::vector<uint8_t*> memory;
  std::vector<int64_t> ends;  // of each matrix's panels, among those of all
  for (const Stored& s : stored) {
    packings.push_back(find(s.format));
    matrices.push_back(shaped(packings.back(), s.n, s.k));
    Matrix& m = matrices.back();
    memory.push_back(arena.allocate((size_t)m.panels() * m.panel_bytes));
    m.data = memory.back();
    ends.push_back((ends.empty() ? 0 : ends.back()) + m.panels());
  }
  std::atomic<int64_t> next{0};
  pool.run([&](int) {
    size_t i = 0;
    for (int64_t p; !ends.empty() && (p = next.fetch_add(1)) < ends.back();) {
      while (p >= ends[i]) ++i;  // panels only go up
      const Matrix& m = matrices[i];
      const int64_t panel = p - (ends[i] - m.panels());
      pack_panel(packings[i], m, stored[i].data, stored[i].k, panel, memory[i] + (size_t)panel * m.panel_bytes);
    }
  });
  return matrices;
}

}  // namespace tt
