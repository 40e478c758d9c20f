// Runs the kernels' loops on heap blocks of exactly the right size, the divisions of the work in
// threads of their own, and compares with the undivided result. Compiled with sanitizers.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "cross_entropy_loops.h"
#include "dropout_loops.h"
#include "gelu_loops.h"
#include "layer_norm_loops.h"
#include "swish_loops.h"

namespace {

using namespace macaron_tf;

constexpr int64_t kBatch = 2, kColumns = 32;

// Not std::vector: of bool it shares bytes between elements.
template <class T>
std::unique_ptr<T[]> Filled(int64_t size, float scale) {
  std::unique_ptr<T[]> values(new T[size]);
  for (int64_t i = 0; i < size; ++i) {
    const float unit = static_cast<float>(std::rand()) / static_cast<float>(RAND_MAX);
    Store(scale * (2.0f * unit - 1.0f), values[i]);
  }
  return values;
}

template <class T>
void ExpectEqual(const char* what, const T* actual, const T* expected, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    const float a = Load(actual[i]), e = Load(expected[i]);
    if (std::isnan(a) && std::isnan(e)) continue;
    if (a == e || std::fabs(a - e) <= 1e-5f * std::fabs(e)) continue;
    std::fprintf(stderr, "%s[%d] is %g, undivided %g\n", what, static_cast<int>(i), a, e);
    std::exit(1);
  }
}

template <class Run>
void Divided(int64_t width, Run run) {
  std::vector<std::thread> threads;
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t first = 0; first < width; first += kColumns) {
      threads.emplace_back(run, b, first, std::min(first + kColumns, width));
    }
  }
  for (std::thread& thread : threads) thread.join();
}

template <class Run>
void Undivided(int64_t width, Run run) {
  for (int64_t b = 0; b < kBatch; ++b) run(b, int64_t{0}, width);
}

template <class T>
struct Outputs {
  std::unique_ptr<T[]> c, y, dx;
  std::unique_ptr<float[]> dstart, sums;
};

template <class T, class Gate>
void Check(int64_t length, int64_t width, int64_t step_size, bool masked, bool started) {
  constexpr bool kGated = !std::is_same_v<Gate, NoGate>;
  constexpr int64_t kSums = kGated ? 4 : 2;
  const int64_t stride = kGated ? 2 * width : width;
  const int64_t rows = kBatch * length, starts = kBatch * step_size * width;

  const auto x = Filled<T>(rows * stride, 3.0f);
  const float odd[] = {std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity(), 1e30f, -1e30f, 1e-42f};
  for (int64_t i = 0; i < std::min<int64_t>(6, rows * stride); ++i) {
    Store(odd[i], x[rows * stride - 1 - i]);
  }
  const auto dy = Filled<T>(rows * width, 1.0f);
  const auto start = Filled<float>(starts, 1.0f);
  std::unique_ptr<float[]> vectors[4];
  for (auto& vector : vectors) vector = Filled<float>(width, 2.0f);
  std::unique_ptr<uint8_t[]> mask(new uint8_t[rows]);
  for (int64_t i = 0; i < rows; ++i) mask[i] = (i + 1) % 3;

  const Inputs<T> in = {length,
                        width,
                        stride,
                        step_size,
                        x.get(),
                        vectors[0].get(),
                        vectors[1].get(),
                        kGated ? vectors[2].get() : nullptr,
                        kGated ? vectors[3].get() : nullptr,
                        masked ? mask.get() : nullptr,
                        started ? start.get() : nullptr};
  const auto run = [&](auto divide) {
    Outputs<T> out;
    out.c.reset(new T[rows * width]);
    if (kGated) out.y.reset(new T[rows * width]);
    out.dx.reset(new T[rows * stride]);
    if (started) out.dstart.reset(new float[starts]);
    out.sums.reset(new float[kBatch * kSums * width]);
    divide(width, [&](int64_t b, int64_t first, int64_t last) {
      Forward<Gate>(in, b, first, last, out.c.get(), out.y.get());
    });
    divide(width, [&](int64_t b, int64_t first, int64_t last) {
      Backward<Gate>(in, b, first, last, out.c.get(), dy.get(), out.dx.get(), out.dstart.get(),
                     out.sums.get() + b * kSums * width);
    });
    return out;
  };
  const auto actual = run([](int64_t n, auto each) { Divided(n, each); });
  const auto expected = run([](int64_t n, auto each) { Undivided(n, each); });
  ExpectEqual("c", actual.c.get(), expected.c.get(), rows * width);
  if (kGated) ExpectEqual("y", actual.y.get(), expected.y.get(), rows * width);
  ExpectEqual("dx", actual.dx.get(), expected.dx.get(), rows * stride);
  if (started) ExpectEqual("dstart", actual.dstart.get(), expected.dstart.get(), starts);
  ExpectEqual("sums", actual.sums.get(), expected.sums.get(), kBatch * kSums * width);
}

template <class T, class Gate>
void CheckShapes() {
  for (const int64_t length : {0, 1, 2, 19}) {
    for (const int64_t width : {1, 37, 70}) {
      for (const int64_t step_size : {1, 3}) {
        Check<T, Gate>(length, width, step_size, false, false);
        Check<T, Gate>(length, width, step_size, true, std::is_same_v<Gate, NoGate>);
      }
    }
  }
}

template <class T>
void CheckGates() {
  CheckShapes<T, NoGate>();
  CheckShapes<T, ErfGelu>();
  CheckShapes<T, TanhGelu>();
  CheckShapes<T, SigmoidGate>();
}

// Rows of x divided between two threads, each with vectors of sums of its own.
template <class T>
void CheckRows(int64_t rows, int64_t width) {
  const int64_t size = rows * width;
  const auto x = Filled<T>(size, 3.0f), dy = Filled<T>(size, 1.0f);
  const auto scale = Filled<float>(width, 1.0f), offset = Filled<float>(width, 1.0f);
  const DropoutParameters dropped = {{1, 2}, 20000, 1.5f};
  struct Results {
    std::unique_ptr<T[]> drop, norm, norm_back, gelu, gelu_back, entropy_back;
  };
  const auto run = [&](int64_t parts) {
    Results out;
    for (auto* tensor : {&out.drop, &out.norm, &out.norm_back, &out.gelu, &out.gelu_back,
                         &out.entropy_back}) {
      tensor->reset(new T[size]);
    }
    std::vector<std::thread> threads;
    for (int64_t part = 0; part < parts; ++part) {
      threads.emplace_back([&, part] {
        const int64_t chunks = (size + kDropoutChunk - 1) / kDropoutChunk;
        Drop(dropped, part * chunks / parts, (part + 1) * chunks / parts, size, x.get(),
             out.drop.get());
        std::unique_ptr<float[]> sums(new float[3 * width]());
        for (int64_t row = part * rows / parts; row < (part + 1) * rows / parts; ++row) {
          const int64_t at = row * width;
          float statistics[2];
          NormalizeRow(width, 1e-5f, x.get() + at, scale.get(), offset.get(), out.norm.get() + at,
                       statistics);
          NormalizeRowBack(width, x.get() + at, scale.get(), statistics, dy.get() + at,
                           out.norm_back.get() + at, sums.get(), sums.get() + width);
          GeluRow<ErfGelu>(width, x.get() + at, offset.get(), out.gelu.get() + at);
          GeluRowBack<ErfGelu>(width, x.get() + at, offset.get(), dy.get() + at,
                               out.gelu_back.get() + at, sums.get() + 2 * width);
          // The gradient in the place of the scores.
          T* scores = out.entropy_back.get() + at;
          std::copy_n(x.get() + at, width, scores);
          float loss, nll;
          CrossEntropyRow(width, 0.1f, scores, row % width, &loss, &nll, statistics);
          CrossEntropyRowBack(width, 0.1f, scores, row % width, statistics, loss, scores);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return out;
  };
  const Results actual = run(2), expected = run(1);
  ExpectEqual("drop", actual.drop.get(), expected.drop.get(), size);
  ExpectEqual("norm", actual.norm.get(), expected.norm.get(), size);
  ExpectEqual("norm_back", actual.norm_back.get(), expected.norm_back.get(), size);
  ExpectEqual("gelu", actual.gelu.get(), expected.gelu.get(), size);
  ExpectEqual("gelu_back", actual.gelu_back.get(), expected.gelu_back.get(), size);
  ExpectEqual("entropy_back", actual.entropy_back.get(), expected.entropy_back.get(), size);
}

template <class T>
void CheckAll() {
  CheckGates<T>();
  for (const int64_t rows : {0, 1, 9}) {
    for (const int64_t width : {1, 63, 64, 130}) CheckRows<T>(rows, width);
  }
}

}  // namespace

int main() {
  CheckAll<float>();
  CheckAll<BFloat16>();
  std::puts("clean");
}
