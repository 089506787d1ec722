#include "quantize.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <stdexcept>
#include <vector>

#include "pack.h"

namespace tt {

namespace {
constexpr int64_t PART = 4096;  // groups that a thread takes at a time
}  // namespace

size_t group_bytes(const std::string& format, bool full) {
  const bool known = full ? format == "F32" || format == "F16" || format == "BF16" : format == "Q8_0" || format == "Q4_0";
  if (!known) throw std::invalid_argument(format + (full ? " is not full precision" : " is not made on loading"));
  return stored_bytes(format, 1, GROUP);
}

std::pair<double, double> quantize_weights(ThreadPool& pool, const Kernels& kernels, const std::string& source, const std::string& target,
                                           const uint8_t* from, int64_t count, uint8_t* to) {
  const size_t taken = group_bytes(source, true), made = group_bytes(target, false);
  const Layout layout = layout_of(source);
  std::vector<std::array<double, 2>> losses((size_t)((count + PART - 1) / PART));
  std::atomic<int64_t> next{0};
  pool.run([&](int) {
    for (int64_t part; (part = next.fetch_add(1)) < (int64_t)losses.size();) {
      const int64_t first = part * PART;
      kernels.quantize_weights(layout, target == "Q4_0", from + (size_t)first * taken, std::min(PART, count - first),
                               to + (size_t)first * made, losses[(size_t)part].data());
    }
  });
  std::pair<double, double> sums{0.0, 0.0};
  for (const auto& [error, square] : losses) sums.first += error, sums.second += square;
  return sums;
}

}  // namespace tt
