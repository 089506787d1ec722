#include "dispatch.h"

#include <stdexcept>

namespace tt {

namespace {

struct Entry {
  const char* name;
  const Kernels* (*kernels)();
  bool supported;
};

std::vector<Entry> entries() {
  std::vector<Entry> all;
#ifdef TT_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni");
  all.push_back({"avx512_bf16", kernels_avx512_bf16, avx512 && __builtin_cpu_supports("avx512bf16")});
  all.push_back({"avx512", kernels_avx512, avx512});
  all.push_back({"avx2", kernels_avx2, avx2});
#endif
  all.push_back({"portable", kernels_portable, true});
  return all;
}

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Entry& e : entries())
    if (e.supported) names.push_back(e.name);
  return names;
}

const Kernels* kernels_for(const std::string& isa) {
  std::string names;
  for (const Entry& e : entries()) {
    if (!e.supported) continue;
    if (isa == e.name) return e.kernels();
    names += names.empty() ? e.name : std::string(", ") + e.name;
  }
  throw std::invalid_argument("instruction set '" + isa + "' is not available here; there is: " + names);
}

}  // namespace tt
