// Layer normalization of rows (Ba et al. 2016) and its gradient: y = (x - mean) r scale + offset
// with r = 1 / sqrt(variance + epsilon). A row stays in the first-level cache between the passes
// over the row, so memory is read and written only once.

#ifndef MACARON_TF_KERNELS_NATIVE_LAYER_NORM_LOOPS_H_
#define MACARON_TF_KERNELS_NATIVE_LAYER_NORM_LOOPS_H_

#include <cmath>
#include <cstdint>

#include "numbers.h"

namespace macaron_tf {

// Writes y, and the statistics (mean, r) of the row.
template <class T>
MACARON_TF_NOINLINE void NormalizeRow(int64_t n, float epsilon, const T* x, const float* scale,
                                      const float* offset, T* y, float* statistics) {
  const float mean = SumOf(n, [=](int64_t j) { return Load(x[j]); }) / static_cast<float>(n);
  const float squares = SumOf(n, [=](int64_t j) {
    const float centered = Load(x[j]) - mean;
    return centered * centered;
  });
  const float r = 1.0f / std::sqrt(squares / static_cast<float>(n) + epsilon);
  statistics[0] = mean;
  statistics[1] = r;
  MACARON_TF_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) Store((Load(x[j]) - mean) * r * scale[j] + offset[j], y[j]);
}

// Writes dx = r (g - mean(g) - z mean(g z)) with g = dy scale and z = (x - mean) r. Adds dy z to
// the sum for the scale gradient, and dy to the sum for the offset gradient.
template <class T>
MACARON_TF_NOINLINE void NormalizeRowBack(int64_t n, const T* x, const float* scale,
                                          const float* statistics, const T* dy, T* dx,
                                          float* scale_sum, float* offset_sum) {
  const float mean = statistics[0], r = statistics[1], inverse_n = 1.0f / static_cast<float>(n);
  const float mean_g = inverse_n * SumOf(n, [=](int64_t j) { return Load(dy[j]) * scale[j]; });
  const float mean_gz = inverse_n * SumOf(n, [=](int64_t j) {
    return Load(dy[j]) * scale[j] * ((Load(x[j]) - mean) * r);
  });
  MACARON_TF_INDEPENDENT
  for (int64_t j = 0; j < n; ++j) {
    const float gradient = Load(dy[j]);
    const float z = (Load(x[j]) - mean) * r;
    scale_sum[j] += gradient * z;
    offset_sum[j] += gradient;
    Store(r * (gradient * scale[j] - mean_g - z * mean_gz), dx[j]);
  }
}

}  // namespace macaron_tf

#endif  // MACARON_TF_KERNELS_NATIVE_LAYER_NORM_LOOPS_H_
