// Which of the kernels for several instruction sets run on this machine.
#pragma once

#include <stdexcept>
#include <string>

#if defined(PREFOLD_HAS_AMX)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace prefold {

// Whether kernels for AMX were built, and the processor and the system let this process use it:
// Linux keeps the tiles' registers of processes that asked for them.
inline bool may_use_tiles() {
#if defined(PREFOLD_HAS_AMX)
  static const bool is_granted = [] {
    unsigned int a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned int kBfloats = 1u << 22, kTiles = 1u << 24;
    constexpr int kRequest = 0x1023, kTileData = 18;  // as arch_prctl(2) counts them
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kBfloats) != 0 &&
           (d & kTiles) != 0 && syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  }();
  return is_granted;
#else
  return false;
#endif
}

inline bool runs_here(const std::string& name) {
#if defined(PREFOLD_HAS_X86)
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("f16c");
  if (name == "avx2") return has_avx2;
  if (name == "amx" && !may_use_tiles()) return false;
  if (name == "avx512" || name == "amx") {
    return has_avx2 && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw");
  }
#endif
  return name == "portable";
}

// Kernels of one kind, for one instruction set each, the fastest first. What multiplies no
// matrices has none of its own for AMX.
template <typename Kernel, size_t N>
const Kernel& choose(const std::string& name, const Kernel* const (&kernels)[N]) {
  for (const Kernel* kernel : kernels) {
    if (name == kernel->name && runs_here(name)) return *kernel;
  }
  if (name == "amx" && runs_here(name)) return choose("avx512", kernels);
  throw std::invalid_argument(name + " is no kernel that runs on this machine");
}

}  // namespace prefold
