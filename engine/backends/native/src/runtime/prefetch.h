// Prefetches memory that will be read soon, a few cache lines at a time, between the instructions of other work.
#pragma once

#include <cstdint>

#include "isa/isa.h"

namespace eagre {

// Up to kStretches stretches of memory of one length, prefetched in one of two ways: in parallel, or one after the other.
class Prefetch {
 public:
  static constexpr int kStretches = 4;

  // Sets the stretches to prefetch. A stretch that is null is left out.
  void begin(const uint8_t* const (&stretches)[kStretches], int64_t bytes) {
    for (int i = 0; i < kStretches; ++i) stretches_[i] = stretches[i];
    bytes_ = bytes;
    num_begun_ = 0;
    at_ = left_ = 0;
  }

  // Prefetches the next `lines` times 64 bytes of each stretch, in parallel. The processor's own prefetcher follows each of
  // several stretches that are read at once, and so has more memory in flight than when it reads one after the other.
  // (On an Intel server a thread reads 14 GB/s from 4 stretches of 4 KiB at once, 10 GB/s from one.)
  void prefetch_each(int lines) {
    for (int line = 0; line < lines && at_ < bytes_; ++line, at_ += 64) {
      for (const uint8_t* stretch : stretches_) {
        if (stretch != nullptr) prefetch_later(stretch + at_);
      }
    }
  }

  // Whether all stretches have been prefetched in parallel.
  bool is_done() const { return at_ >= bytes_; }

  // Prefetches the next kLines times 64 bytes, one stretch after the other, and perhaps some lines past its end.
  // Attention on a Zen 4 reads its pages some 15 % faster in this way. Such a processor drops prefetches beyond those that
  // it can have in flight, so no more than those are issued at once.
  template <int kLines>
  void prefetch_lines() {
    while (left_ <= 0) {
      if (num_begun_ == kStretches) return;
      at_ = 0;
      left_ = stretches_[num_begun_++] == nullptr ? 0 : bytes_;
    }
    const uint8_t* const from = stretches_[num_begun_ - 1] + at_;
    for (int line = 0; line < kLines; ++line) prefetch_later(from + 64 * line);
    at_ += 64 * kLines;
    left_ -= 64 * kLines;
  }

 private:
  const uint8_t* stretches_[kStretches] = {};
  int64_t bytes_ = 0;
  int num_begun_ = kStretches;
  int64_t at_ = 0, left_ = 0;  // of all stretches, or of the one that was begun last
};

}  // namespace eagre
