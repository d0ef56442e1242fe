// Threads that share the tasks of one kernel call.
//
// A decode step makes some 150 calls of a few microseconds each, and waking a thread costs more than such a call. So
// workers spin for a short while after a job and sleep only when no other follows, or where they keep the caller from its
// processor (runtime/thread_affinity.h). A waiting worker yields its processor once to other threads: it has no task then.
// Each thread begins with a share of neighbouring tasks, which read neighbouring memory, and then takes tasks from the
// ends of the others' shares, so that a thread that the system has put aside delays the job by one task at most.
//
// On a machine with several memory nodes each worker stays on the processors of its node (nodes/thread_nodes.h), and takes
// tasks of its own node's threads before those of others. Threads are in groups, so that few of them write to one line of
// memory, and look at a group at once whose tasks are all taken. A job of few tasks is for as many threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "nodes/thread_nodes.h"
#include "runtime/prefetch.h"
#include "runtime/thread_affinity.h"
#include "runtime/turns.h"
#include "runtime/wake_tree.h"

namespace eagre {

class Pool {
 public:
  // The pool of this process, of ThreadNodes::shared().
  static Pool& shared();

  explicit Pool(int num_threads) : Pool(ThreadNodes(num_threads)) {}
  explicit Pool(const ThreadNodes& nodes);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }
  const ThreadNodes& nodes() const { return nodes_; }

  // Of those who run jobs. There is one caller at a time, because kernels keep their scratch memory.
  Turns& turns() { return turns_; }

  // The tasks that a thread begins with, from the first to the end. Of fewer tasks than threads the first threads have one.
  static std::pair<int64_t, int64_t> share(int64_t num_tasks, int64_t num_threads, int64_t thread) {
    const int64_t used = std::min(num_tasks, num_threads);
    if (thread >= used) return {num_tasks, num_tasks};
    return {num_tasks * thread / used, num_tasks * (thread + 1) / used};
  }

  // Calls body(task, thread) for each task from 0 to num_tasks - 1, on the caller and the workers. The body must not
  // throw, because other threads may still be at its tasks. `next` says for each thread what it will read after
  // this call, which waiting threads prefetch, and is null where that is not known.
  template <class Body>
  void run(int64_t num_tasks, const Body& body, const Prefetch* next = nullptr) {
    if (num_tasks <= 1 || workers_.empty()) {
      for (int64_t task = 0; task < num_tasks; ++task) body(task, 0);
      end_tasks();
      return;
    }
    const auto invoke = [](const void* context, int64_t task, int thread) {
      (*static_cast<const Body*>(context))(task, thread);
    };
    for (int64_t first = 0; first < num_tasks; first += kMostTasks) {
      run_job({invoke, &body, first, next}, std::min(kMostTasks, num_tasks - first));
    }
  }

 private:
  struct Job {
    void (*invoke)(const void* context, int64_t task, int thread);
    const void* context;
    int64_t first_task;
    const Prefetch* next;
  };

  // A job's number, and the first and the end of the tasks of a share that nobody has taken. They share one word, so that
  // a thread that comes late cannot mistake a task of another job for one of its own. The number wraps after 2^24 jobs: a
  // worker that has slept through exactly so many misses a job, which the others then do without it.
  struct alignas(64) Share {
    std::atomic<uint64_t> tasks{0};
    int group = 0;  // of its thread
  };

  // Neighbouring threads of one node.
  struct alignas(64) Group {
    std::atomic<int64_t> num_done{0};   // tasks of the last job, by these threads
    std::atomic<uint64_t> taken_of{0};  // the number of a job of whose shares here nothing is left, where one is known
    int first = 0, end = 0;             // threads
    std::vector<int> order;             // in which its threads look for tasks in groups: this one, its node's, the others
  };
  static constexpr int kMostOfGroup = 8;

  static constexpr int kTaskBits = 20;
  static constexpr int64_t kMostTasks = (int64_t{1} << kTaskBits) - 1;  // of one job
  static constexpr uint64_t kNumberMask = (uint64_t{1} << (64 - 2 * kTaskBits)) - 1;
  static constexpr int kUsedBits = 16;
  static uint64_t share_of(uint64_t number, int64_t first, int64_t end) {
    return number << (2 * kTaskBits) | static_cast<uint64_t>(end) << kTaskBits | static_cast<uint64_t>(first);
  }
  static uint64_t number_of(uint64_t share) { return share >> (2 * kTaskBits); }
  static int64_t first_of(uint64_t share) { return static_cast<int64_t>(share & kMostTasks); }
  static int64_t end_of(uint64_t share) { return static_cast<int64_t>(share >> kTaskBits & kMostTasks); }

  // A thread calls this when it has done its tasks of a job.
  static void end_tasks();
  void run_job(const Job& job, int64_t num_tasks);
  int64_t run_tasks(uint64_t number, int thread, int num_used);
  int64_t run_group(Group& group, uint64_t number, int thread, int num_used);
  int64_t run_share(Share& share, uint64_t number, int thread, bool is_own);
  void make_groups();
  void add_done(int thread, int64_t done) {
    groups_[shares_[thread].group].num_done.fetch_add(done, std::memory_order_acq_rel);
  }
  int64_t num_done(int num_used) const;
  void work(int thread);
  bool wait_for_job_after(int thread, uint64_t call, Prefetch& ahead);

  Job job_{};
  const ThreadNodes nodes_;
  std::vector<Share> shares_;  // of each thread
  std::vector<Group> groups_;
  ThreadAffinity affinity_;
  // The last job's number, and in the lowest bits how many threads it is for, the first ones.
  alignas(64) std::atomic<uint64_t> call_{0};
  alignas(64) std::atomic<bool> is_stopping_{false};
  Prefetch callers_ahead_;
  Turns turns_;
  WakeTree sleepers_;
  std::vector<std::thread> workers_;
};

// One caller's turn at a pool.
class PoolTurn {
 public:
  PoolTurn(Pool& pool, int64_t run) : turns_(pool.turns()), run_(run) { turns_.begin(run); }
  ~PoolTurn() { turns_.end(); }
  void make_patient() { turns_.make_patient(); }

  // Whether the call should pause wherever it has computed for some milliseconds.
  bool is_contended() const { return turns_.is_contended(); }

  // Lets other runs have their turn first, whose calls leave nothing as it was in memory that kernels share.
  void pause() {
    turns_.end();
    turns_.begin(run_);
  }

  PoolTurn(const PoolTurn&) = delete;
  PoolTurn& operator=(const PoolTurn&) = delete;

 private:
  Turns& turns_;
  const int64_t run_;
};

}  // namespace eagre
