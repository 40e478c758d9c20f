// Number types that the loops load and store: float and bfloat16. All arithmetic is in float.

#ifndef MACARON_TF_KERNELS_NATIVE_NUMBERS_H_
#define MACARON_TF_KERNELS_NATIVE_NUMBERS_H_

#include <cstdint>
#include <cstring>

namespace macaron_tf {

template <class To, class From>
inline To Bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits as another type");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// A bfloat16 number, which is the upper half of a float.
struct BFloat16 {
  uint16_t bits;
};

inline float Load(float value) { return value; }
inline float Load(BFloat16 value) { return Bits<float>(static_cast<uint32_t>(value.bits) << 16); }

inline void Store(float value, float& to) { to = value; }
inline void Store(float value, BFloat16& to) {
  const uint32_t bits = Bits<uint32_t>(value);
  // Rounds to nearest, ties to even: adding 0x7fff plus the lowest kept bit carries into the upper
  // half if the lower half must be rounded up.
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  // The carry could turn a NaN into infinity.
  to.bits = static_cast<uint16_t>(value != value ? 0x7fc0u : rounded);
}

// Returns the sum of term(0) to term(n - 1), computed in 64 partial sums. Float addition is not
// associative, so the compiler could not vectorize a single sum.
template <class Term>
inline float SumOf(int64_t n, Term term) {
  constexpr int kLanes = 64;
  alignas(64) float lanes[kLanes] = {};
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    for (int l = 0; l < kLanes; ++l) lanes[l] += term(j + l);
  }
  for (int l = 0; j + l < n; ++l) lanes[l] += term(j + l);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

// MACARON_TF_INDEPENDENT marks a loop with independent iterations. MACARON_TF_NOINLINE prevents
// inlining of a function: GCC 12 does not vectorize some of the loops after inlining, and they then
// take eight times as long.
#if defined(__clang__)
#define MACARON_TF_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define MACARON_TF_INDEPENDENT _Pragma("GCC ivdep")
#endif
#define MACARON_TF_NOINLINE __attribute__((noinline))

}  // namespace macaron_tf

#endif  // MACARON_TF_KERNELS_NATIVE_NUMBERS_H_
