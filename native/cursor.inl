// Where the weights are that the packed linear layer multiplies on a matrix unit next. Part of it.
#pragma once

#include "pieces.inl"
#include "words.inl"

namespace PREFOLD_ISA {

// Panels that are multiplied together, each a column of tiles.
constexpr int64_t kGroupPanels = 2;

// Of two panels.
template <typename Word> struct Pair {
  const Word *one, *other;
};

// Goes through the steps of a group of panels, and then through those of the next one.
template <typename Word> class Cursor {
 public:
  Cursor(const Weights& weights, Range panels, Range steps)
      : weights_(weights), panels_(panels), steps_(steps), panel_(panels.first),
        step_(steps.first) {
    look();
  }

  bool is_over() const { return panel_ >= panels_.end; }
  int64_t num_inputs() const { return weights_.inputs - step_ * kDepth; }
  // Behind the last step those of the last one.
  const Pair<Word>& words() const { return words_; }

  void advance() {
    if (is_over()) return;
    if (++step_ < steps_.end) {
      words_.one += kStepWords;
      words_.other += kStepWords;
      return;
    }
    step_ = steps_.first;
    panel_ += kGroupPanels;
    if (!is_over()) look();
  }

 private:
  static constexpr int64_t kStepWords = kDepth * Words<Word>::count;

  // Instead of a panel that there is not, another one.
  void look() {
    const int64_t panel_words = weights_.inputs * Words<Word>::count;
    words_.one = static_cast<const Word*>(weights_.panels) + panel_ * panel_words +
                 step_ * kStepWords;
    words_.other = panel_ + 1 == panels_.end ? words_.one : words_.one + panel_words;
  }

  const Weights& weights_;
  const Range panels_, steps_;
  int64_t panel_, step_;
  Pair<Word> words_;
};

}  // namespace PREFOLD_ISA
