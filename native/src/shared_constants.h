// Numbers that kernels share with the definitions of their operators, which shared_constants.py has.
// It writes this file: python -m reader_edge_export.onnx_graph.shared_constants > native/src/shared_constants.h
#pragma once

namespace reader_edge {

constexpr int kSteps = 127;
constexpr int kBase = 256;
constexpr int kSteps16 = 32639;
constexpr int kZeroPoint = 128;
constexpr float kSmallest = 1e-30;
constexpr int kMaxBlock = 256;
constexpr int kBlockInputs = 32;
constexpr int kMaxBlockScale = 15;
constexpr int kMaxChain = 128;
constexpr int kValueSteps = 2047;
constexpr int kWeightSteps = 16383;
constexpr int kByteWeightSteps = 32767;
constexpr int kLargestHalf = 65504;
constexpr int kRowSteps = 8128;
constexpr int kLeastExponent = -100;
constexpr int kMostExponent = 100;

}  // namespace reader_edge
