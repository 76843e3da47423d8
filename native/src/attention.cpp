// A task is one KV head and kLanes of its query rows; lanes of a vector are query rows throughout the scores, so that
// a score is one chain of fused multiply-adds in the order of the head's components, as ONNX Runtime's MatMul sums it.
#include "attention.h"

#include <immintrin.h>

#include <algorithm>
#include <vector>

#include "exponential.h"

namespace reader_edge {
namespace {

constexpr int kLanes = 16;
constexpr int kKeyBlock = 8;
constexpr int64_t kChain = 128;  // components summed in one chain: as the lowering cuts longer heads
constexpr int kRowBlock = 4;
constexpr float kMasked = -1e29f;  // a masked score's exponential is zero
constexpr int kDoubles = 8;

struct Rows {
  int64_t sequence, kv_head, first, count;
};

Rows rows_of(const AttentionShape& s, int64_t task) {
  const int64_t rows = s.query_heads / s.kv_heads * s.nodes;
  const int64_t blocks = (rows + kLanes - 1) / kLanes;
  const int64_t head = task / blocks, first = task % blocks * kLanes;
  return {head / s.kv_heads, head % s.kv_heads, first, std::min<int64_t>(kLanes, rows - first)};
}

// The scale goes to the query, or to the products where no heads share keys: as the lowering has it.
float query_scale(const AttentionShape& s) { return s.query_heads == s.kv_heads ? 1.0f : s.scale; }
float score_scale(const AttentionShape& s) { return s.query_heads == s.kv_heads ? s.scale : 1.0f; }

// query rows, scaled and transposed: (D, kLanes), unused lanes zero.
void load_query(const AttentionShape& s, const float* query, int64_t count, float* out) {
  const float scale = query_scale(s);
  for (int64_t d = 0; d < s.head_size; ++d)
    for (int64_t r = 0; r < kLanes; ++r) out[d * kLanes + r] = r < count ? query[r * s.head_size + d] * scale : 0.0f;
}

template <int kKeys>
void score_keys(const AttentionShape& s, const float* query, const float* keys, float* scores) {
  const __m512 scale = _mm512_set1_ps(score_scale(s));
  __m512 scores_of[kKeys];
  for (int64_t begin = 0; begin < s.head_size; begin += kChain) {
    __m512 sums[kKeys];
    for (auto& sum : sums) sum = _mm512_setzero_ps();
    for (int64_t d = begin; d < std::min(begin + kChain, s.head_size); ++d) {
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

// What the mask says of a block of rows: nothing before `first`, nothing visible from `last` on.
struct MaskedColumns {
  int64_t first, last;
};

const float* mask_row(const AttentionShape& s, const float* mask, const Rows& rows, int64_t lane) {
  return mask + (rows.first + std::min(lane, rows.count - 1)) % s.nodes * s.visible;
}

MaskedColumns masked_columns(const AttentionShape& s, const float* mask, const Rows& rows) {
  int64_t first = s.visible, last = 0;
  for (int64_t lane = 0; lane < std::min(rows.count, s.nodes); ++lane) {
    const float* row = mask_row(s, mask, rows, lane);
    int64_t j = 0;
    while (j + kLanes <= first && !_mm512_cmp_ps_mask(_mm512_loadu_ps(row + j), _mm512_setzero_ps(), _CMP_NEQ_UQ))
      j += kLanes;
    while (j < first && row[j] == 0.0f) ++j;
    first = j;
    for (j = s.visible; j > 0 && row[j - 1] <= kMasked;) --j;
    last = std::max(last, j == 0 ? s.visible : j);  // a node of padding sees nothing, and then every column alike
  }
  return {first, last};
}

void add_mask(const AttentionShape& s, const float* mask, const Rows& rows, MaskedColumns columns, float* scores) {
  alignas(64) int32_t offsets[kLanes];
  for (int64_t lane = 0; lane < kLanes; ++lane)
    offsets[lane] = static_cast<int32_t>(mask_row(s, mask, rows, lane) - mask);
  const __m512i index = _mm512_load_epi32(offsets);
  for (int64_t j = columns.first; j < columns.last; ++j) {
    const __m512 added = _mm512_i32gather_ps(index, mask + j, 4);
    _mm512_store_ps(scores + j * kLanes, _mm512_add_ps(_mm512_load_ps(scores + j * kLanes), added));
  }
}

// Scores to exponentials in place, and widened; their float64 sums by lane.
void softmax_weights(int64_t visible, const float* scores, double* weights, double* totals) {
  __m512 top = _mm512_load_ps(scores);
  for (int64_t j = 1; j < visible; ++j) top = _mm512_max_ps(top, _mm512_load_ps(scores + j * kLanes));
  __m512d low = _mm512_setzero_pd(), high = low;
  for (int64_t j = 0; j < visible; ++j) {
    const __m512 weight = exp_of(_mm512_sub_ps(_mm512_load_ps(scores + j * kLanes), top));
    const __m512d first = _mm512_cvtps_pd(_mm512_castps512_ps256(weight));
    const __m512d second = _mm512_cvtps_pd(_mm512_extractf32x8_ps(weight, 1));
    low = _mm512_add_pd(low, first);
    high = _mm512_add_pd(high, second);
    _mm512_store_pd(weights + j * kLanes, first);
    _mm512_store_pd(weights + j * kLanes + kDoubles, second);
  }
  _mm512_store_pd(totals, low);
  _mm512_store_pd(totals + kDoubles, high);
}

// kVectors * 8 components of kRowBlock rows: float64 sums over the visible rows, divided, rounded to fp32.
template <int kVectors>
void mean_of(const AttentionShape& s, int64_t visible, const float* values, const double* weights, const double* totals,
             int64_t count, float* output) {
  __m512d sums[kRowBlock][kVectors];
  for (auto& row : sums)
    for (auto& sum : row) sum = _mm512_setzero_pd();
  for (int64_t j = 0; j < visible; ++j) {
    __m512d value[kVectors];
    for (int v = 0; v < kVectors; ++v)
      value[v] = _mm512_cvtps_pd(_mm256_loadu_ps(values + j * s.head_size + v * kDoubles));
    for (int r = 0; r < kRowBlock; ++r) {
      const __m512d weight = _mm512_set1_pd(weights[j * kLanes + r]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_fmadd_pd(weight, value[v], sums[r][v]);
    }
  }
  for (int r = 0; r < std::min<int64_t>(kRowBlock, count); ++r)
    for (int v = 0; v < kVectors; ++v)
      _mm256_storeu_ps(output + r * s.head_size + v * kDoubles,
                       _mm512_cvtpd_ps(_mm512_div_pd(sums[r][v], _mm512_set1_pd(totals[r]))));
}

void weighted_sum(const AttentionShape& s, int64_t visible, const float* values, const double* weights,
                  const double* totals, int64_t count, float* output) {
  constexpr int kWide = 4;
  for (int64_t r = 0; r < count; r += kRowBlock) {
    int64_t d = 0;
    for (; d + kWide * kDoubles <= s.head_size; d += kWide * kDoubles)
      mean_of<kWide>(s, visible, values + d, weights + r, totals + r, count - r, output + r * s.head_size + d);
    for (; d < s.head_size; d += kDoubles)
      mean_of<1>(s, visible, values + d, weights + r, totals + r, count - r, output + r * s.head_size + d);
  }
}

struct Scratch {  // one a thread, grown to the longest context seen
  std::vector<float> query, scores;
  std::vector<double> weights;
};

template <class T>
T* aligned(std::vector<T>& buffer, int64_t size) {
  buffer.resize(std::max<size_t>(buffer.size(), size + 64 / sizeof(T)));
  return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(buffer.data()) + 63) / 64 * 64);
}

}  // namespace

int64_t num_tasks(const AttentionShape& s) {
  const int64_t rows = s.query_heads / s.kv_heads * s.nodes;
  return s.batch * s.kv_heads * ((rows + kLanes - 1) / kLanes);
}

void attend(const AttentionShape& s, const AttentionTensors& t, int64_t task) {
  static thread_local Scratch scratch;
  const Rows rows = rows_of(s, task);
  const int64_t kv_offset = (rows.sequence * s.kv_heads + rows.kv_head) * s.capacity * s.head_size;
  const int64_t group_rows = s.query_heads / s.kv_heads * s.nodes;
  const int64_t row_offset = ((rows.sequence * s.kv_heads + rows.kv_head) * group_rows + rows.first) * s.head_size;
  float* query = aligned(scratch.query, s.head_size * kLanes);
  float* scores = aligned(scratch.scores, s.visible * kLanes);
  double* weights = aligned(scratch.weights, s.visible * kLanes);
  alignas(64) double totals[kLanes];

  const float* mask = t.mask + rows.sequence * s.nodes * s.visible;
  const MaskedColumns columns = masked_columns(s, mask, rows);
  load_query(s, t.query + row_offset, rows.count, query);
  const float* keys = t.keys + kv_offset;
  int64_t j = 0;
  for (; j + kKeyBlock <= columns.last; j += kKeyBlock)
    score_keys<kKeyBlock>(s, query, keys + j * s.head_size, scores + j * kLanes);
  for (; j < columns.last; ++j) score_keys<1>(s, query, keys + j * s.head_size, scores + j * kLanes);
  add_mask(s, mask, rows, columns, scores);
  softmax_weights(columns.last, scores, weights, totals);
  weighted_sum(s, columns.last, t.values + kv_offset, weights, totals, rows.count, t.output + row_offset);
}

}  // namespace reader_edge
