// Operations for SwishRNN's recurrence, with and without a gate: inputs, outputs and shapes. The
// kernels are in swish_kernels.h, and the loops in swish_loops.h.

#ifndef MACARON_TF_KERNELS_NATIVE_SWISH_OPS_H_
#define MACARON_TF_KERNELS_NATIVE_SWISH_OPS_H_

#include <vector>

#include "swish_kernels.h"

namespace macaron_tf {
namespace {

using tensorflow::shape_inference::DimensionHandle;

// Returns the shape of an optional argument, which is a list of at most one tensor.
absl::Status OptionalShape(InferenceContext* context, const char* list, int rank,
                           ShapeHandle* shape) {
  std::vector<ShapeHandle> shapes;
  TF_RETURN_IF_ERROR(context->input(list, &shapes));
  if (shapes.size() > 1) return InvalidArgument(list, " must have at most one tensor");
  *shape = context->UnknownShapeOfRank(rank);
  return shapes.empty() ? absl::OkStatus() : context->WithRank(shapes[0], rank, shape);
}

// Checks the shapes of the inputs, and sets `state` to (B, L, R), the shape of c.
absl::Status StateShape(InferenceContext* context, bool gated, ShapeHandle* state) {
  ShapeHandle x, vector;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 3, &x));
  DimensionHandle width = context->Dim(x, 2);
  if (gated) TF_RETURN_IF_ERROR(context->Divide(width, 2, /*evenly_divisible=*/true, &width));
  for (int i = 1; i <= (gated ? 4 : 2); ++i) {
    TF_RETURN_IF_ERROR(context->WithRank(context->input(i), 1, &vector));
    TF_RETURN_IF_ERROR(context->Merge(width, context->Dim(vector, 0), &width));
  }
  ShapeHandle mask;
  TF_RETURN_IF_ERROR(OptionalShape(context, "mask", 2, &mask));
  DimensionHandle batch, length;
  TF_RETURN_IF_ERROR(context->Merge(context->Dim(x, 0), context->Dim(mask, 0), &batch));
  TF_RETURN_IF_ERROR(context->Merge(context->Dim(x, 1), context->Dim(mask, 1), &length));
  *state = context->MakeShape({batch, length, width});
  return absl::OkStatus();
}

template <bool kGated>
absl::Status ForwardShapes(InferenceContext* context) {
  ShapeHandle state;
  TF_RETURN_IF_ERROR(StateShape(context, kGated, &state));
  if (!kGated) {
    ShapeHandle start;
    TF_RETURN_IF_ERROR(OptionalShape(context, "start", 3, &start));
  }
  for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, state);
  return absl::OkStatus();
}

// Each gradient has the shape of its input.
template <bool kGated>
absl::Status BackwardShapes(InferenceContext* context) {
  ShapeHandle state;
  TF_RETURN_IF_ERROR(StateShape(context, kGated, &state));
  const int vectors = kGated ? 4 : 2;
  for (int i = 0; i <= vectors; ++i) context->set_output(i, context->input(i));
  if (context->num_outputs() > vectors + 1) {
    ShapeHandle start;
    TF_RETURN_IF_ERROR(OptionalShape(context, "start", 3, &start));
    context->set_output(vectors + 1, start);
  }
  return absl::OkStatus();
}

#define MACARON_TF_ATTRIBUTES \
  Attr("T: {float, bfloat16}").Attr("step_size: int >= 1").Attr("masks: int >= 0")

REGISTER_OP("MacaronTf>SwishRecurrence")
    .Input("x: T")
    .Input("alpha: float")
    .Input("beta: float")
    .Input("mask: masks * uint8")
    .Input("start: starts * float")
    .Output("c: T")
    .Attr("starts: int >= 0")
    .MACARON_TF_ATTRIBUTES
    .SetShapeFn(ForwardShapes<false>);

REGISTER_OP("MacaronTf>SwishRecurrenceGrad")
    .Input("x: T")
    .Input("alpha: float")
    .Input("beta: float")
    .Input("c: T")
    .Input("dy: T")
    .Input("mask: masks * uint8")
    .Input("start: starts * float")
    .Output("dx: T")
    .Output("dalpha: float")
    .Output("dbeta: float")
    .Output("dstart: starts * float")
    .Attr("starts: int >= 0")
    .MACARON_TF_ATTRIBUTES
    .SetShapeFn(BackwardShapes<false>);

REGISTER_OP("MacaronTf>SwishGate")
    .Input("x: T")
    .Input("alpha: float")
    .Input("beta: float")
    .Input("state_bias: float")
    .Input("gate_bias: float")
    .Input("mask: masks * uint8")
    .Output("y: T")
    .Output("c: T")
    .Attr("gate: {'gelu', 'gelu_tanh', 'sigmoid'}")
    .MACARON_TF_ATTRIBUTES
    .SetShapeFn(ForwardShapes<true>);

REGISTER_OP("MacaronTf>SwishGateGrad")
    .Input("x: T")
    .Input("alpha: float")
    .Input("beta: float")
    .Input("state_bias: float")
    .Input("gate_bias: float")
    .Input("c: T")
    .Input("dy: T")
    .Input("mask: masks * uint8")
    .Output("dx: T")
    .Output("dalpha: float")
    .Output("dbeta: float")
    .Output("dstate_bias: float")
    .Output("dgate_bias: float")
    .Attr("gate: {'gelu', 'gelu_tanh', 'sigmoid'}")
    .MACARON_TF_ATTRIBUTES
    .SetShapeFn(BackwardShapes<true>);

MACARON_TF_REGISTER("MacaronTf>SwishRecurrence", SwishKernel<T, false, false>);
MACARON_TF_REGISTER("MacaronTf>SwishRecurrenceGrad", SwishKernel<T, false, true>);
MACARON_TF_REGISTER("MacaronTf>SwishGate", SwishKernel<T, true, false>);
MACARON_TF_REGISTER("MacaronTf>SwishGateGrad", SwishKernel<T, true, true>);

}  // namespace
}  // namespace macaron_tf

#endif  // MACARON_TF_KERNELS_NATIVE_SWISH_OPS_H_
