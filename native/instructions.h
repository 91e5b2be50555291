// Which of the kernels for several instruction sets run on this machine.
#pragma once

#include <stdexcept>
#include <string>

namespace prefold {

inline bool runs_here(const std::string& name) {
#if defined(PREFOLD_HAS_X86)
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("f16c");
  if (name == "avx2") return has_avx2;
  if (name == "avx512") {
    return has_avx2 && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw");
  }
#endif
  return name == "portable";
}

// Kernels of one kind, for one instruction set each, the fastest first.
template <typename Kernel, size_t N>
const Kernel& choose(const std::string& name, const Kernel* const (&kernels)[N]) {
  for (const Kernel* kernel : kernels) {
    if (name == kernel->name && runs_here(name)) return *kernel;
  }
  throw std::invalid_argument(name + " is no kernel that runs on this machine");
}

}  // namespace prefold
