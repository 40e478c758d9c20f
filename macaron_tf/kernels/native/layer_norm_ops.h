// Operations for layer normalization over the last axis and for its gradient. The loops are in
// layer_norm_loops.h.

#ifndef MACARON_TF_KERNELS_NATIVE_LAYER_NORM_OPS_H_
#define MACARON_TF_KERNELS_NATIVE_LAYER_NORM_OPS_H_

#include "kernel_support.h"
#include "layer_norm_loops.h"

namespace macaron_tf {
namespace {

// Shapes: scale and offset (D,), statistics (rows, 2). The statistics of a row are its mean and
// 1 / sqrt(variance + epsilon).
REGISTER_OP("MacaronTf>LayerNorm")
    .Input("x: T")
    .Input("scale: float")
    .Input("offset: float")
    .Output("y: T")
    .Output("statistics: float")
    .Attr("T: {float, bfloat16}")
    .Attr("epsilon: float")
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle x;
      TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(0), 1, &x));
      context->set_output(0, x);
      context->set_output(1, context->Matrix(InferenceContext::kUnknownDim, 2));
      return absl::OkStatus();
    });

REGISTER_OP("MacaronTf>LayerNormGrad")
    .Input("x: T")
    .Input("scale: float")
    .Input("statistics: float")
    .Input("dy: T")
    .Output("dx: T")
    .Output("dscale: float")
    .Output("doffset: float")
    .Attr("T: {float, bfloat16}")
    .SetShapeFn([](InferenceContext* context) {
      for (int i = 0; i < 3; ++i) context->set_output(i, context->input(i == 0 ? 0 : 1));
      return absl::OkStatus();
    });

// Computes y and the statistics or, with kBack, the gradients, which need no epsilon.
template <class T, bool kBack>
class LayerNormKernel : public OpKernel {
 public:
  using S = typename StorageOf<T>::type;

  explicit LayerNormKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    if (!kBack) OP_REQUIRES_OK(construction, construction->GetAttr("epsilon", &epsilon_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &scale = context->input(1);
    const RowBlocks blocks(x);
    const TensorShape statistics_shape({blocks.rows, 2});
    OP_REQUIRES_OK(context, CheckShape("scale", scale, TensorShape({blocks.width})));
    if constexpr (kBack) {
      const Tensor &statistics = context->input(2), &dy = context->input(3);
      OP_REQUIRES_OK(context, CheckShape("statistics", statistics, statistics_shape));
      OP_REQUIRES_OK(context, CheckShape("dy", dy, x.shape()));
      Tensor* dx;
      Tensor sums;  // (blocks, 2, D)
      OP_REQUIRES_OK(context, context->allocate_output(0, x.shape(), &dx));
      OP_REQUIRES_OK(context,
                     context->allocate_temp(tensorflow::DT_FLOAT,
                                            TensorShape({blocks.count(), 2, blocks.width}), &sums));
      constexpr int64_t kCyclesOfElement = 4;
      blocks.ForEach(context, kCyclesOfElement, [&](int64_t block, int64_t first, int64_t last) {
        float* block_sums = Write<float>(&sums) + 2 * block * blocks.width;
        std::fill_n(block_sums, 2 * blocks.width, 0.0f);
        for (int64_t row = first; row < last; ++row) {
          const int64_t at = row * blocks.width;
          NormalizeRowBack(blocks.width, Read<S>(x) + at, Read<float>(scale),
                           Read<float>(statistics) + 2 * row, Read<S>(dy) + at, Write<S>(dx) + at,
                           block_sums, block_sums + blocks.width);
        }
      });
      for (int i = 0; i < 2; ++i) {
        Tensor* total;
        OP_REQUIRES_OK(context, context->allocate_output(1 + i, scale.shape(), &total));
        Total(sums, i, total);
      }
    } else {
      const Tensor& offset = context->input(2);
      OP_REQUIRES_OK(context, CheckShape("offset", offset, TensorShape({blocks.width})));
      Tensor *y, *statistics;
      OP_REQUIRES_OK(context, context->allocate_output(0, x.shape(), &y));
      OP_REQUIRES_OK(context, context->allocate_output(1, statistics_shape, &statistics));
      constexpr int64_t kCyclesOfElement = 2;
      blocks.ForEach(context, kCyclesOfElement, [&](int64_t, int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
          NormalizeRow(blocks.width, epsilon_, Read<S>(x) + row * blocks.width, Read<float>(scale),
                       Read<float>(offset), Write<S>(y) + row * blocks.width,
                       Write<float>(statistics) + 2 * row);
        }
      });
    }
  }

 private:
  float epsilon_;
};

MACARON_TF_REGISTER("MacaronTf>LayerNorm", LayerNormKernel<T, false>);
MACARON_TF_REGISTER("MacaronTf>LayerNormGrad", LayerNormKernel<T, true>);

}  // namespace
}  // namespace macaron_tf

#endif  // MACARON_TF_KERNELS_NATIVE_LAYER_NORM_OPS_H_
