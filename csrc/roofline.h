// What the machine can do at best, measured with all threads of a pool at once: the two roofs of a roofline model
// (Williams, Waterman & Patterson 2009).
#pragma once

#include "kernels/kernels.h"
#include "thread_pool.h"

namespace tt {

// Bytes a second at which the pool's threads together read `bytes` of memory, each its own part, over and over; the best of
// `repetitions` of each access pattern. `bytes` should be several times the caches. A repetition lasts a tenth of a second:
// shorter ones catch moments that do not last (a virtual machine's cores on two memory controllers, say).
double read_bandwidth(ThreadPool& pool, const Kernels& kernels, size_t bytes, int repetitions);

// Multiply–accumulates a second of all threads together on operands in registers, best of runs over about `seconds`.
double mac_rate(ThreadPool& pool, const Kernels& kernels, Peak peak, double seconds);

}  // namespace tt
