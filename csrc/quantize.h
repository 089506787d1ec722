// Quantization on loading, over several threads (kernels/quantize_weights.cpp).
#pragma once

#include <string>
#include <utility>

#include "kernels/kernels.h"
#include "thread_pool.h"

namespace tt {

// Bytes of so many groups of 32 values in full precision, or as quantized blocks; throws std::invalid_argument for a format
// that is neither F32, F16, BF16 (`full`) nor Q8_0, Q4_0.
size_t group_bytes(const std::string& format, bool full);

// `count` groups in format `source` become blocks in format `target`. Returns sums of squares: of errors, and of values. They
// do not depend on the threads.
std::pair<double, double> quantize_weights(ThreadPool& pool, const Kernels& kernels, const std::string& source, const std::string& target,
                                           const uint8_t* from, int64_t count, uint8_t* to);

}  // namespace tt
