// Attention over a KV cache in fp32 or fp16, block by block of 16 query rows: scores here, outputs in weighted_sums.h.
// The lanes of a vector are query rows throughout, so that a score is one chain of fused multiply-adds in the order of
// the head's components, as ONNX Runtime's MatMul sums it.
#include "attention/attention.h"

#include <algorithm>

#include "kernels/attention/kv_rows.h"
#include "kernels/attention/weighted_sums.h"
#include "machine/scratch.h"
#include "shared_constants.h"

namespace reader_edge::READER_EDGE_LANES {
namespace {

constexpr std::int64_t kKeysAhead = 16;  // they are fetched so early

// The scale goes to the query, or to the products where no heads share keys: as the lowering has it.
float query_scale(const AttentionShape& s) { return s.query_heads == s.kv_heads ? 1.0f : s.scale; }
float score_scale(const AttentionShape& s) { return s.query_heads == s.kv_heads ? s.scale : 1.0f; }

// Query rows of a block, scaled and transposed: (D, kQueries), unused lanes zero.
void load_query(const AttentionShape& s, const Block& block) {
  const float scale = query_scale(s);
  for (std::int64_t d = 0; d < s.head_size; ++d)
    for (std::int64_t r = 0; r < kQueries; ++r)
      block.query[d * kQueries + r] = r < block.count ? block.rows[r].query[d] * scale : 0.0f;
}

template <int kKeys>
void score_keys(const AttentionShape& s, const float* query, const float* keys, float* scores) {
  const Floats scale = all(score_scale(s));
  Floats scores_of[kKeys];
  for (std::int64_t begin = 0; begin < s.head_size; begin += kMaxChain) {
    Floats sums[kKeys];
    for (auto& sum : sums) sum = all(0.0f);
    for (std::int64_t d = begin; d < std::min(begin + kMaxChain, s.head_size); ++d) {
      if (kKeys > 1 && d % 2 == 0) fetch(keys + kKeysAhead * s.head_size + kKeys * d);
      const Floats q = load(query + d * kQueries);
      for (int k = 0; k < kKeys; ++k) sums[k] = fma(q, all(keys[k * s.head_size + d]), sums[k]);
    }
    for (int k = 0; k < kKeys; ++k) {
      const Floats product = sums[k] * scale;
      scores_of[k] = begin == 0 ? product : scores_of[k] + product;
    }
  }
  for (int k = 0; k < kKeys; ++k) store(scores + k * kQueries, scores_of[k]);
}

std::int64_t zeros_before(const float* numbers, std::int64_t count) {
  std::int64_t j = 0;
  while (j + kQueries <= count && is_zero(load(numbers + j))) j += kQueries;
  while (j < count && numbers[j] == 0.0f) ++j;
  return j;
}

// Adds the mask's columns [begin, end) to the scores of a block.
void add_mask(const float* mask, std::int64_t begin, std::int64_t end, const Block& block) {
  alignas(kVector) std::int32_t offsets[kQueries];
  for (std::int64_t lane = 0; lane < kQueries; ++lane) offsets[lane] = block.rows[std::min(lane, block.count - 1)].mask;
  const Ints index = load(offsets);
  for (std::int64_t j = begin; j < end; ++j) {
    float* const scores = block.scores + j * kQueries;
    store(scores, load(scores) + gathered(mask + j, index));
  }
}

// Scores of a block against keys [begin, end), which `keys` begins with.
void score_tile(const AttentionShape& s, const float* mask, SequencePart part, const float* keys,
                std::int64_t begin, std::int64_t end, Block& block) {
  std::int64_t j = begin;
  for (; j + kKeyTile <= end; j += kKeyTile)
    score_keys<kKeyTile>(s, block.query, keys + (j - begin) * s.head_size, block.scores + j * kQueries);
  for (; j < end; ++j) score_keys<1>(s, block.query, keys + (j - begin) * s.head_size, block.scores + j * kQueries);
  add_mask(mask, std::max(begin, part.first), end, block);
  Floats top = load(block.top);
  for (j = begin; j < end; ++j) top = max(top, load(block.scores + j * kQueries));
  store(block.top, top);
}

void attend(const AttentionShape& s, const AttentionTensors& t, SequencePart part, bool has_integers,
            std::int64_t head, const QueryPlace* rows, std::int64_t num_rows) {
  static thread_local Scratch scratch;
  const std::int64_t num_blocks = (num_rows + kQueries - 1) / kQueries, row_size = kQueries * s.head_size;
  const float* const mask = t.mask + head / s.kv_heads * s.nodes * s.visible;
  const std::int64_t kv_offset = head * s.capacity * s.head_size;

  Block blocks[kMaxBlocks];
  const std::int64_t block_size = row_size + part.last * kQueries;
  float* const memory = scratch.take<float>(num_blocks * block_size);
  for (std::int64_t b = 0; b < num_blocks; ++b) {
    float* const query = memory + b * block_size;
    const std::int64_t first = b * kQueries;
    blocks[b] = {rows + first, std::min(kQueries, num_rows - first), query, query + row_size, {}, {}};
    for (std::int64_t r = 0; r < kQueries; ++r) blocks[b].sink[r] = rows[std::min(first + r, num_rows - 1)].sink;
    store(blocks[b].top, load(blocks[b].sink));
    load_query(s, blocks[b]);
  }
  const KvRows all_keys = rows_from(t.keys, kv_offset), all_values = rows_from(t.values, kv_offset);
  for (std::int64_t j = 0; j < part.last; j += kTile) {
    const std::int64_t end = std::min(j + kTile, part.last);
    const float* const keys = read_rows(all_keys, s.head_size, j, end - j);
    for (std::int64_t b = 0; b < num_blocks; ++b) score_tile(s, mask, part, keys, j, end, blocks[b]);
  }
  (has_integers ? integer_sums : float64_sums)(s.head_size, part.last, all_values, blocks, num_blocks);
}

}  // namespace

extern const AttentionKernels attention_kernels{zeros_before, attend};

}  // namespace reader_edge::READER_EDGE_LANES
