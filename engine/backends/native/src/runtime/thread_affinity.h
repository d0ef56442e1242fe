// Keeps the threads of a pool on different processors, by sched_setaffinity.
#pragma once

#ifdef __linux__
#include <sched.h>
#endif

#include <atomic>
#include <cstdint>
#include <vector>

namespace eagre {

// A system's scheduler wakes a thread where it ran last, or beside whoever wakes it, and corrects that now and then. On
// two cores a worker that wakes on its caller's processor shares it for many calls, while the other one is idle. So
// before each job the caller looks where the workers ran last, and has the system move those that ran on its own
// processor. Where other processes keep the processors busy, a worker that shares one with them is preempted in the
// middle of a task again and again while its caller waits, and one that shares its caller's processor does less harm.
// So a caller that has waited long moves no worker for a while, and for twice as long each time that this recurs soon.
//
// Does nothing on other systems than Linux. Two hardware threads of a core count as two processors here; the system
// chooses among those to which a worker may go.
class ThreadAffinity {
 public:
  explicit ThreadAffinity(int num_threads) : threads_(num_threads) {}

  // Called before there are workers: a thread is to stay on these processors, as far as the process may use them.
  void keep_to(int thread, const std::vector<int>& processors);

  // Called by a worker when it begins: goes where it is to stay.
  void settle(int thread);

  // Called by a worker, thread 1 or higher: records its processor. A worker that was moved is then allowed everywhere
  // again, so that the system's scheduler can still balance the load.
  void record_processor(int thread);

  // Called by the caller, thread 0: moves workers that ran last on its processor to others. Does nothing where the system
  // does not support it, or where the process may use one processor only. There is one caller at a time.
  void separate_threads();

  // Called by the caller when it has waited long for a preempted worker: no worker is moved for a while.
  void suspend_moves();

  // Whether a worker was on the processor of the caller of the last job when that began. Then the worker should sleep
  // instead of spinning, because the caller cannot compute meanwhile.
  bool is_with_caller(int thread) const {
    const int processor = threads_[thread].processor.load(std::memory_order_relaxed);
    return processor >= 0 && processor == threads_[0].processor.load(std::memory_order_relaxed);
  }

 private:
  static constexpr int kNowhere = -1;  // not recorded yet, or being moved
  // In jobs, of which a step of decoding has some 150 to 200.
  static constexpr int kShortestSuspension = 500, kLongestSuspension = 32'000, kSoon = 4'000;

  struct alignas(64) ThreadState {
    std::atomic<int> processor{kNowhere};
#ifdef __linux__
    std::atomic<int> id{0};  // the system's number of the thread
    std::atomic<bool> is_moved{false};
    bool was_ever_moved = false;  // the caller's own note
    cpu_set_t allowed;            // where a moved thread may go again; only the caller writes, while it is not moved
    cpu_set_t home;               // where it is to stay, if it has one
    bool has_home = false;
#endif
  };

  void begin_suspension(int jobs) { num_suspended_ = jobs, num_since_suspension_ = 0; }

  std::vector<ThreadState> threads_;  // by thread
  int suspension_ = kShortestSuspension, num_suspended_ = 0;  // jobs of a suspension, and those left of the present one
  int64_t num_since_suspension_ = kSoon;

#ifdef __linux__
  static cpu_set_t at_home(const ThreadState& state, const cpu_set_t& allowed);
  void move_thread(int thread, int callers_processor, const cpu_set_t& allowed);
  void update_allowed(const cpu_set_t& allowed);

  bool may_move_ = true;
  cpu_set_t last_allowed_{};  // of the process, when a worker was moved last
#endif
};

}  // namespace eagre
