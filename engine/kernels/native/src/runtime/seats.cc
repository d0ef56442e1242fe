#include "runtime/seats.h"

#ifdef __linux__
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>

namespace eagre {

void Seats::rest() {
  if (num_of_rest_ > 0) return;
  rest_ = num_since_rest_ < kSoon ? std::min(2 * rest_, kLongestRest) : kShortestRest;
  num_of_rest_ = rest_;
  num_since_rest_ = 0;
}

#ifdef __linux__

void Seats::tell(int thread) {
  Seat& seat = seats_[thread];
  if (seat.id.load(std::memory_order_relaxed) == 0) {
    seat.id.store(static_cast<int>(syscall(SYS_gettid)), std::memory_order_relaxed);
  }
  if (seat.is_moved.load(std::memory_order_acquire)) {
    sched_setaffinity(0, sizeof seat.allowed, &seat.allowed);
    seat.is_moved.store(false, std::memory_order_release);
  }
  const int here = sched_getcpu();
  if (seat.processor.load(std::memory_order_relaxed) != here) seat.processor.store(here, std::memory_order_relaxed);
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
  for (size_t thread = 1; thread < seats_.size(); ++thread) {
    if (seats_[thread].processor.load(std::memory_order_relaxed) == here) move(static_cast<int>(thread), here);
  }
}

void Seats::move(int thread, int callers) {
  cpu_set_t allowed;  // of the caller, which nobody moves: what the process may use now
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  cpu_set_t others = allowed;
  CPU_CLR(callers, &others);
  if (CPU_COUNT(&others) == 0) return;
  cpu_set_t free = others;
  for (size_t other = 1; other < seats_.size(); ++other) {
    const int taken = seats_[other].processor.load(std::memory_order_relaxed);
    if (static_cast<int>(other) != thread && taken >= 0 && taken < CPU_SETSIZE) CPU_CLR(taken, &free);
  }
  Seat& seat = seats_[thread];
  if (!seat.is_moved.load(std::memory_order_acquire)) seat.allowed = allowed;
  seat.processor.store(kNowhere, std::memory_order_relaxed);
  const cpu_set_t& wanted = CPU_COUNT(&free) > 0 ? free : others;
  if (sched_setaffinity(seat.id.load(std::memory_order_relaxed), sizeof wanted, &wanted) != 0) {
    may_move_ = false;  // a sandbox forbids it
    return;
  }
  seat.is_moved.store(true, std::memory_order_release);  // last, so that the worker undoes it after it was done
}

#else

void Seats::tell(int) {}
void Seats::spread() {}
void Seats::move(int, int) {}

#endif

}  // namespace eagre
