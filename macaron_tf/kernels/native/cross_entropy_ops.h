// Operations for softmax cross-entropy with label smoothing and for its gradient. The loops are in
// cross_entropy_loops.h.

#ifndef MACARON_TF_KERNELS_NATIVE_CROSS_ENTROPY_OPS_H_
#define MACARON_TF_KERNELS_NATIVE_CROSS_ENTROPY_OPS_H_

#include "cross_entropy_loops.h"
#include "kernel_support.h"

namespace macaron_tf {
namespace {

// Shapes: logits (N, V), labels (N,), statistics (N, 2). The statistics of a row are its maximum
// score and the sum of exp(score - maximum).
REGISTER_OP("MacaronTf>CrossEntropy")
    .Input("logits: T")
    .Input("labels: int32")
    .Output("loss: float")
    .Output("nll: float")
    .Output("statistics: float")
    .Attr("T: {float, bfloat16}")
    .Attr("smoothing: float")
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle logits, labels;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &logits));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 1, &labels));
      for (int i = 0; i < 2; ++i) context->set_output(i, labels);
      context->set_output(2, context->Matrix(context->Dim(labels, 0), 2));
      return absl::OkStatus();
    });

REGISTER_OP("MacaronTf>CrossEntropyGrad")
    .Input("logits: T")
    .Input("labels: int32")
    .Input("statistics: float")
    .Input("dloss: float")
    .Output("dlogits: T")
    .Attr("T: {float, bfloat16}")
    .Attr("smoothing: float")
    .SetShapeFn(UnchangedShape);

inline absl::Status CheckLabels(const Tensor& labels, const RowBlocks& blocks) {
  absl::Status status = CheckShape("labels", labels, TensorShape({blocks.rows}));
  for (int64_t row = 0; status.ok() && row < blocks.rows; ++row) {
    const int32_t label = Read<int32_t>(labels)[row];
    if (label < 0 || label >= blocks.width) {
      status = InvalidArgument("label ", label, " of row ", row, " is not between 0 and ",
                               blocks.width - 1);
    }
  }
  return status;
}

// Computes the losses or, with kBack, their gradient.
template <class T, bool kBack>
class CrossEntropyKernel : public OpKernel {
 public:
  using S = typename StorageOf<T>::type;

  explicit CrossEntropyKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("smoothing", &smoothing_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &logits = context->input(0), &labels = context->input(1);
    const RowBlocks blocks(logits);
    OP_REQUIRES_OK(context, CheckLabels(labels, blocks));
    const TensorShape statistics_shape({blocks.rows, 2});
    if constexpr (kBack) {
      const Tensor &statistics = context->input(2), &dloss = context->input(3);
      OP_REQUIRES_OK(context, CheckShape("statistics", statistics, statistics_shape));
      OP_REQUIRES_OK(context, CheckShape("dloss", dloss, labels.shape()));
      Tensor* dlogits;
      // The gradient overwrites the logits if no other operation reads them.
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, logits.shape(),
                                                                        &dlogits));
      constexpr int64_t kCyclesOfElement = 2;
      blocks.ForEach(context, kCyclesOfElement, [&](int64_t, int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
          const int64_t at = row * blocks.width;
          CrossEntropyRowBack(blocks.width, smoothing_, Read<S>(logits) + at,
                              Read<int32_t>(labels)[row], Read<float>(statistics) + 2 * row,
                              Read<float>(dloss)[row], Write<S>(dlogits) + at);
        }
      });
    } else {
      Tensor *loss, *nll, *statistics;
      OP_REQUIRES_OK(context, context->allocate_output(0, labels.shape(), &loss));
      OP_REQUIRES_OK(context, context->allocate_output(1, labels.shape(), &nll));
      OP_REQUIRES_OK(context, context->allocate_output(2, statistics_shape, &statistics));
      constexpr int64_t kCyclesOfElement = 3;
      blocks.ForEach(context, kCyclesOfElement, [&](int64_t, int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
          CrossEntropyRow(blocks.width, smoothing_, Read<S>(logits) + row * blocks.width,
                          Read<int32_t>(labels)[row], Write<float>(loss) + row,
                          Write<float>(nll) + row, Write<float>(statistics) + 2 * row);
        }
      });
    }
  }

 private:
  float smoothing_;
};

MACARON_TF_REGISTER("MacaronTf>CrossEntropy", CrossEntropyKernel<T, false>);
MACARON_TF_REGISTER("MacaronTf>CrossEntropyGrad", CrossEntropyKernel<T, true>);

}  // namespace
}  // namespace macaron_tf

#endif  // MACARON_TF_KERNELS_NATIVE_CROSS_ENTROPY_OPS_H_
