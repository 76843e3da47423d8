// Makes an operator of ONNX Runtime of a C++ class.
//
// A Kernel has kName, kInputs and kOutputs, a constructor from KernelAttributes, and compute(KernelCall&). One that
// has kInPlace, an input and an output, may get that output in the input's memory.
// What it throws becomes a status.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "onnxruntime/abi.h"

namespace reader_edge {

// A tensor of a call: its sizes and its memory.
template <class Element>
struct Tensor {
  Element* data;
  std::vector<std::int64_t> sizes;

  std::size_t size(std::size_t axis) const { return static_cast<std::size_t>(sizes.at(axis)); }
  std::size_t count(std::size_t first_axis, std::size_t last_axis) const {
    std::size_t product = 1;
    for (std::size_t axis = first_axis; axis < last_axis; ++axis) product *= size(axis);
    return product;
  }
};

inline void check(const ort::Api& api, ort::Status* status) {
  if (status == nullptr) return;
  const std::string message = api.GetErrorMessage(status);
  api.ReleaseStatus(status);
  throw std::runtime_error("ONNX Runtime refused a call of a native operator (" + message + ")");
}

// Whether memory of elements of a type may be read as these: bytes with a sign or without, halves as their bits.
template <class Element>
constexpr bool reads(ort::ElementType type) {
  if constexpr (std::is_same_v<Element, float>) return type == ort::kFloat;
  if constexpr (std::is_same_v<Element, std::uint16_t>) return type == ort::kFloat16;
  if constexpr (std::is_same_v<Element, std::int64_t>) return type == ort::kInt64;
  return sizeof(Element) == 1 && (type == ort::kInt8 || type == ort::kUInt8);
}

// Throws where the value is missing, or its elements are others.
template <class Element>
Tensor<const Element> tensor_of(const ort::Api& api, const ort::Value* value) {
  if (value == nullptr) throw std::invalid_argument("an input of a native operator is missing");
  ort::ShapeInfo* info = nullptr;
  check(api, api.GetTensorTypeAndShape(value, &info));
  const std::unique_ptr<ort::ShapeInfo, void (*)(ort::ShapeInfo*)> kept(info, api.ReleaseTensorTypeAndShapeInfo);
  ort::ElementType type{};
  check(api, api.GetTensorElementType(info, &type));
  if (!reads<Element>(type)) throw std::invalid_argument("an input of a native operator has elements of another type");
  std::size_t rank = 0;
  check(api, api.GetDimensionsCount(info, &rank));
  std::vector<std::int64_t> sizes(rank);
  check(api, api.GetDimensions(info, sizes.data(), rank));
  void* data = nullptr;
  check(api, api.GetTensorMutableData(const_cast<ort::Value*>(value), &data));
  return {static_cast<const Element*>(data), std::move(sizes)};
}

// What a node is known by when its kernel is made.
class KernelAttributes {
 public:
  KernelAttributes(const ort::Api& api, const ort::KernelInfo* info) : api_(api), info_(info) {}

  const ort::Api& api() const { return api_; }

  float number(const char* name) const {
    float value = 0;
    check(api_, api_.KernelInfoGetAttribute_float(info_, name, &value));
    return value;
  }

  std::int64_t integer(const char* name) const {
    std::int64_t value = 0;
    check(api_, api_.KernelInfoGetAttribute_int64(info_, name, &value));
    return value;
  }

  template <class Element>
  Tensor<const Element> constant(std::size_t input) const {
    int is_constant = 0;
    const ort::Value* value = nullptr;
    check(api_, api_.KernelInfoGetConstantInput_tensor(info_, input, &is_constant, &value));
    if (is_constant == 0) throw std::invalid_argument("an input that must be constant is not");
    return tensor_of<Element>(api_, value);
  }

 private:
  const ort::Api& api_;
  const ort::KernelInfo* info_;
};

// One execution of a node.
class KernelCall {
 public:
  KernelCall(const ort::Api& api, ort::KernelContext* context) : api_(api), context_(context) {}

  template <class Element>
  Tensor<const Element> input(std::size_t index) const {
    const ort::Value* value = nullptr;
    check(api_, api_.KernelContext_GetInput(context_, index, &value));
    return tensor_of<Element>(api_, value);
  }

  template <class Element>
  Tensor<Element> output(std::size_t index, const std::vector<std::int64_t>& sizes) {
    ort::Value* value = nullptr;
    check(api_, api_.KernelContext_GetOutput(context_, index, sizes.data(), sizes.size(), &value));
    void* data = nullptr;
    check(api_, api_.GetTensorMutableData(value, &data));
    return {static_cast<Element*>(data), sizes};
  }

  // work(i) for i in [0, count), on ONNX Runtime's own threads. Throws the first that work throws there, as where memory
  // is at its end: those threads would end the process.
  template <class Work>
  void parallel_for(std::size_t count, const Work& work) {
    Guarded<Work> guarded{work, {}, {}};
    const auto run = [](void* data, std::size_t index) { static_cast<Guarded<Work>*>(data)->run(index); };
    check(api_, api_.KernelContext_ParallelFor(context_, run, count, 0, &guarded));
    if (guarded.error) std::rethrow_exception(guarded.error);
  }

 private:
  template <class Work>
  struct Guarded {
    const Work& work;
    std::exception_ptr error;
    std::mutex mutex;

    void run(std::size_t index) noexcept {
      try {
        work(index);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
      }
    }
  };

  const ort::Api& api_;
  ort::KernelContext* context_;
};

template <class Kernel, class = decltype(Kernel::kInPlace)>
constexpr bool may_be_in_place(int) {
  return true;
}
template <class Kernel>
constexpr bool may_be_in_place(...) {
  return false;
}

template <class Kernel>
class KernelOp : public ort::CustomOp {
 public:
  KernelOp() : ort::CustomOp{} {
    version = ort::kApiVersion;
    GetName = [](const ort::CustomOp*) { return Kernel::kName; };
    GetExecutionProviderType = [](const ort::CustomOp*) { return "CPUExecutionProvider"; };
    GetInputType = [](const ort::CustomOp*, std::size_t index) { return Kernel::kInputs.at(index); };
    GetInputTypeCount = [](const ort::CustomOp*) { return Kernel::kInputs.size(); };
    GetOutputType = [](const ort::CustomOp*, std::size_t index) { return Kernel::kOutputs.at(index); };
    GetOutputTypeCount = [](const ort::CustomOp*) { return Kernel::kOutputs.size(); };
    GetInputCharacteristic = [](const ort::CustomOp*, std::size_t) { return 0; };
    GetOutputCharacteristic = [](const ort::CustomOp*, std::size_t) { return 0; };
    GetInputMemoryType = [](const ort::CustomOp*, std::size_t) { return 0; };
    GetVariadicInputMinArity = [](const ort::CustomOp*) { return 0; };
    GetVariadicInputHomogeneity = [](const ort::CustomOp*) { return 0; };
    GetVariadicOutputMinArity = [](const ort::CustomOp*) { return 0; };
    GetVariadicOutputHomogeneity = [](const ort::CustomOp*) { return 0; };
    CreateKernelV2 = create;
    KernelComputeV2 = compute;
    KernelDestroy = [](void* kernel) { delete static_cast<Holder*>(kernel); };
    GetStartVersion = [](const ort::CustomOp*) { return 1; };
    GetEndVersion = [](const ort::CustomOp*) { return 1; };
    GetMayInplace = in_place;
    GetAliasMap = [](int** inputs, int** outputs) -> std::size_t {
      *inputs = *outputs = nullptr;
      return 0;
    };
    ReleaseMayInplace = ReleaseAliasMap = [](int*, int*) {};
  }

 private:
  static std::size_t in_place(int** inputs, int** outputs) {
    *inputs = *outputs = nullptr;
    if constexpr (may_be_in_place<Kernel>(0)) {
      static std::array<int, 2> places = Kernel::kInPlace;
      *inputs = &places[0];
      *outputs = &places[1];
      return 1;
    }
    return 0;
  }

  struct Holder {
    const ort::Api& api;
    Kernel kernel;
  };

  template <class Body>
  static ort::Status* guarded(const ort::Api& api, const Body& body) {
    try {
      body();
      return nullptr;
    } catch (const std::exception& error) {
      return api.CreateStatus(ort::kFail, error.what());
    }
  }

  static ort::Status* create(const ort::CustomOp*, const ort::Api* api, const ort::KernelInfo* info, void** kernel) {
    return guarded(*api, [&] { *kernel = new Holder{*api, Kernel(KernelAttributes(*api, info))}; });
  }

  static ort::Status* compute(void* kernel, ort::KernelContext* context) {
    auto& holder = *static_cast<Holder*>(kernel);
    return guarded(holder.api, [&] {
      KernelCall call(holder.api, context);
      holder.kernel.compute(call);
    });
  }
};

}  // namespace reader_edge
