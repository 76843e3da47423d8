#include "fusion/rotary_heads.h"

#include <algorithm>
#include <stdexcept>

#include "kernels.h"

namespace reader_edge {
namespace {

constexpr std::int64_t kMaxHeads = 1 << 20;         // sums and products of them stay far from overflow
constexpr std::int64_t kPairs = 8;                  // that ONNX Runtime rotates at a time
constexpr std::size_t kSerialElements = 32 * 1024;  // fewer are not worth waking threads

}  // namespace

RotaryHeads::RotaryHeads(const KernelAttributes& attributes)
    : num_heads_(attributes.integer("q_num_heads")), num_kv_heads_(attributes.integer("kv_num_heads")) {
  const auto is_usable = [](std::int64_t count) { return 0 < count && count <= kMaxHeads; };
  if (!is_usable(num_heads_) || !is_usable(num_kv_heads_)) {
    throw std::invalid_argument("RotaryHeads: its numbers of heads are out of range");
  }
}

void RotaryHeads::compute(KernelCall& call) const {
  const auto qkv = call.input<float>(0), cosines = call.input<float>(1), sines = call.input<float>(2);
  const std::int64_t all_heads = num_heads_ + 2 * num_kv_heads_;
  if (qkv.sizes.size() != 3 || qkv.sizes[2] % all_heads != 0) {
    throw std::invalid_argument("RotaryHeads: its columns cannot be cut into heads");
  }
  const std::int64_t num_nodes = qkv.sizes[1], head_size = qkv.sizes[2] / all_heads;
  const std::vector<std::int64_t> angles{qkv.sizes[0], num_nodes, head_size / 2};
  if (head_size == 0 || head_size % (2 * kPairs) != 0 || cosines.sizes != angles || sines.sizes != angles) {
    throw std::invalid_argument("RotaryHeads: sizes of heads, cosines and sines do not fit");
  }
  const std::int64_t counts[] = {num_heads_, num_kv_heads_, num_kv_heads_};
  float* outputs[3];
  for (std::size_t part = 0; part < 3; ++part) {
    outputs[part] = call.output<float>(part, {qkv.sizes[0], counts[part], num_nodes, head_size}).data;
  }

  // A task is a node of a sequence.
  const auto cut_row = [&](std::size_t task) {
    const std::int64_t row = static_cast<std::int64_t>(task), sequence = row / num_nodes, node = row % num_nodes;
    const std::int64_t half = head_size / 2;
    const float* head = qkv.data + row * qkv.sizes[2];
    for (std::size_t part = 0; part < 3; ++part) {
      for (std::int64_t h = 0; h < counts[part]; ++h, head += head_size) {
        float* const output = outputs[part] + ((sequence * counts[part] + h) * num_nodes + node) * head_size;
        if (part < 2) {
          kernels().rotary.rotate(head, cosines.data + row * half, sines.data + row * half, static_cast<std::size_t>(half), output);
        } else {
          std::copy_n(head, head_size, output);
        }
      }
    }
  };
  const std::size_t num_rows = qkv.count(0, 2);
  if (qkv.count(0, 3) <= kSerialElements) {
    for (std::size_t row = 0; row < num_rows; ++row) cut_row(row);
  } else {
    call.parallel_for(num_rows, cut_row);
  }
}

}  // namespace reader_edge
