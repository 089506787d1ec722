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

void pack_group(Layout layout, const Group* columns, uint8_t* to) {
  if (layout == Layout::Q8) {
    for (int c = 0; c < PANEL; ++c)
      for (int k = 0; k < GROUP; ++k) to[64 * (k / 4) + 4 * c + k % 4] = columns[c].q[k];
    to += 512;
  } else {
    // Load j of 64 bytes holds k = 8j … 8j+3 in the low nibbles and 8j+4 … 8j+7 in the high ones, four per column.
    for (int c = 0; c < PANEL; ++c)
      for (int j = 0; j < 4; ++j)
        for (int i = 0; i < 4; ++i)
          to[64 * j + 4 * c + i] = (uint8_t)(columns[c].q[8 * j + i] | columns[c].q[8 * j + 4 + i] << 4);
    to += 256;
  }
  for (int c = 0; c < PANEL; ++c) std::memcpy(to + 2 * c, &columns[c].scale, 2);
  if (layout == Layout::Q4_MIN)
    for (int c = 0; c < PANEL; ++c) std::memcpy(to + 32 + 2 * c, &columns[c].min, 2);
}

void pack_panel(const Format& f, const Matrix& m, const uint8_t* data, int64_t k, int64_t panel, uint8_t* to) {
  const int64_t col0 = panel * PANEL;
  const int cols = (int)(m.n - col0 < PANEL ? m.n - col0 : PANEL);
  if (f.read) {
    const size_t row_bytes = (size_t)(k / GROUP) * f.block_bytes;
    for (int64_t g = 0; g < k / GROUP; ++g, to += group_bytes(f.layout)) {
      Group columns[PANEL];
      std::memset(columns, 0, sizeof columns);
      for (int c = 0; c < cols; ++c) f.read(data + (size_t)(col0 + c) * row_bytes + (size_t)g * f.block_bytes, &columns[c]);
      pack_group(f.layout, columns, to);
    }
    return;
  }
  const int bytes = f.block_bytes;
  for (int c = 0; c < cols; ++c) {
    const uint8_t* row = data + (size_t)(col0 + c) * k * bytes;
    for (int64_t i = 0; i < k; ++i) {
      const size_t at = f.layout == Layout::BF16 ? (size_t)(i / 2) * 64 + c * 4 + (i & 1) * 2 : (size_t)(i * PANEL + c) * bytes;
      std::memcpy(to + at, row + (size_t)i * bytes, bytes);
    }
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
