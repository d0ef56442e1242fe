#include "runtime/seats.h"

#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#endif

#include <algorithm>

namespace eagre {

void Seats::rest() {
  if (num_of_rest_ > 0) return;
  rest_ = num_since_rest_ < kSoon ? std::min(2 * rest_, kLongestRest) : kShortestRest;
  begin_rest(rest_);
}

#ifdef __linux__

void Seats::tell(int thread) {
  Seat& seat = seats_[thread];
  if (seat.id.load(std::memory_order_relaxed) == 0) {
    seat.id.store(static_cast<int>(syscall(SYS_gettid)), std::memory_order_relaxed);
  }
  if (seat.is_moved.load(std::memory_order_acquire)) {
    const cpu_set_t allowed = seat.allowed;
    seat.is_moved.store(false, std::memory_order_release);  // first: a move that comes now is undone the next time
    sched_setaffinity(0, sizeof allowed, &allowed);
  }
  const int here = sched_getcpu();
  // With the number of the thread, or a caller that sees the processor alone would move itself.
  if (seat.processor.load(std::memory_order_relaxed) != here) seat.processor.store(here, std::memory_order_release);
}

void Seats::spread() {
  const int here = sched_getcpu();
  std::atomic<int>& mine = seats_[0].processor;
  if (mine.load(std::memory_order_relaxed) != here) mine.store(here, std::memory_order_relaxed);
  if (!may_move_ || here < 0) return;
  if (num_of_rest_ > 0) {
    --num_of_rest_;
    return;
  }
  ++num_since_rest_;
  const bool is_to_follow = num_since_rest_ % kLongestRest == 0;
  cpu_set_t allowed;  // of the caller, which nobody moves: what the process may use now
  bool is_known = false;
  for (size_t thread = 1; thread < seats_.size(); ++thread) {
    if (!is_to_follow && seats_[thread].processor.load(std::memory_order_acquire) != here) continue;
    if (!is_known) {
      // A set that is too small for the machine, or one with the caller's processor alone: nobody can be moved.
      if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) return begin_rest(kLongestRest);
      is_known = true;
      if (is_to_follow) return follow(allowed);
    }
    move(static_cast<int>(thread), here, allowed);
  }
}

void Seats::move(int thread, int callers_processor, const cpu_set_t& allowed) {
  Seat& seat = seats_[thread];
  const int id = seat.id.load(std::memory_order_relaxed);
  if (id == 0) return;  // the number of whoever asks
  cpu_set_t others = allowed;
  CPU_CLR(callers_processor, &others);
  cpu_set_t unused = others;
  for (size_t other = 1; other < seats_.size(); ++other) {
    const int taken = seats_[other].processor.load(std::memory_order_relaxed);
    if (static_cast<int>(other) != thread && taken >= 0 && taken < CPU_SETSIZE) CPU_CLR(taken, &unused);
  }
  if (!seat.is_moved.load(std::memory_order_acquire)) seat.allowed = allowed;
  seat.processor.store(kNowhere, std::memory_order_relaxed);
  const cpu_set_t& wanted = CPU_COUNT(&unused) > 0 ? unused : others;
  if (sched_setaffinity(id, sizeof wanted, &wanted) != 0) {
    may_move_ = errno != EPERM && errno != ENOSYS;  // a sandbox forbids it, or else the set has just changed
    return;
  }
  seat.is_moved.store(true, std::memory_order_release);  // last, so that the worker undoes it after it was done
  seat.was_ever_moved = true;
  last_allowed_ = allowed;
}

// What was moved once has a set of its own, which does not grow with that of the process's container.
void Seats::follow(const cpu_set_t& allowed) {
  if (CPU_EQUAL(&allowed, &last_allowed_)) return;
  for (Seat& seat : seats_) {
    if (!seat.was_ever_moved || seat.is_moved.load(std::memory_order_acquire)) continue;
    seat.allowed = allowed;
    seat.is_moved.store(true, std::memory_order_release);
  }
  last_allowed_ = allowed;
}

#else

void Seats::tell(int) {}
void Seats::spread() {}

#endif

}  // namespace eagre
