// The numbers that the kernels' loops load and store: float and bfloat16. Arithmetic is float.

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

// The upper half of a float.
struct BFloat16 {
  uint16_t bits;
};

inline float Load(float value) { return value; }
inline float Load(BFloat16 value) { return Bits<float>(static_cast<uint32_t>(value.bits) << 16); }

inline void Store(float value, float& to) { to = value; }
inline void Store(float value, BFloat16& to) {
  const uint32_t bits = Bits<uint32_t>(value);
  // To nearest, ties to even: adding just under half a place carries into the upper half.
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  // The carry could turn a NaN into infinity.
  to.bits = static_cast<uint16_t>(value != value ? 0x7fc0u : rounded);
}

// A loop whose turns share nothing, and a function that is optimized by itself: inlined, GCC 12
// gives up on some of these loops, and they take eight times as long.
#if defined(__clang__)
#define MACARON_TF_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define MACARON_TF_INDEPENDENT _Pragma("GCC ivdep")
#endif
#define MACARON_TF_ALONE __attribute__((noinline))

}  // namespace macaron_tf

#endif  // MACARON_TF_KERNELS_NATIVE_NUMBERS_H_
