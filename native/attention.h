// One layer's attention: the schedule's items run by the kernel on all threads.
#pragma once

#include <cstdlib>
#include <memory>
#include <vector>

#include "kernel.h"
#include "schedule.h"

namespace prefold {

struct Result {
  float* data;  // [rows][heads][value_size], no gaps
  int64_t num_rows;
};

struct Inputs {
  Heads query, keys, values;
  const float* sinks;  // one for each head, or null
  Options options;
};

// Memory that is used again from call to call.
class Workspace {
 public:
  // Makes room; throws std::bad_alloc before anything is changed.
  void reserve(int num_threads, int64_t part_numbers);
  Scratch& scratch(int thread) { return scratches_[thread]; }
  float* parts() { return parts_.get(); }
  // Up to where a row's first part holds the sum of the parts before.
  std::vector<int64_t>& merged() { return merged_; }

 private:
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  using Memory = std::unique_ptr<float, Free>;
  static Memory allocate(int64_t numbers);

  std::vector<Memory> memories_;
  std::vector<Scratch> scratches_;
  Memory parts_;
  std::vector<int64_t> merged_;
  int64_t part_room_ = 0;
};

// Writes the new keys and values to their slots, then attends to everything each row sees.
// Everything must have been checked.
void attend(const Kernel& kernel, Step& step, const Layer& layer, const Inputs& inputs,
            const Result& result, int num_threads, Workspace& workspace);

}  // namespace prefold
