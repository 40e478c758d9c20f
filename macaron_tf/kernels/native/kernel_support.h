// Helpers of all kernels: access to tensors, errors, and the division of rows among threads.

#ifndef MACARON_TF_KERNELS_NATIVE_KERNEL_SUPPORT_H_
#define MACARON_TF_KERNELS_NATIVE_KERNEL_SUPPORT_H_

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "numbers.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/threadpool.h"

namespace macaron_tf {

using tensorflow::bfloat16;
using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;
using tensorflow::shape_inference::UnchangedShape;

template <class... Parts>
absl::Status InvalidArgument(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

template <class T>
struct StorageOf {
  using type = T;
};
template <>
struct StorageOf<bfloat16> {
  using type = BFloat16;
};

template <class S>
const S* Read(const Tensor& tensor) {
  return static_cast<const S*>(tensor.data());
}

template <class S>
S* Write(Tensor* tensor) {
  return static_cast<S*>(tensor->data());
}

inline absl::Status CheckShape(const char* name, const Tensor& tensor,
                               const TensorShape& expected) {
  if (tensor.shape() == expected) return absl::OkStatus();
  return InvalidArgument(name, " must be of shape ", expected.DebugString(),
                         " to match x, but its shape is ", tensor.shape().DebugString());
}

// Registers a kernel such as `Kernel<T>` for both types T.
#define MACARON_TF_REGISTER(NAME, ...)                                          \
  MACARON_TF_REGISTER_TYPE(NAME, float, __VA_ARGS__)                            \
  MACARON_TF_REGISTER_TYPE(NAME, bfloat16, __VA_ARGS__)
#define MACARON_TF_REGISTER_TYPE(NAME, TYPE, ...)                               \
  namespace of_##TYPE {                                                         \
  using T = TYPE;                                                               \
  REGISTER_KERNEL_BUILDER(                                                      \
      Name(NAME).Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"),         \
      __VA_ARGS__);                                                             \
  }

// Rows in blocks of a fixed size, so that sums over a block do not depend on the thread count.
struct RowBlocks {
  static constexpr int64_t kRows = 32;
  int64_t rows, width;

  // Divides the rows of a tensor (..., width).
  explicit RowBlocks(const Tensor& tensor)
      : rows(tensor.dims() == 0 || tensor.NumElements() == 0
                 ? 0
                 : tensor.NumElements() / tensor.dim_size(tensor.dims() - 1)),
        width(tensor.dims() == 0 ? 0 : tensor.dim_size(tensor.dims() - 1)) {}

  int64_t count() const { return (rows + kRows - 1) / kRows; }

  // Calls `loop(block, first_row, last_row)` for every block, on the device's threads.
  template <class Loop>
  void ForEach(OpKernelContext* context, int64_t cycles_of_element, Loop loop) const {
    const auto& threads = *context->device()->tensorflow_cpu_worker_threads();
    threads.workers->ParallelFor(count(), cycles_of_element * kRows * width,
                                 [&](int64_t begin, int64_t end) {
                                   for (int64_t block = begin; block < end; ++block) {
                                     loop(block, block * kRows,
                                          std::min((block + 1) * kRows, rows));
                                   }
                                 });
  }
};

// Computes the sum of sums[:, index] over the parts, for an array (parts, vectors, width). The
// order of the additions is fixed.
inline void Total(const Tensor& sums, int64_t index, Tensor* total) {
  const int64_t vectors = sums.dim_size(1), width = sums.dim_size(2);
  float* to = Write<float>(total);
  std::fill_n(to, width, 0.0f);
  for (int64_t part = 0; part < sums.dim_size(0); ++part) {
    const float* from = Read<float>(sums) + (part * vectors + index) * width;
    for (int64_t j = 0; j < width; ++j) to[j] += from[j];
  }
}

}  // namespace macaron_tf

#endif  // MACARON_TF_KERNELS_NATIVE_KERNEL_SUPPORT_H_
