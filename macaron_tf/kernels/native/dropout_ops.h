// Dropout as an operation, which also computes its own gradient. The loops are in dropout_loops.h.

#ifndef MACARON_TF_KERNELS_NATIVE_DROPOUT_OPS_H_
#define MACARON_TF_KERNELS_NATIVE_DROPOUT_OPS_H_

#include <cmath>

#include "dropout_loops.h"
#include "kernel_support.h"

namespace macaron_tf {
namespace {

REGISTER_OP("MacaronTf>Dropout")
    .Input("x: T")
    .Input("key: uint32")
    .Output("y: T")
    .Attr("T: {float, bfloat16}")
    .Attr("rate: float")
    .SetShapeFn(UnchangedShape);

template <class T>
class DropoutKernel : public OpKernel {
 public:
  explicit DropoutKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    float rate;
    OP_REQUIRES_OK(construction, construction->GetAttr("rate", &rate));
    OP_REQUIRES(construction, rate >= 0.0f && rate < 1.0f,
                InvalidArgument("rate must be 0 or more and below 1, but is ", rate));
    threshold_ = std::min(static_cast<uint32_t>(std::lround(rate * 65536.0)), 65535u);
  }

  void Compute(OpKernelContext* context) override {
    using S = typename StorageOf<T>::type;
    const Tensor& key = context->input(1);
    OP_REQUIRES_OK(context, CheckShape("key", key, TensorShape({2})));
    const uint32_t* words = Read<uint32_t>(key);
    // The scale uses the rate rounded to 16 bits, so that the expected value of y is exactly x.
    const DropoutParameters parameters = {
        {words[0], words[1]}, threshold_, 65536.0f / static_cast<float>(65536u - threshold_)};
    Tensor* y;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output(
                                {0}, 0, context->input(0).shape(), &y));
    const S* from = Read<S>(context->input(0));
    S* to = Write<S>(y);
    const int64_t size = y->NumElements();
    constexpr int64_t kCyclesOfElement = 2;
    const auto& threads = *context->device()->tensorflow_cpu_worker_threads();
    threads.workers->ParallelFor((size + kDropoutChunk - 1) / kDropoutChunk,
                                 kCyclesOfElement * kDropoutChunk,
                                 [&](int64_t first, int64_t last) {
                                   Drop(parameters, first, last, size, from, to);
                                 });
  }

 private:
  uint32_t threshold_;
};

MACARON_TF_REGISTER("MacaronTf>Dropout", DropoutKernel<T>);

}  // namespace
}  // namespace macaron_tf

#endif  // MACARON_TF_KERNELS_NATIVE_DROPOUT_OPS_H_
