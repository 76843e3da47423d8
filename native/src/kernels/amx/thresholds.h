// When attention over an int8 KV cache uses AMX tiles: setting them up takes about a microsecond.
#pragma once

#include "attention/int8_cache_steps.h"
#include "lanes/lanes.h"

namespace reader_edge::READER_EDGE_LANES {

constexpr std::int64_t kLeastQueries = 8, kLeastProducts = 8 * 1024;  // products: query rows times rows of the cache

inline bool do_tiles_pay(const QueryRows& rows, Run run) {
  return rows.count >= kLeastQueries && rows.count * (run.end - run.begin) >= kLeastProducts;
}

}  // namespace reader_edge::READER_EDGE_LANES
