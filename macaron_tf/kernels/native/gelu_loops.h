// GELU(x + bias) of rows and its gradient. The gradient needs only x and the bias.

#ifndef MACARON_TF_KERNELS_NATIVE_GELU_LOOPS_H_
#define MACARON_TF_KERNELS_NATIVE_GELU_LOOPS_H_

#include <cstdint>

#include "activations.h"

namespace macaron_tf {

template <class Gelu, class T>
MACARON_TF_NOINLINE void GeluRow(int64_t n, const T* x, const float* bias, T* y) {
  MACARON_TF_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) Store(Gelu::Value(Load(x[j]) + bias[j]), y[j]);
}

// Writes dx = dy gelu'(x + bias), and adds dx to the sum for the bias gradient.
template <class Gelu, class T>
MACARON_TF_NOINLINE void GeluRowBack(int64_t n, const T* x, const float* bias, const T* dy, T* dx,
                                     float* bias_sum) {
  MACARON_TF_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) {
    float slope;
    Gelu::ValueAndSlope(Load(x[j]) + bias[j], slope);
    const float gradient = Load(dy[j]) * slope;
    Store(gradient, dx[j]);
    bias_sum[j] += gradient;
  }
}

}  // namespace macaron_tf

#endif  // MACARON_TF_KERNELS_NATIVE_GELU_LOOPS_H_
