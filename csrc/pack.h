// Weights as files store them, packed into the kernels' layouts.
#pragma once

#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "memory.h"
#include "thread_pool.h"

namespace tt {

// The layout a stored format is packed into; throws std::invalid_argument for a format that has none.
Layout layout_of(const std::string& format);
// Bytes that [n, k] values take in a stored format; throws std::invalid_argument when k does not divide into its blocks.
size_t stored_bytes(const std::string& format, int64_t n, int64_t k);
// Bytes of the packed matrix; throws as stored_bytes does.
size_t packed_bytes(const std::string& format, int64_t n, int64_t k);
// The format that a layout holds, for G without its group.
const char* layout_name(Layout layout);

// `data` holds stored_bytes(format, n, k) bytes, row-major.
struct Stored {
  std::string format;
  const uint8_t* data;
  int64_t n, k;
};
// Side by side in memory, in this order. Many small matrices are packed together: waking the threads for each would take
// longer than the work.
std::vector<Matrix> pack(Arena& arena, ThreadPool& pool, const std::vector<Stored>& stored);

}  // namespace tt
