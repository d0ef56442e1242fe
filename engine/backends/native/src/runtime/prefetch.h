// Prefetches memory that will be read soon, a few cache lines at a time, between the instructions of other work.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "isa/isa.h"

namespace eagre {

// Where registers are many, as here; with fewer of them nothing has been tried.
#ifdef __AVX512F__
constexpr bool kMayKeepRequests = true;
#else
constexpr bool kMayKeepRequests = false;
inline void wait_for_loads() {}
#endif

// Whether the processor drops no request for its first cache, of however many that are on their way: a Zen 5 does not. (Of
// 256 lines that are asked for in its second cache without a pause, it drops half.)
extern const bool processor_keeps_requests;
inline bool keeps_requests() { return kMayKeepRequests && processor_keeps_requests; }

// Up to kStretches stretches of memory, prefetched in one of two ways: in parallel, or one after the other.
class Prefetch {
 public:
  static constexpr int kStretches = 4;

  // Sets the stretches to prefetch. A stretch that is null is left out.
  void begin(const uint8_t* const (&stretches)[kStretches], int64_t bytes) {
    for (int i = 0; i < kStretches; ++i) stretches_[i] = {stretches[i], stretches[i] == nullptr ? 0 : bytes};
    bytes_ = bytes;
    num_begun_ = 0;
    at_ = left_ = 0;
  }

  // Whether `prefetch_beside` asks for memory in the first cache, where the processor keeps all requests, and whether it waits
  // between them.
  void set_near(bool is_near, bool waits) {
    is_near_ = is_near;
    waits_ = waits;
  }
  bool is_near() const { return is_near_; }
  bool waits() const { return waits_; }

  // Takes the last bytes of a stretch away, so that so many are left.
  void shorten(int stretch, int64_t bytes) { stretches_[stretch].bytes = bytes; }

  // Prefetches the next `lines` times 64 bytes of each stretch, in parallel. The processor's own prefetcher follows each of
  // several stretches that are read at once, and so has more memory in flight than when it reads one after the other.
  // (On an Intel server a thread reads 14 GB/s from 4 stretches of 4 KiB at once, 10 GB/s from one.)
  void prefetch_each(int lines) {
    for (int line = 0; line < lines && at_ < bytes_; ++line, at_ += 64) {
      for (const Stretch& stretch : stretches_) {
        if (at_ < stretch.bytes) prefetch_later(stretch.from + at_);
      }
    }
  }

  // Whether all stretches have been prefetched in parallel.
  bool is_done() const { return at_ >= bytes_; }

  // Of a loop that prefetches beside its work: in each of `count` turns as many lines of 64 bytes as it has asked for.
  struct Turns {
    const uint8_t* from;  // null: there is nothing left
    int count;
  };

  // The next kLines lines for each of up to `most` turns, one stretch after the other, and perhaps some lines past its end.
  // A loop that asks here once keeps count in registers.
  // Attention on a Zen 4 reads its pages some 15 % faster in this way. Such a processor drops prefetches beyond those that
  // it can have in flight, so no more than those are issued at once.
  template <int kLines>
  Turns take(int most) {
    while (left_ <= 0) {
      if (num_begun_ == kStretches) return {nullptr, most};
      at_ = 0;
      left_ = stretches_[num_begun_++].bytes;
    }
    const int count = static_cast<int>(std::min<int64_t>(most, (left_ + 64 * kLines - 1) / (64 * kLines)));
    const uint8_t* const from = stretches_[num_begun_ - 1].from + at_;
    at_ += int64_t{64} * kLines * count;
    left_ -= int64_t{64} * kLines * count;
    return {from, count};
  }

  // The next kLines lines of each of the first two stretches for each of up to `most` turns. They begin in the first one; to
  // the same lines of the other it is `distance`.
  template <int kLines>
  Turns take_of_both(int most) {
    if (at_ >= bytes_) return {nullptr, most};
    const int count = static_cast<int>(std::min<int64_t>(most, (bytes_ - at_ + 64 * kLines - 1) / (64 * kLines)));
    const uint8_t* const from = stretches_[0].from + at_;
    at_ += int64_t{64} * kLines * count;
    return {from, count};
  }
  int64_t distance() const {
    return reinterpret_cast<intptr_t>(stretches_[1].from) - reinterpret_cast<intptr_t>(stretches_[0].from);
  }

  // Prefetches at once, into the first cache, all that `take_of_both` has not asked for.
  void prefetch_rest() {
    for (const Stretch& stretch : stretches_) {
      for (int64_t at = at_; at < stretch.bytes; at += 64) prefetch(stretch.from + at);
    }
    at_ = bytes_;
  }

 private:
  struct Stretch {
    const uint8_t* from = nullptr;
    int64_t bytes = 0;
  };
  Stretch stretches_[kStretches] = {};
  int64_t bytes_ = 0;  // of the longest
  bool is_near_ = false, waits_ = false;
  int num_begun_ = kStretches;
  int64_t at_ = 0, left_ = 0;  // of all stretches, or of the one that was begun last
};

constexpr int kLinesTogether = 16;

// Calls body(turn, is_fast) for `count` turns, and prefetches kLines lines of 64 bytes in each of them, or kNearLines where
// they go to the first cache. The body is always to be inlined: it is there three times. The constant is_fast says
// whether it may be as fast as it can; where requests are dropped, more of them are the sooner they come.
template <int kLines, int kNearLines = kLines, class Body>
[[gnu::always_inline]] inline void prefetch_beside(Prefetch& ahead, int count, const Body& body) {
  constexpr bool kMayAskForBoth = kMayKeepRequests && kNearLines % 2 == 0;
  int turn = 0;
  if (kMayAskForBoth && ahead.is_near()) {
    // Of so many lines together, and then a wait for all that was loaded before: else requests for what is far away would be
    // in the way of those for what is in the second cache.
    constexpr int kOfEach = kMayAskForBoth ? kNearLines / 2 : 1;
    constexpr int kTurns = kNearLines >= kLinesTogether ? 1 : kLinesTogether / kNearLines;
    const Prefetch::Turns turns = ahead.take_of_both<kOfEach>(count);
    const int64_t to_other = ahead.distance();
    const bool waits = ahead.waits();
    const uint8_t* from = turns.from;
    for (const int end = from == nullptr ? 0 : turns.count; turn + kTurns <= end; from += 64 * kTurns * kOfEach) {
      EAGRE_UNROLL(8)
      for (int line = 0; line < kTurns * kOfEach; ++line) {
        prefetch(from + 64 * line);
        prefetch(from + to_other + 64 * line);
      }
      if (waits) wait_for_loads();
      EAGRE_UNROLL(4)
      for (int i = 0; i < kTurns; ++i) body(turn++, std::true_type());
    }
  } else {
    while (turn < count) {
      const Prefetch::Turns turns = ahead.take<kLines>(count - turn);
      const uint8_t* from = turns.from;
      if (from == nullptr) break;
      for (const int end = turn + turns.count; turn < end; ++turn, from += 64 * kLines) {
        EAGRE_UNROLL(16)
        for (int line = 0; line < kLines; ++line) {
          processor_keeps_requests ? prefetch(from + 64 * line) : prefetch_later(from + 64 * line);
        }
        body(turn, std::false_type());
      }
    }
  }
  for (; turn < count; ++turn) body(turn, std::true_type());
}

}  // namespace eagre
