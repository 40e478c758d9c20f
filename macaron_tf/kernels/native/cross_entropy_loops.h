// Softmax cross-entropy of a row of n scores x with label smoothing e, and its gradient. The target
// is (1 - e) one_hot(label) + e / n. The gradient is p - target with p = softmax(x) =
// exp(x - top) / sum. The gradient computes p from x again.

#ifndef MACARON_TF_KERNELS_NATIVE_CROSS_ENTROPY_LOOPS_H_
#define MACARON_TF_KERNELS_NATIVE_CROSS_ENTROPY_LOOPS_H_

#include <cmath>
#include <cstdint>

#include "activations.h"

namespace macaron_tf {

// Returns the maximum of n values, computed in lanes like `SumOf`. NaN is ignored.
template <class T>
inline float MaximumOf(int64_t n, const T* x) {
  constexpr int kLanes = 64;
  alignas(64) float lanes[kLanes];
  for (int l = 0; l < kLanes; ++l) lanes[l] = -INFINITY;
  const auto take = [&](int l, float value) {
    lanes[l] = value > lanes[l] ? value : lanes[l];
  };
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    for (int l = 0; l < kLanes; ++l) take(l, Load(x[j + l]));
  }
  for (int l = 0; j + l < n; ++l) take(l, Load(x[j + l]));
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) take(l, lanes[l + half]);
  }
  return lanes[0];
}

// Writes the loss, nll = -log p[label], and the statistics (top, sum).
template <class T>
MACARON_TF_NOINLINE void CrossEntropyRow(int64_t n, float smoothing, const T* x, int64_t label,
                                         float* loss, float* nll, float* statistics) {
  const float top = MaximumOf(n, x), label_score = Load(x[label]);
  const float sum = SumOf(n, [=](int64_t j) { return ExpOfNegative(Load(x[j]) - top); });
  *nll = *loss = std::log(sum) - (label_score - top);
  if (smoothing > 0.0f) {
    const float spread = SumOf(n, [=](int64_t j) { return label_score - Load(x[j]); });
    *loss += smoothing * spread / static_cast<float>(n);
  }
  statistics[0] = top;
  statistics[1] = sum;
}

// Writes the gradient dx. dx may be the same array as x.
template <class T>
MACARON_TF_NOINLINE void CrossEntropyRowBack(int64_t n, float smoothing, const T* x, int64_t label,
                                             const float* statistics, float dloss, T* dx) {
  const float top = statistics[0], scale = dloss / statistics[1];
  const float uniform_share = dloss * smoothing / static_cast<float>(n);
  const float label_gradient = scale * ExpOfNegative(Load(x[label]) - top) - uniform_share;
  MACARON_TF_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) {
    Store(scale * ExpOfNegative(Load(x[j]) - top) - uniform_share, dx[j]);
  }
  Store(label_gradient - dloss * (1.0f - smoothing), dx[label]);
}

}  // namespace macaron_tf

#endif  // MACARON_TF_KERNELS_NATIVE_CROSS_ENTROPY_LOOPS_H_
