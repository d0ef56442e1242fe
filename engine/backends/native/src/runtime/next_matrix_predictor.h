// Predicts which weight matrix the next product reads, so that waiting threads can prefetch it.
//
// A step of few rows is bound by memory, but memory rests wherever threads wait: for each other at the end of a product,
// for the caller who packs the next one's rows, and while XLA goes from one call to the next. Programs multiply by the
// same matrices in the same order step after step, so what followed a matrix the last time is prefetched in those waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/prefetch.h"

namespace eagre {

class NextMatrixPredictor {
 public:
  // Notes that a product with a matrix begins. Returns what each thread will read first of the matrix that followed this
  // one the last time, or null where none is known; it is valid until the next call. `begin_of(thread)` is what a thread
  // reads first of this matrix, and is called where another matrix followed the one before the last time.
  template <class BeginOf>
  const Prefetch* predict(const std::byte* matrix, int num_threads, const BeginOf& begin_of) {
    if (last_ != nullptr && last_->next != matrix) {
      last_->next = nullptr;  // until all is there: memory for it may be refused
      last_->begins.clear();
      for (int thread = 0; thread < num_threads; ++thread) last_->begins.push_back(begin_of(thread));
      last_->next = matrix;
    }
    last_ = &entries_[slot_of(matrix)];
    if (last_->matrix != matrix) *last_ = {matrix, nullptr, {}};
    return last_->next == nullptr ? nullptr : last_->begins.data();
  }

 private:
  // A matrix is identified by its address. A freed one is prefetched at most, which reads nothing.
  struct Entry {
    const std::byte* matrix = nullptr;
    const std::byte* next = nullptr;
    std::vector<Prefetch> begins;
  };

  static constexpr int kSlotBits = 10;

  static size_t slot_of(const std::byte* matrix) {
    constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;  // Knuth's multiplicative hash
    return reinterpret_cast<uintptr_t>(matrix) / 64 * kGolden >> (64 - kSlotBits);
  }

  std::vector<Entry> entries_ = std::vector<Entry>(size_t{1} << kSlotBits);  // two matrices in one slot forget each other
  Entry* last_ = nullptr;
};

}  // namespace eagre
