// Where the parts of an activation stand in memory.
#pragma once

#include "kernels/kernels.h"

namespace tt {

// Bytes of `rows` rows of `dim` values: as floats, as int8 groups, or both.
size_t activation_bytes(int64_t rows, int64_t dim, bool integers, bool floats);
// The activation in activation_bytes bytes at `at`, aligned to 64.
Activation place_activation(uint8_t* at, int64_t rows, int64_t dim, bool integers, bool floats);

}  // namespace tt
