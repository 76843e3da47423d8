// Adds 32-bit integer sums to float64 totals, which hold many more of them exactly.
#pragma once

#include "lanes/lanes.h"

namespace reader_edge::READER_EDGE_LANES {

// 16 of them to totals (16,), exact.
inline void add_widened(Ints sums, double* totals) {
  store(totals, load(totals) + widened_low(sums));
  store(totals + kDoubles, load(totals + kDoubles) + widened_high(sums));
}

}  // namespace reader_edge::READER_EDGE_LANES
