// What ONNX Runtime looks for in the library: the operators of the domain "reader_edge".

#include "kernel.h"
#include "row_linear.h"

using namespace reader_edge;

extern "C" __attribute__((visibility("default"))) ort::Status* RegisterCustomOps(ort::SessionOptions* options,
                                                                                 const ort::ApiBase* base) {
  static const KernelOp<RowLinear> row_linear;
  static ort::CustomOpDomain* domain = nullptr;
  const ort::Api* api = base->GetApi(ort::kApiVersion);
  if (domain == nullptr) {
    if (ort::Status* status = api->CreateCustomOpDomain("reader_edge", &domain)) return status;
    for (const ort::CustomOp* op : {static_cast<const ort::CustomOp*>(&row_linear)}) {
      if (ort::Status* status = api->CustomOpDomain_Add(domain, op)) return status;
    }
  }
  return api->AddCustomOpDomain(options, domain);
}
