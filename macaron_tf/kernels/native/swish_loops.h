// Loops for SwishRNN's recurrence c[i] = u sigmoid(alpha u + beta) + x[i] with u = c[i-k] - x[i],
// for its gate y[i] = (c[i] + state_bias) gate(x2[i] + gate_bias), and for their gradients.
//
// The loops do not use TensorFlow, and the compiler vectorizes them. Shapes have the batch size B,
// the length L, the width R and the step size k. One call computes a range of columns of one
// sequence, and no two calls write to the same memory. Tensors are float or BFloat16. The state and
// all arithmetic are float.
//
// Memory bandwidth limits the speed, so each tensor is read or written once. For each position, one
// loop over the columns computes the recurrence and the gate.

#ifndef MACARON_TF_KERNELS_NATIVE_SWISH_LOOPS_H_
#define MACARON_TF_KERNELS_NATIVE_SWISH_LOOPS_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "activations.h"

namespace macaron_tf {

// Inputs of the loops. `stride` is the distance between the x of consecutive positions: R without a
// gate, and 2 R with a gate, because x2 follows x.
template <class T>
struct Inputs {
  int64_t length, width, stride, step_size;
  const T* x;
  const float* alpha;       // (R,)
  const float* beta;        // (R,)
  const float* state_bias;  // (R,); null without a gate
  const float* gate_bias;   // (R,); null without a gate
  const uint8_t* mask;      // (B, L); 0 keeps the state, 2 resets the previous state to 0; or null
  const float* start;       // (B, k, R); null means zeros
};

// Rows of n floats, initially zero. Each row starts at a cache line. Seven cache lines between rows
// prevent rows of 2^j columns from mapping to the same few cache sets, to which the rows of the
// tensors already map. At R = 2048, the gap saves a third of the time of the gate's gradient.
class Rows {
 public:
  Rows(int64_t rows, int64_t n)
      : stride_((n + kLine - 1) / kLine * kLine + 7 * kLine),
        values_(rows * stride_ + kLine, 0.0f),
        first_(values_.data()) {
    const uintptr_t offset = reinterpret_cast<uintptr_t>(first_) / sizeof(float) % kLine;
    first_ += (kLine - static_cast<int64_t>(offset)) % kLine;
  }
  Rows(const Rows&) = delete;
  float* operator[](int64_t row) { return first_ + row * stride_; }

 private:
  static constexpr int64_t kLine = 16;  // floats
  int64_t stride_;
  std::vector<float> values_;
  float* first_;
};

// Copy of the parameters for columns [first, first + n). `power_alpha` and `power_beta` are alpha
// and beta times -log2(e), so that y = power_alpha u + power_beta is an exponent of 2.
struct Parameters {
  Rows rows;
  const float *alpha, *power_alpha, *power_beta, *state_bias, *gate_bias;

  template <class T>
  Parameters(const Inputs<T>& in, int64_t first, int64_t n)
      : rows(5, n),
        alpha(rows[0]),
        power_alpha(rows[1]),
        power_beta(rows[2]),
        state_bias(rows[3]),
        gate_bias(rows[4]) {
    std::copy_n(in.alpha + first, n, rows[0]);
    for (int64_t i = 0; i < n; ++i) rows[1][i] = -kLog2E * in.alpha[first + i];
    for (int64_t i = 0; i < n; ++i) rows[2][i] = -kLog2E * in.beta[first + i];
    if (in.state_bias != nullptr) std::copy_n(in.state_bias + first, n, rows[3]);
    if (in.gate_bias != nullptr) std::copy_n(in.gate_bias + first, n, rows[4]);
  }
};

// Computes one position. `state` is c[i-k] before the call, and c[i] after the call. Without a
// gate, x2 and y are unused.
template <bool kPadded, class Gate, class T>
MACARON_TF_NOINLINE void ForwardRow(int64_t n, const Parameters& parameters, const T* x,
                                    const T* x2, float* state, T* c, T* y) {
  const float *power_alpha = parameters.power_alpha, *power_beta = parameters.power_beta;
  const float *state_bias = parameters.state_bias, *gate_bias = parameters.gate_bias;
  MACARON_TF_INDEPENDENT
  for (int64_t i = 0; i < n; ++i) {
    float next = state[i];
    if constexpr (!kPadded) {
      const float value = Load(x[i]);
      const float u = next - value;
      next = u * SigmoidOfPower(power_alpha[i] * u + power_beta[i]) + value;
      state[i] = next;
    }
    Store(next, c[i]);
    if constexpr (!std::is_same_v<Gate, NoGate>) {
      Store((next + state_bias[i]) * Gate::Value(Load(x2[i]) + gate_bias[i]), y[i]);
    }
  }
}

// Rows of the sums over positions, which are the gradients of the parameters.
enum Sum { kAlphaSum, kBetaSum, kStateBiasSum, kGateBiasSum };

// Computes the gradients for one position. Before the call, `carried` is the gradient that c[i]
// receives from c[i+k]. After the call, it is the gradient for c[i-k], whose value is `past`. `dy`
// is the gradient of y or, without a gate, of c.
template <bool kPadded, class Gate, class T, class Past>
MACARON_TF_NOINLINE void BackwardRow(int64_t n, const Parameters& parameters, const T* x,
                                     const T* x2, const T* c, const Past* past, const T* dy,
                                     float* carried, T* dx, T* dx2, Rows& sums) {
  const float *alpha = parameters.alpha, *power_alpha = parameters.power_alpha;
  const float *power_beta = parameters.power_beta;
  const float *state_bias = parameters.state_bias, *gate_bias = parameters.gate_bias;
  float *alpha_sum = sums[kAlphaSum], *beta_sum = sums[kBetaSum];
  float *state_bias_sum = sums[kStateBiasSum], *gate_bias_sum = sums[kGateBiasSum];
  MACARON_TF_INDEPENDENT
  for (int64_t i = 0; i < n; ++i) {
    float gradient = Load(dy[i]);
    if constexpr (!std::is_same_v<Gate, NoGate>) {
      float slope;
      const float gate = Gate::ValueAndSlope(Load(x2[i]) + gate_bias[i], slope);
      const float gate_gradient = gradient * (Load(c[i]) + state_bias[i]) * slope;
      gradient *= gate;
      Store(gate_gradient, dx2[i]);
      gate_bias_sum[i] += gate_gradient;
      state_bias_sum[i] += gradient;
    }
    gradient += carried[i];
    if constexpr (kPadded) {
      carried[i] = gradient;
      Store(0.0f, dx[i]);
    } else {
      const float u = Load(past[i]) - Load(x[i]);
      float curve;
      const float s = SigmoidOfPower(power_alpha[i] * u + power_beta[i], curve);
      curve *= u;
      const float passed = gradient * (s + alpha[i] * curve);
      carried[i] = passed;
      Store(gradient - passed, dx[i]);
      const float curve_gradient = gradient * curve;
      beta_sum[i] += curve_gradient;
      alpha_sum[i] += curve_gradient * u;
    }
  }
}

// Computes the columns [first, last) of sequence b in c and, with a gate, y, both (B, L, R).
template <class Gate, class T>
void Forward(const Inputs<T>& in, int64_t b, int64_t first, int64_t last, T* c, T* y) {
  const int64_t n = last - first, k = in.step_size;
  const Parameters parameters(in, first, n);
  const int64_t used = std::min(k, in.length);
  Rows states(used, n);
  if (in.start != nullptr) {
    for (int64_t j = 0; j < used; ++j) {
      std::copy_n(in.start + (b * k + j) * in.width + first, n, states[j]);
    }
  }
  for (int64_t t = 0; t < in.length; ++t) {
    const int64_t position = b * in.length + t;
    const int64_t row = position * in.width + first;
    const bool padded = in.mask != nullptr && in.mask[position] == 0;
    if (in.mask != nullptr && in.mask[position] == 2) std::fill_n(states[t % k], n, 0.0f);
    const auto forward = padded ? ForwardRow<true, Gate, T> : ForwardRow<false, Gate, T>;
    const T* x = in.x + position * in.stride + first;
    if constexpr (std::is_same_v<Gate, NoGate>) {
      forward(n, parameters, x, nullptr, states[t % k], c + row, nullptr);
    } else {
      forward(n, parameters, x, x + in.width, states[t % k], c + row, y + row);
    }
  }
}

// Computes the gradients for the columns [first, last) of sequence b, from dy (B, L, R), the inputs
// of `Forward`, and its output c. Writes dx (B, L, stride), dstart (B, k, R) unless it is null, and
// `sums` of sequence b, which is (2, R), or (4, R) with a gate.
template <class Gate, class T>
void Backward(const Inputs<T>& in, int64_t b, int64_t first, int64_t last, const T* c, const T* dy,
              T* dx, float* dstart, float* sums) {
  const int64_t n = last - first, k = in.step_size;
  constexpr bool kGated = !std::is_same_v<Gate, NoGate>;
  const Parameters parameters(in, first, n);
  const int64_t used = std::min(k, in.length);
  Rows zeros(1, n), carried(used, n), sum_rows(4, n);
  for (int64_t t = in.length - 1; t >= 0; --t) {
    const int64_t position = b * in.length + t;
    const int64_t row = position * in.width + first, x_row = position * in.stride + first;
    const T* x2 = kGated ? in.x + x_row + in.width : nullptr;
    T* dx2 = kGated ? dx + x_row + in.width : nullptr;
    const auto backward = [&](auto padded, const auto* past) {
      BackwardRow<decltype(padded)::value, Gate>(n, parameters, in.x + x_row, x2, c + row, past,
                                                 dy + row, carried[t % k], dx + x_row, dx2,
                                                 sum_rows);
    };
    if (in.mask != nullptr && in.mask[position] == 0) {
      backward(std::true_type(), c + row);
    } else if (in.mask != nullptr && in.mask[position] == 2) {
      backward(std::false_type(), zeros[0]);
      std::fill_n(carried[t % k], n, 0.0f);
    } else if (t >= k) {
      backward(std::false_type(), c + row - k * in.width);
    } else if (in.start != nullptr) {
      backward(std::false_type(), in.start + (b * k + t) * in.width + first);
    } else {
      backward(std::false_type(), zeros[0]);
    }
  }
  for (int64_t j = 0; j < (kGated ? 4 : 2); ++j) {
    std::copy_n(sum_rows[j], n, sums + j * in.width + first);
  }
  if (dstart != nullptr) {
    for (int64_t j = 0; j < k; ++j) {
      std::copy_n(j < used ? carried[j] : zeros[0], n, dstart + (b * k + j) * in.width + first);
    }
  }
}

}  // namespace macaron_tf

#endif  // MACARON_TF_KERNELS_NATIVE_SWISH_LOOPS_H_
