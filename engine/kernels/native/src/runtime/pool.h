// Threads that share the tasks of one kernel call.
//
// A decode step makes some 150 calls of a few microseconds each, and waking a thread costs more than such a call. So
// workers spin for a short while after a job and sleep only when no other follows. Threads take tasks from a shared
// counter, so that a thread that the system has put aside delays the job by one task at most.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/turns.h"

namespace eagre {

class Pool {
 public:
  // The pool of this process: as many threads as cores it may use, or EAGRE_THREADS of them.
  static Pool& shared();

  explicit Pool(int num_threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Of those who run jobs. There is one caller at a time, because kernels keep their scratch memory.
  Turns& turns() { return turns_; }

  // Calls body(task, thread) for each task from 0 to num_tasks - 1, on the caller and the workers. The body must not
  // throw, because other threads may still be at its tasks.
  template <class Body>
  void run(int64_t num_tasks, const Body& body) {
    if (num_tasks <= 1 || workers_.empty()) {
      for (int64_t task = 0; task < num_tasks; ++task) body(task, 0);
      end_tasks();
      return;
    }
    const auto invoke = [](const void* context, int64_t task, int thread) {
      (*static_cast<const Body*>(context))(task, thread);
    };
    for (int64_t first = 0; first < num_tasks; first += kMostTasks) {
      run_job({invoke, &body, first}, std::min(kMostTasks, num_tasks - first));
    }
  }

 private:
  struct Job {
    void (*invoke)(const void* context, int64_t task, int thread);
    const void* context;
    int64_t first_task;
  };

  static constexpr int kTaskBits = 20;
  static constexpr int64_t kMostTasks = (int64_t{1} << kTaskBits) - 1;  // of one job
  static constexpr uint64_t kTaskMask = kMostTasks;
  static uint64_t number_of(uint64_t ticket) { return ticket >> (2 * kTaskBits); }
  static int64_t num_tasks_of(uint64_t ticket) { return static_cast<int64_t>(ticket >> kTaskBits & kTaskMask); }
  static int64_t next_task_of(uint64_t ticket) { return static_cast<int64_t>(ticket & kTaskMask); }

  // A thread calls this when it has done its tasks of a job.
  static void end_tasks();
  void run_job(const Job& job, int64_t num_tasks);
  int64_t run_tasks(uint64_t number, int thread);
  void work(int thread);
  bool wait_for_job_after(uint64_t number);

  Job job_{};
  // A job's number, the number of its tasks and the next task to take share one word, so that a thread that comes late
  // cannot mistake a task of another job for one of its own. The number wraps after 2^24 jobs: a worker that has slept
  // through exactly so many misses a job, which the others then do without it.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<int64_t> num_done_{0};
  alignas(64) std::atomic<int> num_asleep_{0};
  std::atomic<bool> is_stopping_{false};
  Turns turns_;
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

// One caller's turn at a pool.
class PoolTurn {
 public:
  PoolTurn(Pool& pool, int64_t run) : turns_(pool.turns()) { turns_.begin(run); }
  ~PoolTurn() { turns_.end(); }
  PoolTurn(const PoolTurn&) = delete;
  PoolTurn& operator=(const PoolTurn&) = delete;

 private:
  Turns& turns_;
};

}  // namespace eagre
