#include "activation.h"

#include <omp.h>

#include <algorithm>

namespace prefold {

namespace {

// Fewer numbers than this are not worth another thread.
constexpr int64_t kShare = 16384;

}  // namespace

void activate(const ActivationKernel& kernel, Function function, Element element,
              const void* from, int64_t count, void* to, int num_threads) {
  const int64_t num_parts = std::clamp<int64_t>(count / kShare, 1, num_threads);
  const auto run = [&](int64_t part) {
    const int64_t first = count * part / num_parts, end = count * (part + 1) / num_parts;
    if (element == Element::float32) {
      kernel.apply(function, static_cast<const float*>(from) + first, end - first,
                   static_cast<float*>(to) + first);
    } else {
      kernel.apply_narrow(function, static_cast<const uint16_t*>(from) + first, end - first,
                          static_cast<uint16_t*>(to) + first);
    }
  };
  if (num_parts == 1) {
    run(0);
    return;
  }
#pragma omp parallel for num_threads(int(num_parts)) schedule(static)
  for (int64_t part = 0; part < num_parts; ++part) run(part);
}

}  // namespace prefold
