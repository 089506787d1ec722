#include "pack.h"

#include <atomic>
#include <cstring>
#include <stdexcept>

namespace tt {

namespace {

// Thirty-two weights of one column, taken apart: quantized values as unsigned bytes, and the two half-precision factors.
struct Group {
  uint8_t q[GROUP];
  uint16_t scale, min;
};

// A stored format in blocks of 32 weights, and how one block is read.
struct Format {
  const char* name;
  Layout layout;
  int block_values, block_bytes;
  void (*read)(const uint8_t* block, Group* group);
};

void read_nibbles(const uint8_t* qs, Group* g) {
  for (int i = 0; i < 16; ++i) {
    g->q[i] = qs[i] & 15;
    g->q[i + 16] = qs[i] >> 4;
  }
}
void read_q4_0(const uint8_t* b, Group* g) {
  std::memcpy(&g->scale, b, 2);
  read_nibbles(b + 2, g);
}
void read_q4_1(const uint8_t* b, Group* g) {
  std::memcpy(&g->scale, b, 2);
  std::memcpy(&g->min, b + 2, 2);
  read_nibbles(b + 4, g);
}
void read_q8_0(const uint8_t* b, Group* g) {
  std::memcpy(&g->scale, b, 2);
  for (int i = 0; i < GROUP; ++i) g->q[i] = b[2 + i] ^ 0x80;
}

const Format FORMATS[] = {
    {"Q4_0", Layout::Q4_ZERO8, 32, 18, read_q4_0}, {"Q4_1", Layout::Q4_MIN, 32, 20, read_q4_1},
    {"Q8_0", Layout::Q8, 32, 34, read_q8_0},       {"BF16", Layout::BF16, 1, 2, nullptr},
    {"F16", Layout::F16, 1, 2, nullptr},           {"F32", Layout::F32, 1, 4, nullptr},
};

const Format& find(const std::string& name) {
  for (const Format& f : FORMATS)
    if (name == f.name) return f;
  throw std::invalid_argument("no packed layout for weights stored as " + name);
}

// Words of four bytes: the unit that the layouts keep together.
TT_INLINE uint32_t load_word(const uint8_t* from) {
  uint32_t word;
  std::memcpy(&word, from, 4);
  return word;
}
TT_INLINE void store_word(uint8_t* to, uint32_t word) { std::memcpy(to, &word, 4); }

void pack_group(Layout layout, const Group* columns, uint8_t* to) {
  if (layout == Layout::Q8) {
    for (int c = 0; c < PANEL; ++c)
      for (int j = 0; j < 8; ++j) store_word(to + 64 * j + 4 * c, load_word(columns[c].q + 4 * j));
    to += 512;
  } else {
    // Load j of 64 bytes holds k = 8j … 8j+3 in the low nibbles and 8j+4 … 8j+7 in the high ones, four per column. A
    // quantized value has four bits, so shifting a word moves no bit into its neighbour's byte.
    for (int c = 0; c < PANEL; ++c)
      for (int j = 0; j < 4; ++j)
        store_word(to + 64 * j + 4 * c, load_word(columns[c].q + 8 * j) | load_word(columns[c].q + 8 * j + 4) << 4);
    to += 256;
  }
  for (int c = 0; c < PANEL; ++c) std::memcpy(to + 2 * c, &columns[c].scale, 2);
  if (layout == Layout::Q4_MIN)
    for (int c = 0; c < PANEL; ++c) std::memcpy(to + 32 + 2 * c, &columns[c].min, 2);
}

// Rows of `row_bytes` bytes, of which the first `count` elements of `Size` bytes go to to[element][column].
template <int Size> void transpose(const uint8_t* rows, size_t row_bytes, int cols, int64_t count, uint8_t* to) {
  for (int64_t i = 0; i < count; ++i)
    for (int c = 0; c < cols; ++c) std::memcpy(to + (i * PANEL + c) * Size, rows + (size_t)c * row_bytes + i * Size, Size);
}

void pack_panel(const Format& f, const Matrix& m, const uint8_t* data, int64_t k, int64_t panel, uint8_t* to) {
  const int64_t col0 = panel * PANEL;
  const int cols = (int)(m.n - col0 < PANEL ? m.n - col0 : PANEL);
  const size_t row_bytes = (size_t)(k / f.block_values) * f.block_bytes;
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
  Group columns[PANEL];
  std::memset(columns, 0, sizeof columns);
  for (int64_t g = 0; g < k / GROUP; ++g, to += group_bytes(f.layout)) {
    for (int c = 0; c < cols; ++c) f.read(rows + (size_t)c * row_bytes + (size_t)g * f.block_bytes, &columns[c]);
    pack_group(f.layout, columns, to);
  }
}

int64_t padded_k(int64_t k) { return (k + GROUP - 1) / GROUP * GROUP; }

}  // namespace

Layout layout_of(const std::string& format) { return find(format).layout; }

size_t stored_bytes(const std::string& format, int64_t n, int64_t k) {
  const Format& f = find(format);
  if (n <= 0 || k <= 0 || n > INT32_MAX || k > INT32_MAX || n * k > (int64_t)1 << 48) throw std::invalid_argument("matrix sizes are out of range");
  if (k % f.block_values) throw std::invalid_argument("rows of " + std::to_string(k) + " values do not divide into blocks of " + format);
  return (size_t)n * (size_t)(k / f.block_values) * f.block_bytes;
}

size_t packed_bytes(Layout layout, int64_t n, int64_t k) {
  if (n <= 0 || k <= 0 || n > INT32_MAX || k > INT32_MAX) throw std::invalid_argument("matrix sizes are out of range");
  return (size_t)((n + PANEL - 1) / PANEL) * (size_t)(padded_k(k) / GROUP) * group_bytes(layout);
}

Matrix pack(Arena& arena, ThreadPool& pool, const std::string& format, const uint8_t* data, int64_t n, int64_t k) {
  const Format& f = find(format);
  Matrix m{f.layout, n, padded_k(k), nullptr};
  uint8_t* to = arena.allocate(packed_bytes(f.layout, n, k));
  m.data = to;
  std::atomic<int64_t> next{0};
  pool.run([&](int) {
    for (int64_t p; (p = next.fetch_add(1)) < m.panels();) pack_panel(f, m, data, k, p, to + (size_t)p * m.panel_bytes());
  });
  return m;
}

}  // namespace tt
