// SwishRNN's recurrence c[i] = u sigmoid(alpha u + beta) + x[i], u = c[i-k] - x[i], alone or with
// its gate y[i] = (c[i] + state_bias) gate(x2[i] + gate_bias), and their gradients.
//
// Plain loops for the compiler to vectorize, without TensorFlow. B batch, L length, R width,
// k step_size. One call takes one sequence and some of its columns; calls share nothing they
// write. Tensors are float or BFloat16, the state and all arithmetic float.
//
// Memory sets the pace, so each tensor is passed over once: a position at a time, its recurrence
// and its gate in one loop over the columns.

#ifndef MACARON_TF_KERNELS_NATIVE_SWISH_LOOPS_H_
#define MACARON_TF_KERNELS_NATIVE_SWISH_LOOPS_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "activations.h"

namespace macaron_tf {

// What the loops read. The first x of a position and the first of the next are `stride` apart: R,
// or 2 R where x2 lies behind x.
template <class T>
struct Inputs {
  int64_t length, width, stride, step_size;
  const T* x;
  const float* alpha;       // (R,), as the next three
  const float* beta;
  const float* state_bias;  // of a gate, else null
  const float* gate_bias;
  const uint8_t* mask;      // (B, L), 0 where the state passes unchanged, 2 where it is 0; or null
  const float* start;       // (B, k, R); or null for zeros
};

// Rows of n floats, all zero, each at the start of a cache line. Seven lines between them keep
// rows of 2^j columns from falling on the same few sets of the cache, where the tensors' rows
// already do: a third of the time of the gate's gradient at R = 2048.
class Rows {
 public:
  Rows(int64_t rows, int64_t n)
      : stride_((n + kLine - 1) / kLine * kLine + 7 * kLine),
        values_(rows * stride_ + kLine, 0.0f),
        first_(values_.data()) {
    const uintptr_t beyond = reinterpret_cast<uintptr_t>(first_) / sizeof(float) % kLine;
    first_ += (kLine - static_cast<int64_t>(beyond)) % kLine;
  }
  Rows(const Rows&) = delete;
  float* operator[](int64_t row) { return first_ + row * stride_; }

 private:
  static constexpr int64_t kLine = 16;  // floats
  int64_t stride_;
  std::vector<float> values_;
  float* first_;
};

// A copy of the parameters of columns [first, first + n). `power_alpha`, `power_beta`: alpha and
// beta times -log2(e), so that u goes straight to 2^y.
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

// One position: `state` in, c[i-k]; out, c[i]. Without a gate x2 and y are unused.
template <bool kHeld, class Gate, class T>
MACARON_TF_ALONE void ForwardRow(int64_t n, const Parameters& parameters, const T* x, const T* x2,
                                 float* state, T* c, T* y) {
  const float *power_alpha = parameters.power_alpha, *power_beta = parameters.power_beta;
  const float *state_bias = parameters.state_bias, *gate_bias = parameters.gate_bias;
  MACARON_TF_INDEPENDENT
  for (int64_t i = 0; i < n; ++i) {
    float next = state[i];
    if constexpr (!kHeld) {
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

// Sums over positions: rows of alpha, beta, state_bias, gate_bias.
enum Sum { kAlphaSum, kBetaSum, kStateBiasSum, kGateBiasSum };

// One position. `carried` in, what c[i] gets from c[i+k]; out, what c[i] gives to c[i-k], whose
// value is `past`. `dy` is of y, or without a gate of c.
template <bool kHeld, class Gate, class T, class Past>
MACARON_TF_ALONE void BackwardRow(int64_t n, const Parameters& parameters, const T* x, const T* x2,
                                  const T* c, const Past* past, const T* dy, float* carried, T* dx,
                                  T* dx2, Rows& sums) {
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
      const float gate = Gate::Both(Load(x2[i]) + gate_bias[i], slope);
      const float inner = gradient * (Load(c[i]) + state_bias[i]) * slope;
      gradient *= gate;
      Store(inner, dx2[i]);
      gate_bias_sum[i] += inner;
      state_bias_sum[i] += gradient;
    }
    gradient += carried[i];
    if constexpr (kHeld) {
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
      const float bent = gradient * curve;
      beta_sum[i] += bent;
      alpha_sum[i] += bent * u;
    }
  }
}

// c and, with a gate, y, each (B, L, R): columns [first, last) of sequence b.
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
    const bool held = in.mask != nullptr && in.mask[position] == 0;
    if (in.mask != nullptr && in.mask[position] == 2) std::fill_n(states[t % k], n, 0.0f);
    const auto forward = held ? ForwardRow<true, Gate, T> : ForwardRow<false, Gate, T>;
    const T* x = in.x + position * in.stride + first;
    if constexpr (std::is_same_v<Gate, NoGate>) {
      forward(n, parameters, x, nullptr, states[t % k], c + row, nullptr);
    } else {
      forward(n, parameters, x, x + in.width, states[t % k], c + row, y + row);
    }
  }
}

// From dy, (B, L, R), what `Forward` made of c, and its inputs. Writes dx (B, L, stride), dstart
// (B, k, R) unless null, and of sequence b `sums`, (2, R) or with a gate (4, R).
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
    const auto backward = [&](auto held, const auto* past) {
      BackwardRow<decltype(held)::value, Gate>(n, parameters, in.x + x_row, x2, c + row, past,
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
