// What ONNX Runtime looks for in the library: the operators of the domain "reader_edge".

#include <array>
#include <tuple>

#include "adapters/low_rank_rows.h"
#include "attention/int8_cache_attention.h"
#include "attention/tree_attention.h"
#include "cache/cache_rows.h"
#include "cache/half_rows.h"
#include "fusion/rotary_heads.h"
#include "fusion/swiglu.h"
#include "machine/instruction_sets.h"
#include "onnxruntime/kernel.h"
#include "products/blocks/block_matrices.h"
#include "products/gguf/gguf_matrices.h"
#include "products/gguf/gguf_types.h"
#include "products/rows/row_matrices.h"
#include "recurrence/recurrence.h"
#include "recurrence/tree_conv.h"
#include "rounding/hadamard.h"

#ifdef _WIN32
#define EXPORTED extern "C" __declspec(dllexport)
#else
#define EXPORTED extern "C" __attribute__((visibility("default")))
#endif

using namespace reader_edge;

// Products by matrices of each type, and by those of experts.
template <const GgufType&... kTypes>
std::array<const ort::CustomOp*, 2 * sizeof...(kTypes)> gguf_products(GgufTypes<kTypes...>) {
  static const std::tuple<KernelOp<GgufLinear<kTypes>>...> products;
  static const std::tuple<KernelOp<GgufExperts<kTypes>>...> experts;
  return {&std::get<KernelOp<GgufLinear<kTypes>>>(products)..., &std::get<KernelOp<GgufExperts<kTypes>>>(experts)...};
}

// The name of the instruction set in use, none where there are no kernels for this processor or the one that
// READER_EDGE_INSTRUCTIONS names is not there; then why, none where it names nothing; and those that are, with commas.
EXPORTED const char* reader_edge_instructions() { return choice().set == nullptr ? nullptr : choice().set->name; }
EXPORTED const char* reader_edge_refusal() { return choice().refusal.empty() ? nullptr : choice().refusal.c_str(); }
EXPORTED const char* reader_edge_instructions_here() { return names_here().c_str(); }

EXPORTED ort::Status* RegisterCustomOps(ort::SessionOptions* options, const ort::ApiBase* base) {
  static const KernelOp<SpreadRowLinear<1, false>> spread_row_linear;
  static const KernelOp<SpreadRowLinear<1, true>> spread_row_linear_bias;
  static const KernelOp<SpreadRowLinear<2, false>> spread_row_linear_16;
  static const KernelOp<SpreadRowLinear<2, true>> spread_row_linear_16_bias;
  static const KernelOp<SpreadBlockLinear<false>> spread_block_linear;
  static const KernelOp<SpreadBlockLinear<true>> spread_block_linear_bias;
  static const KernelOp<SpreadRows> spread_rows;
  static const KernelOp<ExactAttention<false, false>> exact_attention;
  static const KernelOp<ExactAttention<true, false>> exact_attention_16;
  static const KernelOp<ExactAttention<false, true>> exact_attention_sinks;
  static const KernelOp<ExactAttention<true, true>> exact_attention_16_sinks;
  static const KernelOp<IntegerAttention<false, false>> integer_attention;
  static const KernelOp<IntegerAttention<true, false>> integer_attention_16;
  static const KernelOp<IntegerAttention<false, true>> integer_attention_sinks;
  static const KernelOp<IntegerAttention<true, true>> integer_attention_16_sinks;
  static const KernelOp<HalfRows> half_rows;
  static const KernelOp<CacheRows> cache_rows;
  static const KernelOp<Int8CacheAttention<false>> int8_cache_attention;
  static const KernelOp<Int8CacheAttention<true>> int8_cache_attention_sinks;
  static const KernelOp<RotaryHeads> rotary_heads;
  static const KernelOp<SwiGlu> swiglu;
  static const KernelOp<LowRankRows<float>> low_rank_rows;
  static const KernelOp<LowRankRows<std::uint16_t>> low_rank_rows_16;
  static const KernelOp<TreeConv> tree_conv;
  static const KernelOp<Recurrence<true>> tree_delta;
  static const KernelOp<Recurrence<false>> tree_scan;
  static const KernelOp<SpreadRowExperts<1>> spread_row_experts;
  static const KernelOp<SpreadRowExperts<2>> spread_row_experts_16;
  static const KernelOp<SpreadBlockExperts> spread_block_experts;
  static const ort::CustomOp* const operators[] = {
      &spread_row_linear,    &spread_row_linear_bias,
      &spread_row_linear_16, &spread_row_linear_16_bias, &spread_block_linear, &spread_block_linear_bias,
      &spread_rows,          &rotary_heads,              &exact_attention,     &integer_attention,
      &swiglu,               &cache_rows,                &int8_cache_attention, &half_rows,
      &exact_attention_16,   &integer_attention_16,      &tree_conv,           &tree_delta,
      &tree_scan,            &spread_row_experts,        &spread_block_experts, &spread_row_experts_16,
      &exact_attention_sinks, &exact_attention_16_sinks, &integer_attention_sinks, &integer_attention_16_sinks,
      &int8_cache_attention_sinks, &low_rank_rows,
      &low_rank_rows_16};
  static ort::CustomOpDomain* domain = nullptr;  // lives as long as the library: sessions come and go
  const ort::Api* api = base->GetApi(ort::kApiVersion);
  if (choice().set == nullptr) {
    const bool is_refused = !choice().refusal.empty();
    return api->CreateStatus(ort::kFail, is_refused ? choice().refusal.c_str() : "no kernels for this processor");
  }
  if (domain == nullptr) {
    if (ort::Status* status = api->CreateCustomOpDomain("reader_edge", &domain)) return status;
    for (const ort::CustomOp* op : operators) {
      if (ort::Status* status = api->CustomOpDomain_Add(domain, op)) return status;
    }
    for (const ort::CustomOp* op : gguf_products(AllGgufTypes{})) {
      if (ort::Status* status = api->CustomOpDomain_Add(domain, op)) return status;
    }
  }
  return api->AddCustomOpDomain(options, domain);
}
