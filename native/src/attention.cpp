// Lanes of a vector are query rows throughout, so that a score is one chain of fused multiply-adds in the order of the
// head's components, as ONNX Runtime's MatMul sums it. A task is one KV head and some blocks of its query rows.
#include "attention.h"

#include <immintrin.h>

#include <algorithm>
#include <limits>

#include "scratch.h"
#include "shared_constants.h"

namespace reader_edge {
namespace {

constexpr int kKeyBlock = 8;
constexpr std::int64_t kBlocksAhead = 2;  // keys are fetched so early
constexpr float kMasked = -1e29f;     // a masked score's exponential is zero

std::int64_t divided_up(std::int64_t value, std::int64_t by) { return (value + by - 1) / by; }

std::int64_t rows_of_head(const AttentionShape& s) { return s.query_heads / s.kv_heads * s.nodes; }
std::int64_t tasks_of_head(const AttentionShape& s) { return divided_up(rows_of_head(s), kMaxBlocks * kLanes); }
std::int64_t rows_of_task(const AttentionShape& s) {
  return divided_up(divided_up(rows_of_head(s), kLanes), tasks_of_head(s)) * kLanes;
}

// The scale goes to the query, or to the products where no heads share keys: as the lowering has it.
float query_scale(const AttentionShape& s) { return s.query_heads == s.kv_heads ? 1.0f : s.scale; }
float score_scale(const AttentionShape& s) { return s.query_heads == s.kv_heads ? s.scale : 1.0f; }

// query rows, scaled and transposed: (D, kLanes), unused lanes zero.
void load_query(const AttentionShape& s, const float* query, std::int64_t count, float* out) {
  const float scale = query_scale(s);
  for (std::int64_t d = 0; d < s.head_size; ++d)
    for (std::int64_t r = 0; r < kLanes; ++r)
      out[d * kLanes + r] = r < count ? query[r * s.head_size + d] * scale : 0.0f;
}

template <int kKeys>
void score_keys(const AttentionShape& s, const float* query, const float* keys, float* scores) {
  const __m512 scale = _mm512_set1_ps(score_scale(s));
  __m512 scores_of[kKeys];
  for (std::int64_t begin = 0; begin < s.head_size; begin += kMaxChain) {
    __m512 sums[kKeys];
    for (auto& sum : sums) sum = _mm512_setzero_ps();
    for (std::int64_t d = begin; d < std::min(begin + kMaxChain, s.head_size); ++d) {
      if (kKeys > 1 && d % 2 == 0) _mm_prefetch(keys + kKeys * (kBlocksAhead * s.head_size + d), _MM_HINT_T0);
      const __m512 q = _mm512_load_ps(query + d * kLanes);
      for (int k = 0; k < kKeys; ++k) sums[k] = _mm512_fmadd_ps(q, _mm512_set1_ps(keys[k * s.head_size + d]), sums[k]);
    }
    for (int k = 0; k < kKeys; ++k) {
      const __m512 product = _mm512_mul_ps(sums[k], scale);
      scores_of[k] = begin == 0 ? product : _mm512_add_ps(scores_of[k], product);
    }
  }
  for (int k = 0; k < kKeys; ++k) _mm512_store_ps(scores + k * kLanes, scores_of[k]);
}

// How many of the first `count` numbers come before one that is not zero.
std::int64_t zeros_before(const float* numbers, std::int64_t count) {
  std::int64_t j = 0;
  while (j + kLanes <= count && !_mm512_cmp_ps_mask(_mm512_loadu_ps(numbers + j), _mm512_setzero_ps(), _CMP_NEQ_UQ))
    j += kLanes;
  while (j < count && numbers[j] == 0.0f) ++j;
  return j;
}

// Of a row of a KV head (numbered through the batch).
std::int64_t output_offset(const AttentionShape& s, std::int64_t head, std::int64_t row) {
  if (!s.has_merged_heads) return (head * rows_of_head(s) + row) * s.head_size;
  const std::int64_t group_size = s.query_heads / s.kv_heads, node = row % s.nodes;
  const std::int64_t query_head = head % s.kv_heads * group_size + row / s.nodes;
  return ((head / s.kv_heads * s.nodes + node) * s.query_heads + query_head) * s.head_size;
}

// Adds the mask's columns [begin, end) to the scores of a block.
void add_mask(const AttentionShape& s, const float* mask, std::int64_t begin, std::int64_t end, const Block& block) {
  alignas(64) std::int32_t offsets[kLanes];
  for (std::int64_t lane = 0; lane < kLanes; ++lane)
    offsets[lane] = static_cast<std::int32_t>((block.first + lane) % s.nodes * s.visible);
  const __m512i index = _mm512_load_epi32(offsets);
  for (std::int64_t j = begin; j < end; ++j) {
    const __m512 added = _mm512_i32gather_ps(index, mask + j, 4);
    _mm512_store_ps(block.scores + j * kLanes, _mm512_add_ps(_mm512_load_ps(block.scores + j * kLanes), added));
  }
}

// Scores of a block against keys [begin, end), which `keys` begins with.
void score_tile(const AttentionShape& s, const float* mask, MaskedColumns columns, const float* keys,
                std::int64_t begin, std::int64_t end, Block& block) {
  std::int64_t j = begin;
  for (; j + kKeyBlock <= end; j += kKeyBlock)
    score_keys<kKeyBlock>(s, block.query, keys + (j - begin) * s.head_size, block.scores + j * kLanes);
  for (; j < end; ++j)
    score_keys<1>(s, block.query, keys + (j - begin) * s.head_size, block.scores + j * kLanes);
  add_mask(s, mask, std::max(begin, columns.first), end, block);
  __m512 top = _mm512_load_ps(block.top);
  for (j = begin; j < end; ++j) top = _mm512_max_ps(top, _mm512_load_ps(block.scores + j * kLanes));
  _mm512_store_ps(block.top, top);
}

}  // namespace

std::vector<MaskedColumns> masked_columns(const AttentionShape& s, const float* mask) {
  std::vector<MaskedColumns> columns;
  for (std::int64_t sequence = 0; sequence < s.batch; ++sequence) {
    std::int64_t first = s.visible, last = 0;
    for (std::int64_t node = 0; node < s.nodes; ++node, mask += s.visible) {
      first = zeros_before(mask, first);
      std::int64_t end = s.visible;
      while (end > 0 && mask[end - 1] <= kMasked) --end;
      last = std::max(last, end == 0 ? s.visible : end);  // a node of padding sees nothing: then every column alike
    }
    columns.push_back({first, last});
  }
  return columns;
}

std::int64_t num_tasks(const AttentionShape& s) { return s.batch * s.kv_heads * tasks_of_head(s); }

void attend(const AttentionShape& s, const AttentionTensors& t, const std::vector<MaskedColumns>& columns_of,
            WeightedSums weighted_sums, std::int64_t task) {
  static thread_local Scratch scratch;
  const std::int64_t head = task / tasks_of_head(s), sequence = head / s.kv_heads;
  const std::int64_t first = task % tasks_of_head(s) * rows_of_task(s);
  const std::int64_t num_rows = std::min(rows_of_task(s), rows_of_head(s) - first);
  const std::int64_t num_blocks = divided_up(num_rows, kLanes), row_size = kLanes * s.head_size;
  const MaskedColumns columns = columns_of[static_cast<std::size_t>(sequence)];
  const float* const mask = t.mask + sequence * s.nodes * s.visible;
  const std::int64_t kv_offset = head * s.capacity * s.head_size;

  Block blocks[kMaxBlocks];
  const std::int64_t block_size = row_size + columns.last * kLanes;
  float* const memory = scratch.take<float>(num_blocks * block_size);
  for (std::int64_t b = 0; b < num_blocks; ++b) {
    const std::int64_t row = first + b * kLanes, offset = (head * rows_of_head(s) + row) * s.head_size;
    float* const query = memory + b * block_size;
    const std::int64_t count = std::min<std::int64_t>(kLanes, num_rows - b * kLanes);
    blocks[b] = {row, count, query, query + row_size, {}, {}};
    for (std::int64_t r = 0; r < count; ++r) blocks[b].outputs[r] = t.output + output_offset(s, head, row + r);
    std::fill_n(blocks[b].top, kLanes, -std::numeric_limits<float>::infinity());
    load_query(s, t.query + offset, count, query);
  }
  const KvRows all_keys = t.keys.from(kv_offset);
  for (std::int64_t j = 0; j < columns.last; j += kTile) {
    const std::int64_t end = std::min(j + kTile, columns.last);
    const float* const keys = all_keys.read(s.head_size, j, end - j);
    for (std::int64_t b = 0; b < num_blocks; ++b) score_tile(s, mask, columns, keys, j, end, blocks[b]);
  }
  weighted_sums(s.head_size, columns.last, t.values.from(kv_offset), blocks, num_blocks);
}

}  // namespace reader_edge
