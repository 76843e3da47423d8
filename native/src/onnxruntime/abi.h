// The part of ONNX Runtime's C interface that the operators use, by position.
//
// The interface is a table of functions that only ever grows at its end, so positions and signatures are fixed; those
// in between are not declared. Requested by version, ONNX Runtime refuses what it does not have.
#pragma once

#include <cstddef>
#include <cstdint>

namespace reader_edge::ort {

constexpr std::uint32_t kApiVersion = 18;  // the first with alias maps; ONNX Runtime 1.18

struct Status;
struct SessionOptions;
struct CustomOpDomain;
struct KernelInfo;
struct KernelContext;
struct Value;
struct ShapeInfo;
struct CustomOp;

enum ErrorCode : int { kFail = 1, kInvalidArgument = 2 };
enum ElementType : int { kFloat = 1, kUInt8 = 2, kInt8 = 3, kInt64 = 7, kFloat16 = 10 };

using Unused = void (*)();

struct Api {
  Status* (*CreateStatus)(ErrorCode, const char*);  // 0
  Unused unused_1[1];
  const char* (*GetErrorMessage)(const Status*);  // 2
  Unused unused_3[23];
  Status* (*CreateCustomOpDomain)(const char*, CustomOpDomain**);           // 26
  Status* (*CustomOpDomain_Add)(CustomOpDomain*, const CustomOp*);          // 27
  Status* (*AddCustomOpDomain)(SessionOptions*, CustomOpDomain*);           // 28
  Unused unused_29[22];
  Status* (*GetTensorMutableData)(Value*, void**);  // 51
  Unused unused_52[8];
  Status* (*GetTensorElementType)(const ShapeInfo*, ElementType*);                 // 60
  Status* (*GetDimensionsCount)(const ShapeInfo*, std::size_t*);                   // 61
  Status* (*GetDimensions)(const ShapeInfo*, std::int64_t*, std::size_t);          // 62
  Unused unused_63[2];
  Status* (*GetTensorTypeAndShape)(const Value*, ShapeInfo**);  // 65
  Unused unused_66[19];
  Status* (*KernelInfoGetAttribute_float)(const KernelInfo*, const char*, float*);          // 85
  Status* (*KernelInfoGetAttribute_int64)(const KernelInfo*, const char*, std::int64_t*);   // 86
  Unused unused_87[3];
  Status* (*KernelContext_GetInput)(const KernelContext*, std::size_t, const Value**);  // 90
  Status* (*KernelContext_GetOutput)(KernelContext*, std::size_t, const std::int64_t*, std::size_t, Value**);  // 91
  Unused unused_92[1];
  void (*ReleaseStatus)(Status*);  // 93
  Unused unused_94[5];
  void (*ReleaseTensorTypeAndShapeInfo)(ShapeInfo*);  // 99
  Unused unused_100[149];
  Status* (*KernelInfoGetConstantInput_tensor)(const KernelInfo*, std::size_t, int*, const Value**);  // 249
  Unused unused_250[24];
  Status* (*KernelContext_ParallelFor)(const KernelContext*, void (*)(void*, std::size_t), std::size_t, std::size_t,
                                       void*);  // 274
};

constexpr std::size_t position(std::size_t offset) { return offset / sizeof(Unused); }
static_assert(position(offsetof(Api, GetErrorMessage)) == 2);
static_assert(position(offsetof(Api, CreateCustomOpDomain)) == 26);
static_assert(position(offsetof(Api, GetTensorMutableData)) == 51);
static_assert(position(offsetof(Api, GetTensorElementType)) == 60);
static_assert(position(offsetof(Api, GetDimensionsCount)) == 61);
static_assert(position(offsetof(Api, GetTensorTypeAndShape)) == 65);
static_assert(position(offsetof(Api, KernelInfoGetAttribute_float)) == 85);
static_assert(position(offsetof(Api, KernelContext_GetInput)) == 90);
static_assert(position(offsetof(Api, ReleaseStatus)) == 93);
static_assert(position(offsetof(Api, ReleaseTensorTypeAndShapeInfo)) == 99);
static_assert(position(offsetof(Api, KernelInfoGetConstantInput_tensor)) == 249);
static_assert(position(offsetof(Api, KernelContext_ParallelFor)) == 274);

struct ApiBase {
  const Api* (*GetApi)(std::uint32_t version);
  const char* (*GetVersionString)();
};

// One operator: what ONNX Runtime asks of it. Functions it does not need may be null.
struct CustomOp {
  std::uint32_t version;
  void* (*CreateKernel)(const CustomOp*, const Api*, const KernelInfo*);
  const char* (*GetName)(const CustomOp*);
  const char* (*GetExecutionProviderType)(const CustomOp*);
  ElementType (*GetInputType)(const CustomOp*, std::size_t);
  std::size_t (*GetInputTypeCount)(const CustomOp*);
  ElementType (*GetOutputType)(const CustomOp*, std::size_t);
  std::size_t (*GetOutputTypeCount)(const CustomOp*);
  void (*KernelCompute)(void*, KernelContext*);
  void (*KernelDestroy)(void*);
  int (*GetInputCharacteristic)(const CustomOp*, std::size_t);
  int (*GetOutputCharacteristic)(const CustomOp*, std::size_t);
  int (*GetInputMemoryType)(const CustomOp*, std::size_t);
  int (*GetVariadicInputMinArity)(const CustomOp*);
  int (*GetVariadicInputHomogeneity)(const CustomOp*);
  int (*GetVariadicOutputMinArity)(const CustomOp*);
  int (*GetVariadicOutputHomogeneity)(const CustomOp*);
  Status* (*CreateKernelV2)(const CustomOp*, const Api*, const KernelInfo*, void**);
  Status* (*KernelComputeV2)(void*, KernelContext*);
  Status* (*InferOutputShapeFn)(const CustomOp*, void*);
  int (*GetStartVersion)(const CustomOp*);
  int (*GetEndVersion)(const CustomOp*);
  std::size_t (*GetMayInplace)(int**, int**);
  void (*ReleaseMayInplace)(int*, int*);
  std::size_t (*GetAliasMap)(int**, int**);
  void (*ReleaseAliasMap)(int*, int*);
};

}  // namespace reader_edge::ort
