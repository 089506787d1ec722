// Which instruction set to use.
#pragma once

#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace tt {

// Instruction sets that were compiled in and that this processor runs, best first.
std::vector<std::string> available_isas();
// The kernels of one of them; throws std::invalid_argument naming those there are.
const Kernels* kernels_for(const std::string& isa);

}  // namespace tt
