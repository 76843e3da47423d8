#include "products/expert_rows.h"

#include <stdexcept>
#include <string>

namespace reader_edge {

ExpertRows expert_rows(const char* op, const Tensor<const std::int64_t>& experts, std::size_t num_rows,
                       std::size_t num_experts) {
  if (experts.sizes.size() != 1 || experts.size(0) != num_rows) {
    throw std::invalid_argument(std::string(op) + ": sizes of rows and experts do not fit");
  }
  std::vector<std::size_t> ends(num_experts + 1);
  for (std::size_t row = 0; row < num_rows; ++row) {
    if (experts.data[row] < 0 || static_cast<std::size_t>(experts.data[row]) >= num_experts) {
      throw std::invalid_argument(std::string(op) + ": a row is sent to an expert that is not there");
    }
    ++ends[static_cast<std::size_t>(experts.data[row]) + 1];
  }
  ExpertRows rows{std::vector<std::size_t>(num_rows), std::vector<std::size_t>(num_rows), {}};
  for (std::size_t expert = 0; expert < num_experts; ++expert) {
    if (ends[expert + 1] > 0) rows.groups.push_back({expert, ends[expert], ends[expert + 1]});
    ends[expert + 1] += ends[expert];
  }
  for (std::size_t row = 0; row < num_rows; ++row) {
    const auto expert = static_cast<std::size_t>(experts.data[row]);
    rows.experts[ends[expert]] = expert;
    rows.places[ends[expert]++] = row;
  }
  return rows;
}

}  // namespace reader_edge
