#include "dispatch.h"

#include <stdexcept>

#if defined(TT_ARM64) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(TT_ARM64) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace tt {

namespace {

#ifdef TT_ARM64
struct ArmFeatures {
  bool dotprod = false, i8mm = false, bf16 = false;
};

ArmFeatures arm_features() {
  ArmFeatures f;
#if defined(__linux__)
  // Bits of the arm64 ABI (Linux, asm/hwcap.h), spelled out because older headers lack some of the names.
  const unsigned long one = getauxval(AT_HWCAP), two = getauxval(AT_HWCAP2);
  f = {(one >> 20 & 1) != 0, (two >> 13 & 1) != 0, (two >> 14 & 1) != 0};
#elif defined(__APPLE__)
  const auto has = [](const char* name) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
  };
  f = {has("hw.optional.arm.FEAT_DotProd"), has("hw.optional.arm.FEAT_I8MM"), has("hw.optional.arm.FEAT_BF16")};
#endif
  return f;
}
#endif

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
#ifdef TT_ARM64
  const ArmFeatures arm = arm_features();
  all.push_back({"neon_i8mm", kernels_neon_i8mm, arm.dotprod && arm.i8mm && arm.bf16});
  all.push_back({"neon_dotprod", kernels_neon_dotprod, arm.dotprod});
  all.push_back({"neon", kernels_neon, true});
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
