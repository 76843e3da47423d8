#include "products/gguf/gguf_constants.h"

namespace reader_edge {
namespace {

constexpr std::size_t kMaxInputs = 1 << 24;  // of a row; sizes in bytes stay far from overflow

// One after another, each of the sizes that qs give it.
class Constants {
 public:
  Constants(const KernelAttributes& attributes, const GgufType& type, const MatrixPlace& place)
      : attributes_(attributes), place_(place), index_(place.first) {
    const auto qs = attributes.constant<std::uint8_t>(index_);
    const std::size_t rank = 3 + place.is_stacked;
    if (qs.sizes.size() != rank || qs.count(0, rank) == 0 || qs.size(rank - 1) != type.qs_bytes()) {
      place.refuse("its qs need outputs, blocks, and bytes of a block");
    }
    if (place.is_stacked) num_matrices = qs.size(0);
    num_outputs = qs.size(rank - 3), num_blocks = qs.size(rank - 2);
    if (num_blocks % type.super_block != 0 || num_blocks > kMaxInputs / type.block_inputs) {
      place.refuse("its number of blocks is out of range");
    }
  }

  template <class Element>
  const Element* next(std::size_t columns, std::size_t bytes = 0) {
    const auto constant = attributes_.constant<Element>(index_++);
    std::vector<std::int64_t> sizes;
    if (place_.is_stacked) sizes.push_back(static_cast<std::int64_t>(num_matrices));
    sizes.push_back(static_cast<std::int64_t>(num_outputs));
    sizes.push_back(static_cast<std::int64_t>(columns));
    if (bytes > 0) sizes.push_back(static_cast<std::int64_t>(bytes));
    if (constant.sizes != sizes) place_.refuse("sizes of its constants do not fit");
    return constant.data;
  }

  std::size_t num_matrices = 1, num_outputs = 0, num_blocks = 0;

 private:
  const KernelAttributes& attributes_;
  const MatrixPlace& place_;
  std::size_t index_;
};

}  // namespace

std::vector<GgufWeight> gguf_weights(const KernelAttributes& attributes, const GgufType& type, const MatrixPlace& place) {
  Constants constants(attributes, type, place);
  const std::size_t num_blocks = constants.num_blocks, numbers = num_blocks / type.super_block;
  GgufArrays arrays;
  arrays.qs = constants.next<std::uint8_t>(num_blocks, type.qs_bytes());
  if (type.qh_bits() > 0) arrays.qh = constants.next<std::uint8_t>(num_blocks, type.qh_bytes());
  if (type.has_exponents) {
    arrays.exponents = constants.next<std::uint8_t>(numbers);
  } else {
    arrays.scales = constants.next<std::uint16_t>(numbers);
  }
  if (type.has_super_blocks()) arrays.scale_codes = constants.next<std::uint8_t>(num_blocks);
  if (type.has_minima) arrays.minima = constants.next<std::uint16_t>(numbers);
  if (type.has_minima && type.has_super_blocks()) arrays.minimum_codes = constants.next<std::uint8_t>(num_blocks);

  std::vector<GgufWeight> weights;
  for (std::size_t matrix = 0; matrix < constants.num_matrices; ++matrix) {
    weights.emplace_back(type, arrays, constants.num_outputs, num_blocks);
    arrays.qs += constants.num_outputs * num_blocks * type.qs_bytes();
    if (arrays.qh != nullptr) arrays.qh += constants.num_outputs * num_blocks * type.qh_bytes();
    if (arrays.scales != nullptr) arrays.scales += constants.num_outputs * numbers;
    if (arrays.exponents != nullptr) arrays.exponents += constants.num_outputs * numbers;
    if (arrays.scale_codes != nullptr) arrays.scale_codes += constants.num_outputs * num_blocks;
    if (arrays.minima != nullptr) arrays.minima += constants.num_outputs * numbers;
    if (arrays.minimum_codes != nullptr) arrays.minimum_codes += constants.num_outputs * num_blocks;
  }
  return weights;
}

}  // namespace reader_edge
