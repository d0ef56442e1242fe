#include "runtime/thread_affinity.h"

#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#endif

#include <algorithm>

namespace eagre {

void ThreadAffinity::suspend_moves() {
  if (num_suspended_ > 0) return;
  suspension_ = num_since_suspension_ < kSoon ? std::min(2 * suspension_, kLongestSuspension) : kShortestSuspension;
  begin_suspension(suspension_);
}

#ifdef __linux__

void ThreadAffinity::keep_to(int thread, const std::vector<int>& processors) {
  ThreadState& state = threads_[thread];
  CPU_ZERO(&state.home);
  for (const int processor : processors) CPU_SET(processor, &state.home);
  state.has_home = true;
}

void ThreadAffinity::settle(int thread) {
  if (!threads_[thread].has_home) return;
  const cpu_set_t& home = threads_[thread].home;
  sched_setaffinity(0, sizeof home, &home);  // the system leaves out what the process may not use
}

// Where a thread may be of what the process may use. A container that has lost a node has its threads everywhere.
cpu_set_t ThreadAffinity::at_home(const ThreadState& state, const cpu_set_t& allowed) {
  if (!state.has_home) return allowed;
  cpu_set_t own;
  CPU_AND(&own, &allowed, &state.home);
  return CPU_COUNT(&own) > 0 ? own : allowed;
}

void ThreadAffinity::record_processor(int thread) {
  ThreadState& state = threads_[thread];
  if (state.id.load(std::memory_order_relaxed) == 0) {
    state.id.store(static_cast<int>(syscall(SYS_gettid)), std::memory_order_relaxed);
  }
  if (state.is_moved.load(std::memory_order_acquire)) {
    const cpu_set_t allowed = state.allowed;
    state.is_moved.store(false, std::memory_order_release);  // first: a move that comes now is undone the next time
    sched_setaffinity(0, sizeof allowed, &allowed);
  }
  const int here = sched_getcpu();
  // With the number of the thread, or a caller that sees the processor alone would move itself.
  if (state.processor.load(std::memory_order_relaxed) != here) state.processor.store(here, std::memory_order_release);
}

void ThreadAffinity::separate_threads() {
  const int here = sched_getcpu();
  std::atomic<int>& mine = threads_[0].processor;
  if (mine.load(std::memory_order_relaxed) != here) mine.store(here, std::memory_order_relaxed);
  if (!may_move_ || here < 0) return;
  if (num_suspended_ > 0) {
    --num_suspended_;
    return;
  }
  ++num_since_suspension_;
  const bool is_to_update = num_since_suspension_ % kLongestSuspension == 0;
  cpu_set_t allowed;  // of the caller, which is never moved: what the process may use now
  bool is_known = false;
  for (size_t thread = 1; thread < threads_.size(); ++thread) {
    if (!is_to_update && threads_[thread].processor.load(std::memory_order_acquire) != here) continue;
    if (!is_known) {
      // A set that is too small for the machine, or one with the caller's processor alone: no worker can be moved.
      if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) {
        return begin_suspension(kLongestSuspension);
      }
      is_known = true;
      if (is_to_update) return update_allowed(allowed);
    }
    move_thread(static_cast<int>(thread), here, allowed);
  }
}

void ThreadAffinity::move_thread(int thread, int callers_processor, const cpu_set_t& allowed) {
  ThreadState& state = threads_[thread];
  const int id = state.id.load(std::memory_order_relaxed);
  if (id == 0) return;  // 0 would mean the calling thread
  const cpu_set_t own = at_home(state, allowed);
  cpu_set_t others = own;
  CPU_CLR(callers_processor, &others);
  if (CPU_COUNT(&others) == 0) return;  // the only one of its node
  cpu_set_t unused = others;
  for (size_t other = 1; other < threads_.size(); ++other) {
    const int taken = threads_[other].processor.load(std::memory_order_relaxed);
    if (static_cast<int>(other) != thread && taken >= 0 && taken < CPU_SETSIZE) CPU_CLR(taken, &unused);
  }
  if (!state.is_moved.load(std::memory_order_acquire)) state.allowed = own;
  state.processor.store(kNowhere, std::memory_order_relaxed);
  const cpu_set_t& wanted = CPU_COUNT(&unused) > 0 ? unused : others;
  if (sched_setaffinity(id, sizeof wanted, &wanted) != 0) {
    may_move_ = errno != EPERM && errno != ENOSYS;  // a sandbox forbids it, or else the set has just changed
    return;
  }
  state.is_moved.store(true, std::memory_order_release);  // last, so that the worker undoes it after it was done
  state.was_ever_moved = true;
  last_allowed_ = allowed;
}

// A thread that was moved once has an affinity mask of its own, which does not grow with that of the process's container.
void ThreadAffinity::update_allowed(const cpu_set_t& allowed) {
  if (CPU_EQUAL(&allowed, &last_allowed_)) return;
  for (ThreadState& state : threads_) {
    if (!state.was_ever_moved || state.is_moved.load(std::memory_order_acquire)) continue;
    state.allowed = at_home(state, allowed);
    state.is_moved.store(true, std::memory_order_release);
  }
  last_allowed_ = allowed;
}

#else

void ThreadAffinity::keep_to(int, const std::vector<int>&) {}
void ThreadAffinity::settle(int) {}
void ThreadAffinity::record_processor(int) {}
void ThreadAffinity::separate_threads() {}

#endif

}  // namespace eagre
