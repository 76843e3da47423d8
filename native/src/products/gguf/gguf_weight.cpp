#include "products/gguf/gguf_weight.h"

#include <cstring>

#include "machine/weight_memory.h"

namespace reader_edge {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kLaneInputs = 4;         // of an output that lie together
constexpr std::size_t kVector = kLaneInputs * kGgufOutputs;

std::size_t rounded_up(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

}  // namespace

std::size_t GgufWeight::scale_bytes(std::size_t num_blocks) const {
  const std::size_t bytes = type_.has_super_blocks() ? 2 + num_blocks : type_.number_bytes() * num_blocks;
  return rounded_up(bytes * (1 + type_.has_minima) * kGgufOutputs, kAlignment);
}

std::size_t GgufWeight::panel_bytes() const {
  const std::size_t rest = num_blocks_ % chunk_blocks();
  return num_blocks_ / chunk_blocks() * chunk_bytes(chunk_blocks()) + (rest == 0 ? 0 : chunk_bytes(rest));
}

GgufWeight::GgufWeight(const GgufType& type, const GgufArrays& arrays, std::size_t num_outputs, std::size_t num_blocks)
    : type_(type),
      num_outputs_(num_outputs),
      num_blocks_(num_blocks),
      memory_(weight_memory(num_panels() * panel_bytes())) {
  const std::size_t numbers = num_blocks / type.super_block;
  const PassingRows source({{arrays.qs, num_blocks * type.qs_bytes()},
                            {arrays.qh, num_blocks * type.qh_bytes()},
                            {arrays.scales, numbers * sizeof(std::uint16_t)},
                            {arrays.exponents, numbers},
                            {arrays.scale_codes, num_blocks},
                            {arrays.minima, numbers * sizeof(std::uint16_t)},
                            {arrays.minimum_codes, num_blocks}},
                           num_outputs);
  source.read_all(kGgufOutputs, [&](std::size_t output) { pack_output(arrays, output); });
}

void GgufWeight::pack_output(const GgufArrays& arrays, std::size_t output) {
  const std::size_t lane = output % kGgufOutputs;
  std::int8_t* chunk = memory_.get() + output / kGgufOutputs * panel_bytes();
  for (std::size_t first = 0; first < num_blocks_; first += chunk_blocks()) {
    const std::size_t count = std::min(chunk_blocks(), num_blocks_ - first);
    pack_scales(arrays, output, first, count, chunk);
    for (std::size_t b = 0; b < count; ++b) {
      const std::size_t index = output * num_blocks_ + first + b;
      pack_block(arrays.qs + index * type_.qs_bytes(), arrays.qh + index * type_.qh_bytes(), lane,
                 chunk + scale_bytes(count) + b * block_bytes());
    }
    chunk += chunk_bytes(count);
  }
}

void GgufWeight::pack_scales(const GgufArrays& arrays, std::size_t output, std::size_t first, std::size_t count,
                             std::int8_t* chunk) {
  const std::size_t lane = output % kGgufOutputs, numbers = type_.has_super_blocks() ? 1 : count;
  const std::size_t number = output * (num_blocks_ / type_.super_block) + first / type_.super_block;
  const std::size_t code = output * num_blocks_ + first;
  for (std::size_t b = 0; type_.has_exponents && b < count; ++b) {
    chunk[b * kGgufOutputs + lane] = static_cast<std::int8_t>(arrays.exponents[code + b]);
  }
  if (type_.has_exponents) return;
  auto* const halves = reinterpret_cast<std::uint16_t*>(chunk);
  std::int8_t* const codes = chunk + 2 * numbers * (1 + type_.has_minima) * kGgufOutputs;
  for (std::size_t i = 0; i < numbers; ++i) {
    halves[i * kGgufOutputs + lane] = arrays.scales[number + i];
    if (type_.has_minima) halves[(numbers + i) * kGgufOutputs + lane] = arrays.minima[number + i];
  }
  for (std::size_t b = 0; type_.has_super_blocks() && b < count; ++b) {
    codes[b * kGgufOutputs + lane] = static_cast<std::int8_t>(arrays.scale_codes[code + b]);
    if (type_.has_minima) {
      codes[(count + b) * kGgufOutputs + lane] = static_cast<std::int8_t>(arrays.minimum_codes[code + b]);
    }
  }
}

void GgufWeight::pack_block(const std::uint8_t* qs, const std::uint8_t* qh, std::size_t lane, std::int8_t* block) {
  const bool is_byte = type_.bits == 8;
  const std::size_t num_inputs = type_.block_inputs, qh_bits = type_.qh_bits();
  const std::size_t behind = is_byte ? 0 : num_inputs / 2;  // what shares a byte lies so much later
  std::int8_t* const out = block + lane * kLaneInputs;
  for (std::size_t k = 0; k < type_.qs_bytes(); k += kLaneInputs) {
    std::uint8_t four[kLaneInputs];
    if (is_byte) {
      std::memcpy(four, qs + k, kLaneInputs);
    } else {
      const std::uint8_t *const low = qs + k / 2, *const high = qs + (k + behind) / 2;
      for (std::size_t pair = 0; pair < 2; ++pair) {
        four[2 * pair] = static_cast<std::uint8_t>((low[pair] & 15) | (high[pair] & 15) << 4);
        four[2 * pair + 1] = static_cast<std::uint8_t>(low[pair] >> 4 | (high[pair] & 240));
      }
    }
    std::memcpy(out + k / kLaneInputs * kVector, four, kLaneInputs);
  }
  std::int8_t* const masks = block + type_.qs_bytes() * kGgufOutputs;
  for (std::size_t k = 0; qh_bits > 0 && k < num_inputs; ++k) {
    const unsigned bits = qh[k * qh_bits / 8] >> (k * qh_bits % 8);
    for (std::size_t bit = 0; bit < qh_bits; ++bit) {
      const std::size_t place = lane * kLaneInputs + k % kLaneInputs;  // within 64 bits
      std::int8_t* const mask = masks + (bit * (num_inputs / kLaneInputs) + k / kLaneInputs) * (kVector / 8);
      mask[place / 8] = static_cast<std::int8_t>(mask[place / 8] | (bits >> bit & 1) << place % 8);
    }
  }
}

}  // namespace reader_edge
