// Rows of a product without those that repeat the row before them, as the padding of a batch's trees does: a row's
// outputs are the same bits wherever it stands, so those are computed once and copied.
#pragma once

#include <cstddef>

namespace reader_edge {

// places (count + 1,): where each stands among all rows, and behind the last, how many there are of all.
struct DistinctRows {
  const std::size_t* places;
  std::size_t count;

  // Of distinct rows [begin, begin + many): copies outputs [first, last) to the rows that repeat them.
  void repeat(std::size_t begin, std::size_t many, std::size_t first, std::size_t last, float* output,
              std::size_t num_outputs) const;
};

// Of rows (R, K). Its memory is the thread's own, until the next call.
DistinctRows distinct_rows(const float* rows, std::size_t num_rows, std::size_t num_inputs);

}  // namespace reader_edge
