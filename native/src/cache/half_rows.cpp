#include "cache/half_rows.h"

#include "kernels.h"

namespace reader_edge {

void HalfRows::compute(KernelCall& call) const {
  for (std::size_t index = 0; index < kInputs.size(); ++index) {
    const auto numbers = call.input<float>(index);
    kernels().half_rows.round(numbers.data, numbers.count(0, numbers.sizes.size()),
                              call.output<std::uint16_t>(index, numbers.sizes).data);
  }
}

}  // namespace reader_edge
