// Operations for GELU(x + bias), exact or by tanh, and its gradient. The loops are in gelu_loops.h.

#ifndef MACARON_TF_KERNELS_NATIVE_GELU_OPS_H_
#define MACARON_TF_KERNELS_NATIVE_GELU_OPS_H_

#include "gelu_loops.h"
#include "kernel_support.h"

namespace macaron_tf {
namespace {

REGISTER_OP("MacaronTf>BiasGelu")
    .Input("x: T")
    .Input("bias: float")
    .Output("y: T")
    .Attr("T: {float, bfloat16}")
    .Attr("approximate: bool")
    .SetShapeFn(UnchangedShape);

REGISTER_OP("MacaronTf>BiasGeluGrad")
    .Input("x: T")
    .Input("bias: float")
    .Input("dy: T")
    .Output("dx: T")
    .Output("dbias: float")
    .Attr("T: {float, bfloat16}")
    .Attr("approximate: bool")
    .SetShapeFn([](InferenceContext* context) {
      for (int i = 0; i < 2; ++i) context->set_output(i, context->input(i));
      return absl::OkStatus();
    });

// Computes y or, with kBack, the gradients.
template <class T, bool kBack>
class BiasGeluKernel : public OpKernel {
 public:
  using S = typename StorageOf<T>::type;

  explicit BiasGeluKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("approximate", &approximate_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &bias = context->input(1);
    const RowBlocks blocks(x);
    OP_REQUIRES_OK(context, CheckShape("bias", bias, TensorShape({blocks.width})));
    Tensor* output;
    if constexpr (kBack) OP_REQUIRES_OK(context, CheckShape("dy", context->input(2), x.shape()));
    OP_REQUIRES_OK(context, context->allocate_output(0, x.shape(), &output));
    if constexpr (kBack) {
      const Tensor& dy = context->input(2);
      Tensor* dbias;
      Tensor sums;  // (blocks, 1, D)
      OP_REQUIRES_OK(context, context->allocate_output(1, bias.shape(), &dbias));
      OP_REQUIRES_OK(context,
                     context->allocate_temp(tensorflow::DT_FLOAT,
                                            TensorShape({blocks.count(), 1, blocks.width}), &sums));
      const auto row_function = approximate_ ? GeluRowBack<TanhGelu, S> : GeluRowBack<ErfGelu, S>;
      constexpr int64_t kCyclesOfElement = 5;
      blocks.ForEach(context, kCyclesOfElement, [&](int64_t block, int64_t first, int64_t last) {
        float* block_sum = Write<float>(&sums) + block * blocks.width;
        std::fill_n(block_sum, blocks.width, 0.0f);
        for (int64_t at = first * blocks.width; at < last * blocks.width; at += blocks.width) {
          row_function(blocks.width, Read<S>(x) + at, Read<float>(bias), Read<S>(dy) + at,
                       Write<S>(output) + at, block_sum);
        }
      });
      Total(sums, 0, dbias);
    } else {
      const auto row_function = approximate_ ? GeluRow<TanhGelu, S> : GeluRow<ErfGelu, S>;
      constexpr int64_t kCyclesOfElement = 4;
      blocks.ForEach(context, kCyclesOfElement, [&](int64_t, int64_t first, int64_t last) {
        for (int64_t at = first * blocks.width; at < last * blocks.width; at += blocks.width) {
          row_function(blocks.width, Read<S>(x) + at, Read<float>(bias), Write<S>(output) + at);
        }
      });
    }
  }

 private:
  bool approximate_;
};

MACARON_TF_REGISTER("MacaronTf>BiasGelu", BiasGeluKernel<T, false>);
MACARON_TF_REGISTER("MacaronTf>BiasGeluGrad", BiasGeluKernel<T, true>);

}  // namespace
}  // namespace macaron_tf

#endif  // MACARON_TF_KERNELS_NATIVE_GELU_OPS_H_
