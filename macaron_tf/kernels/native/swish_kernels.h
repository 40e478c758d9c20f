// Kernels of the operations in swish_ops.h. A kernel checks its inputs, divides the work among
// threads, and adds up the gradients of alpha, beta and the biases.

#ifndef MACARON_TF_KERNELS_NATIVE_SWISH_KERNELS_H_
#define MACARON_TF_KERNELS_NATIVE_SWISH_KERNELS_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "kernel_support.h"
#include "swish_loops.h"

namespace macaron_tf {

// Computes the states and, with kGated, the gated states. With kBack, computes the gradients. S is
// the storage type of T in the loops.
template <class T, bool kGated, bool kBack>
class SwishKernel : public OpKernel {
 public:
  using S = typename StorageOf<T>::type;

  explicit SwishKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("step_size", &step_size_));
    if (kGated) OP_REQUIRES_OK(construction, construction->GetAttr("gate", &gate_));
  }

  void Compute(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, ReadCall(context, &call));
    if constexpr (!kBack) {
      Tensor *c, *y = nullptr;
      OP_REQUIRES_OK(context, context->allocate_output("c", call.state_shape, &c));
      if (kGated) OP_REQUIRES_OK(context, context->allocate_output("y", call.state_shape, &y));
      S* c_rows = Write<S>(c);
      S* y_rows = kGated ? Write<S>(y) : nullptr;
      ForSequences(context, call, [&](auto gate, int64_t b, int64_t first, int64_t last) {
        Forward<decltype(gate)>(call.in, b, first, last, c_rows, y_rows);
      });
    } else {
      const Tensor *c, *dy;
      OP_REQUIRES_OK(context, context->input("c", &c));
      OP_REQUIRES_OK(context, context->input("dy", &dy));
      OP_REQUIRES_OK(context, CheckShape("c", *c, call.state_shape));
      OP_REQUIRES_OK(context, CheckShape("dy", *dy, call.state_shape));

      const int64_t width = call.in.width;
      Tensor *dx, *dstart = nullptr;
      Tensor sums;  // (B, vectors, R)
      OP_REQUIRES_OK(context, context->allocate_output(0, context->input(0).shape(), &dx));
      if (call.start != nullptr) {
        OP_REQUIRES_OK(context,
                       context->allocate_output(1 + kVectors, call.start->shape(), &dstart));
      }
      const TensorShape sums_shape({call.batch, kVectors, width});
      OP_REQUIRES_OK(context, context->allocate_temp(tensorflow::DT_FLOAT, sums_shape, &sums));
      ForSequences(context, call, [&](auto gate, int64_t b, int64_t first, int64_t last) {
        Backward<decltype(gate)>(call.in, b, first, last, Read<S>(*c), Read<S>(*dy), Write<S>(dx),
                                 dstart == nullptr ? nullptr : Write<float>(dstart),
                                 Write<float>(&sums) + b * kVectors * width);
      });
      // The sums are in batch order, so they do not depend on the number of threads.
      for (int i = 0; i < kVectors; ++i) {
        Tensor* output;
        OP_REQUIRES_OK(context, context->allocate_output(1 + i, TensorShape({width}), &output));
        Total(sums, i, output);
      }
    }
  }

 private:
  static constexpr int kVectors = kGated ? 4 : 2;

  struct Call {
    Inputs<S> in = {};
    int64_t batch;
    TensorShape state_shape;        // (B, L, R)
    const Tensor* start = nullptr;  // (B, k, R)
  };

  absl::Status ReadCall(OpKernelContext* context, Call* call) const {
    const Tensor& x = context->input(0);
    if (x.dims() != 3) {
      return InvalidArgument("x must be of rank 3, but its shape is ", x.shape().DebugString());
    }
    Inputs<S>& in = call->in;
    call->batch = x.dim_size(0);
    in.length = x.dim_size(1);
    in.stride = x.dim_size(2);
    if (kGated && in.stride % 2 != 0) {
      return InvalidArgument("the last dimension of x must be even, but is ", in.stride);
    }
    in.width = kGated ? in.stride / 2 : in.stride;
    in.step_size = step_size_;
    in.x = Read<S>(x);
    call->state_shape = TensorShape({call->batch, in.length, in.width});

    const char* names[] = {"alpha", "beta", "state_bias", "gate_bias"};
    const float** vectors[] = {&in.alpha, &in.beta, &in.state_bias, &in.gate_bias};
    for (int i = 0; i < kVectors; ++i) {
      const Tensor& vector = context->input(1 + i);
      TF_RETURN_IF_ERROR(CheckShape(names[i], vector, TensorShape({in.width})));
      *vectors[i] = Read<float>(vector);
    }
    OpInputList tensors;
    TF_RETURN_IF_ERROR(context->input_list("mask", &tensors));
    if (tensors.size() > 0) {
      TF_RETURN_IF_ERROR(CheckShape("mask", tensors[0], TensorShape({call->batch, in.length})));
      in.mask = Read<uint8_t>(tensors[0]);
    }
    if (kGated) return absl::OkStatus();
    TF_RETURN_IF_ERROR(context->input_list("start", &tensors));
    if (tensors.size() > 0) {
      const TensorShape start_shape({call->batch, in.step_size, in.width});
      TF_RETURN_IF_ERROR(CheckShape("start", tensors[0], start_shape));
      call->start = &tensors[0];
      in.start = Read<float>(tensors[0]);
    }
    return absl::OkStatus();
  }

  // Calls `loop(gate, b, first, last)` for every sequence b, on the device's threads. The columns
  // are divided only if the batch size alone does not occupy the threads evenly, because short rows
  // reduce memory bandwidth. Each sum is within one column, so the results do not depend on the
  // division.
  template <class Loop>
  void ForSequences(OpKernelContext* context, const Call& call, Loop loop) const {
    const auto& threads = *context->device()->tensorflow_cpu_worker_threads();
    constexpr int64_t kMinColumns = 128;
    int64_t parts = 1;
    while (call.batch * parts % threads.num_threads != 0 &&
           call.batch * parts < 4 * threads.num_threads &&
           call.in.width / (2 * parts) >= kMinColumns) {
      parts *= 2;
    }
    // The columns fill whole cache lines, even in bfloat16.
    const int64_t columns = ((call.in.width + parts - 1) / parts + 31) / 32 * 32;
    if (columns == 0) return;
    parts = (call.in.width + columns - 1) / columns;
    constexpr int64_t kCyclesOfElement = 4;
    threads.workers->ParallelFor(
        call.batch * parts, kCyclesOfElement * (call.in.length + 1) * columns,
        [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            const int64_t first = i % parts * columns;
            const int64_t last = std::min(first + columns, call.in.width);
            if constexpr (!kGated) {
              loop(NoGate(), i / parts, first, last);
            } else if (gate_ == "gelu") {
              loop(ErfGelu(), i / parts, first, last);
            } else if (gate_ == "gelu_tanh") {
              loop(TanhGelu(), i / parts, first, last);
            } else {
              loop(SigmoidGate(), i / parts, first, last);
            }
          }
        });
  }

  int64_t step_size_;
  std::string gate_;
};

}  // namespace macaron_tf

#endif  // MACARON_TF_KERNELS_NATIVE_SWISH_KERNELS_H_
