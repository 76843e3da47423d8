// When products of a cache's rows are sooner done by tiles: these take about a microsecond to set up.
#pragma once

#include "attention/int8_cache_steps.h"
#include "lanes/lanes.h"

namespace reader_edge::READER_EDGE_LANES {

constexpr std::int64_t kLeastQueries = 8, kLeastProducts = 8 * 1024;  // products: query rows times rows of the cache

inline bool do_tiles_pay(const QueryRows& rows, Run run) {
  return rows.count >= kLeastQueries && rows.count * (run.end - run.begin) >= kLeastProducts;
}

}  // namespace reader_edge::READER_EDGE_LANES
