// Activation functions that the compiler can vectorize: they have no branches, no calls and no
// tables. Their errors are about as large as the rounding error of a float. NaN propagates, and
// infinite inputs give the limits of the functions.

#ifndef MACARON_TF_KERNELS_NATIVE_ACTIVATIONS_H_
#define MACARON_TF_KERNELS_NATIVE_ACTIVATIONS_H_

#include <cmath>
#include <cstdint>

#include "numbers.h"

namespace macaron_tf {

constexpr float kLog2E = 1.44269504f;

// 2^y = fraction * scale for y in [-127, 128], with 0 and infinity at the ends. NaN stays NaN. The
// low bits of y + 1.5 2^23 contain y rounded to an integer, so no cast to an integer is necessary.
struct Power {
  float fraction;
  float scale;

  explicit Power(float y) {
    constexpr float kRound = 12582912.0f + 127.0f;  // 127: a float's exponent bias
    const float shifted = y + kRound;
    const float r = y - (shifted - kRound);  // [-1/2, 1/2]
    // Minimax polynomial with a relative error of 7.5e-8.
    float p = 1.3276476e-3f;
    p = p * r + 9.6755419e-3f;
    p = p * r + 5.5507131e-2f;
    p = p * r + 2.4022120e-1f;
    p = p * r + 6.9314694e-1f;
    p = p * r + 1.0f;
    fraction = p;
    scale = Bits<float>(Bits<uint32_t>(shifted) << 23);
  }
};

// Returns e^z for z <= 0.
inline float ExpOfNegative(float z) {
  const float y = kLog2E * z;
  const Power power(y < -127.0f ? -127.0f : y);
  return power.fraction * power.scale;
}

// Returns s = 1 / (1 + 2^y), which is exactly 1 and 0 at the ends, and sets `curve` to s (1 - s).
// Here 1 - s is computed as 2^y s, which is accurate if s is near 1.
inline float SigmoidOfPower(float y, float& curve) {
  y = y < -127.0f ? -127.0f : y;
  y = y > 128.0f ? 128.0f : y;
  const Power power(y);
  const float e = power.fraction * power.scale;
  const float s = 1.0f / (1.0f + e);
  curve = (e > 3e38f ? 3e38f : e) * s * s;  // infinity times 0 would give NaN
  return s;
}

inline float SigmoidOfPower(float y) {
  float curve;
  return SigmoidOfPower(y, curve);
}

// Gate functions. `Value` returns the gate at z. `ValueAndSlope` also sets `slope` to the gate's
// derivative.
struct NoGate {};

struct SigmoidGate {
  static float Value(float z) { return SigmoidOfPower(-kLog2E * z); }
  static float ValueAndSlope(float z, float& slope) { return SigmoidOfPower(-kLog2E * z, slope); }
};

// GELU by tanh: z / 2 (1 + tanh(w)) = z sigmoid(2 w) with w = sqrt(2 / pi) (z + 0.044715 z^3).
struct TanhGelu {
  static constexpr float kLinear = 2.0f * 0.797884561f;
  static constexpr float kCubic = kLinear * 0.044715f;

  static float Exponent(float z) { return -kLog2E * z * (kLinear + kCubic * z * z); }
  static float Value(float z) { return z * SigmoidOfPower(Exponent(z)); }
  static float ValueAndSlope(float z, float& slope) {
    float curve;
    const float s = SigmoidOfPower(Exponent(z), curve);
    slope = s + z * curve * (kLinear + 3.0f * kCubic * z * z);
    return z * s;
  }
};

// Exact GELU: z Phi(z), where Phi is the cumulative distribution function of the normal
// distribution. For a >= 0, 1 - Phi(a) = e^(-a^2 / 2) Q(a). Q(a) is half of the scaled
// complementary error function erfcx(a / sqrt 2), which a polynomial approximates. The error of the
// product is at most 1.2e-7 / max(1, a). The slope also uses the exponential. There are no
// divisions.
struct ErfGelu {
  static float Phi(float z, float& bell) {
    float a = std::fabs(z);
    a = a > 13.25f ? 13.25f : a;  // from 13.25 on, the power below is 0
    const Power power(-0.5f * kLog2E * a * a);
    bell = power.fraction * power.scale;
    float q = 1.2713592e-6f;
    q = q * a + -2.8996150e-5f;
    q = q * a + 2.9517261e-4f;
    q = q * a + -1.8014407e-3f;
    q = q * a + 7.5419355e-3f;
    q = q * a + -2.3762975e-2f;
    q = q * a + 6.0701830e-2f;
    q = q * a + -1.3230562e-1f;
    q = q * a + 2.4986958e-1f;
    q = q * a + -3.9893247e-1f;
    q = q * a + 4.9999988e-1f;
    const float tail = bell * q;
    return z < 0.0f ? tail : 1.0f - tail;
  }
  static float Value(float z) {
    float bell;
    return z * Phi(z, bell);
  }
  static float ValueAndSlope(float z, float& slope) {
    float bell;
    const float phi = Phi(z, bell);
    slope = phi + z * (0.398942280f * bell);
    return z * phi;
  }
};

}  // namespace macaron_tf

#endif  // MACARON_TF_KERNELS_NATIVE_ACTIVATIONS_H_
