#include "heads/head_guess.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "kernels.h"
#include "machine/scratch.h"
#include "products/output_constants.h"

namespace reader_edge {
namespace {

constexpr std::size_t kFirst = 6, kGuesses = 3, kSecond = 4;  // those of head_file.py
constexpr std::size_t kRowAlignment = 64;
constexpr std::size_t kTogether = 128;  // logits that are passed over where none is among the best

PackedWeight packed(const Tensor<const std::int8_t>& weight) {
  if (weight.sizes.size() != 2 || weight.size(0) == 0 || weight.size(1) == 0) {
    throw std::invalid_argument("HeadGuess: a weight needs two axes, inputs and outputs");
  }
  const std::size_t num_inputs = weight.size(0), num_outputs = weight.size(1);
  std::vector<std::int8_t> transposed(num_inputs * num_outputs);
  for (std::size_t i = 0; i < num_inputs; ++i) {
    for (std::size_t o = 0; o < num_outputs; ++o) transposed[o * num_inputs + i] = weight.data[i * num_outputs + o];
  }
  return {transposed.data(), num_outputs, num_inputs, kernels().rows.layout};
}

// The `count` best of n logits, the first of several as good, and their softmax. A number is 0 where no logit is one.
void find_likeliest(const float* logits, std::size_t n, std::size_t count, float* shares, std::int64_t* numbers) {
  std::fill_n(shares, count, -std::numeric_limits<float>::infinity());
  std::fill_n(numbers, count, 0);
  for (std::size_t start = 0; start < n; start += kTogether) {
    const std::size_t end = std::min(start + kTogether, n);
    if (!(kernels().head.largest(logits + start, end - start) > shares[count - 1])) continue;
    for (std::size_t number = start; number < end; ++number) {
      if (!(logits[number] > shares[count - 1])) continue;
      std::size_t place = count - 1;
      for (; place > 0 && logits[number] > shares[place - 1]; --place) {
        shares[place] = shares[place - 1];
        numbers[place] = numbers[place - 1];
      }
      shares[place] = logits[number];
      numbers[place] = static_cast<std::int64_t>(number);
    }
  }
  const float best = shares[0], total = kernels().head.exponential_sum(logits, best, n);
  for (std::size_t place = 0; place < count; ++place) shares[place] = std::exp(shares[place] - best) / total;
}

void check(bool is_so) {
  if (!is_so) throw std::invalid_argument("HeadGuess: sizes of its inputs do not fit");
}

}  // namespace

HeadLayer::HeadLayer(const KernelAttributes& attributes, std::size_t first, bool has_bias)
    : weight_(packed(attributes.constant<std::int8_t>(first))), bias_(weight_.num_outputs()) {
  const float* const scales = of_outputs(attributes, first + 1, num_outputs());
  scales_.assign(scales, scales + num_outputs());
  if (!has_bias) return;
  const float* const bias = of_outputs(attributes, first + 2, num_outputs());
  bias_.assign(bias, bias + num_outputs());
}

void HeadLayer::multiply(const std::vector<float>& rows, std::size_t count, std::vector<float>& sums) const {
  thread_local Scratch kept_values;
  const std::size_t stride = (num_inputs() + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
  std::uint8_t* const values = kept_values.take<std::uint8_t>(static_cast<std::int64_t>(count * stride));
  std::vector<float> row_scales(count);
  std::vector<std::size_t> places(count);
  std::iota(places.begin(), places.end(), 0);
  for (std::size_t row = 0; row < count; ++row) {
    row_scales[row] = kernels().rounding.quantize(rows.data() + row * num_inputs(), num_inputs(), values + row * stride, stride);
  }
  const QuantizedRows all{values, stride, row_scales.data(), places.data(), count, 1};
  sums.resize(count * num_outputs());
  kernels().rows.multiply_blocks(all, weight_, 0, weight_.num_blocks(), scales_.data(), sums.data());
  add_bias(bias_.data(), 0, num_outputs(), places.data(), count, sums.data(), num_outputs());
}

HeadGuess::HeadGuess(const KernelAttributes& attributes)
    : mean_(attributes.constant<float>(2)),
      gain_(attributes.constant<float>(3)),
      embedding_(attributes.constant<float>(4)),
      first_(attributes, 5),
      first_out_(attributes, 8),
      second_known_(attributes, 11),
      second_guessed_(attributes, 14, false),
      second_out_(attributes, 16),
      vocabulary_(attributes, 19),
      ones_(first_.num_outputs(), 1.0f) {
  check(mean_.sizes.size() == 1 && gain_.sizes == mean_.sizes && embedding_.sizes.size() == 2);
  const std::size_t embedded = embedding_.size(1), inner = first_.num_outputs();
  check(first_.num_inputs() == mean_.size(0) + embedded);
  check(first_out_.num_inputs() == inner && second_known_.num_inputs() == inner && second_known_.num_outputs() == inner);
  check(second_guessed_.num_inputs() == embedded && second_guessed_.num_outputs() == inner);
  check(second_out_.num_inputs() == inner && second_out_.num_outputs() == first_out_.num_outputs());
  check(vocabulary_.num_inputs() == first_out_.num_outputs() && vocabulary_.num_outputs() == embedding_.size(0));
  check(vocabulary_.num_outputs() >= kFirst);
}

void HeadGuess::compute(KernelCall& call) const {
  const auto states = call.input<float>(0);
  const auto pending = call.input<std::int64_t>(1);
  check(states.sizes.size() == 2 && states.sizes[1] == mean_.sizes[0]);
  check(pending.sizes.size() == 1 && pending.sizes[0] == states.sizes[0]);
  const std::size_t batch = states.size(0), hidden = mean_.size(0), embedded = embedding_.size(1);
  const std::size_t inner = first_.num_outputs(), num_ids = vocabulary_.num_outputs();
  const auto b = static_cast<std::int64_t>(batch), guesses = static_cast<std::int64_t>(kGuesses);
  float* const shares = call.output<float>(0, {b, kFirst}).data;
  std::int64_t* const numbers = call.output<std::int64_t>(1, {b, kFirst}).data;
  float* const next_shares = call.output<float>(2, {b, guesses, kSecond}).data;
  std::int64_t* const next_numbers = call.output<std::int64_t>(3, {b, guesses, kSecond}).data;

  const auto activate = [&](std::vector<float>& rows) {
    for (std::size_t at = 0; at < rows.size(); at += inner) {
      kernels().swiglu.gated(rows.data() + at, ones_.data(), inner, rows.data() + at);
    }
  };
  thread_local std::vector<float> known, made, out, logits, made_known, tokens;  // grown to the longest step seen
  known.resize(batch * (hidden + embedded));
  for (std::size_t text = 0; text < batch; ++text) {
    const std::int64_t token = pending.data[text];
    check(token >= 0 && token < embedding_.sizes[0]);
    float* row = known.data() + text * (hidden + embedded);
    const float* const state = states.data + text * hidden;
    for (std::size_t i = 0; i < hidden; ++i) row[i] = (state[i] - mean_.data[i]) * gain_.data[i];
    std::copy_n(embedding_.data + static_cast<std::size_t>(token) * embedded, embedded, row + hidden);
  }
  first_.multiply(known, batch, made);
  activate(made);
  first_out_.multiply(made, batch, out);
  vocabulary_.multiply(out, batch, logits);
  for (std::size_t text = 0; text < batch; ++text) {
    find_likeliest(logits.data() + text * num_ids, num_ids, kFirst, shares + text * kFirst, numbers + text * kFirst);
  }

  second_known_.multiply(made, batch, made_known);
  const std::size_t num_rows = batch * kGuesses;
  tokens.resize(num_rows * embedded);
  for (std::size_t row = 0; row < num_rows; ++row) {
    const auto token = static_cast<std::size_t>(numbers[row / kGuesses * kFirst + row % kGuesses]);
    std::copy_n(embedding_.data + token * embedded, embedded, tokens.data() + row * embedded);
  }
  second_guessed_.multiply(tokens, num_rows, made);
  for (std::size_t row = 0; row < num_rows; ++row) {
    const float* const also = made_known.data() + row / kGuesses * inner;
    for (std::size_t i = 0; i < inner; ++i) made[row * inner + i] += also[i];
  }
  activate(made);
  second_out_.multiply(made, num_rows, out);
  vocabulary_.multiply(out, num_rows, logits);
  for (std::size_t row = 0; row < num_rows; ++row) {
    find_likeliest(logits.data() + row * num_ids, num_ids, kSecond, next_shares + row * kSecond, next_numbers + row * kSecond);
  }
}

}  // namespace reader_edge
