// Rounds a row of fp32 numbers to int8, or to two planes of int8, by its largest magnitude; ties to even.
#include "rounding/row_rounding.h"

#include <algorithm>

#include "lanes/lanes.h"
#include "shared_constants.h"

namespace reader_edge::READER_EDGE_LANES {
namespace {

constexpr float kRowFactor = static_cast<float>(1.0 / 127.0);
constexpr float kSmallestScale = 1e-9f;

// Of the 16 numbers from k on, those that are there.
inline Lanes lanes_left(std::size_t count, std::size_t k) { return first_lanes(count > k ? count - k : 0); }

void store_bytes_of(Ints integers, Lanes lanes, int raised_by, void* values) {
  store_low_bytes(values, only(integers + all(raised_by), lanes));
}

float quantize(const float* row, std::size_t num_inputs, std::uint8_t* values, std::size_t stride) {
  Floats top = all(0.0f);
  for (std::size_t k = 0; k < num_inputs; k += kLanes) {
    top = max(top, magnitude(load(row + k, lanes_left(num_inputs, k))));
  }
  const float scale = std::max(largest_of(top) * kRowFactor, kSmallestScale);
  for (std::size_t k = 0; k < stride; k += kLanes) {
    const Lanes lanes = lanes_left(num_inputs, k);
    const Floats value = load(row + k, lanes) / all(scale);
    store_bytes_of(rounded(min(max(value, all(-128.0f)), all(127.0f))), lanes, kUnsignedOffset, values + k);
  }
  return scale;
}

template <int kRaisedBy, class Byte>
float round(const float* row, float largest, std::size_t num_inputs, Byte* values, std::size_t stride) {
  const float top = std::max(largest, kSmallest);
  const Floats steps_of_one = all(kSteps / top);
  for (std::size_t k = 0; k < stride; k += kLanes) {
    const Lanes lanes = lanes_left(num_inputs, k);
    store_bytes_of(rounded(load(row + k, lanes) * steps_of_one), lanes, kRaisedBy, values + k);
  }
  return top;
}

float round_16_raised(const float* row, float largest, std::size_t num_inputs, std::uint8_t* high, std::uint8_t* low,
                      std::size_t stride) {
  const float top = std::max(largest, kSmallest);
  const Floats steps_of_one = all(kSteps16 / top);
  for (std::size_t k = 0; k < stride; k += kLanes) {
    const Lanes lanes = lanes_left(num_inputs, k);
    const Ints steps = rounded(load(row + k, lanes) * steps_of_one);
    const Ints upper = shifted_right<8>(steps + all(128));
    store_bytes_of(upper, lanes, kUnsignedOffset, high + k);
    store_bytes_of(steps - shifted_left<8>(upper), lanes, kUnsignedOffset, low + k);
  }
  return top;
}

}  // namespace

extern const RowRounding row_rounding{quantize, round<0, std::int8_t>, round<kUnsignedOffset, std::uint8_t>,
                                      round_16_raised};

}  // namespace reader_edge::READER_EDGE_LANES
