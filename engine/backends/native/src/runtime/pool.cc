#include "runtime/pool.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <system_error>
#include <tuple>

#include "isa/isa.h"
#include "isa/tile_registers.h"

namespace eagre {
namespace {

constexpr auto kSpinTime = std::chrono::microseconds(50);  // before a worker sleeps
constexpr int kPausesPerLook = 16;                         // between two looks at the clock
constexpr int kPausesBeforeYield = 1000;                   // of the caller, who waits for the last tasks
constexpr auto kLateTime = std::chrono::milliseconds(2);   // a caller that has waited longer takes a worker for put aside

}  // namespace

Pool& Pool::shared() {
  // The first call makes the pool, so that its threads inherit the floating point modes in which XLA runs programs. In
  // other modes denormal numbers would count, and a result would depend on the thread that computes it. The pool is
  // never destroyed, because a thread of the runtime may still be inside a kernel at exit.
  static Pool* pool = new Pool(ThreadNodes::shared());
  return *pool;
}

Pool::Pool(const ThreadNodes& nodes)
    : nodes_(nodes),
      shares_(nodes.num_threads()),
      affinity_(nodes.num_threads()),
      sleepers_(nodes.num_threads()) {
  make_groups();
  for (const ThreadNodes::Node& node : nodes_.nodes()) {
    if (!nodes_.are_several()) break;
    for (int thread = node.first; thread < node.end; ++thread) affinity_.keep_to(thread, node.processors);
  }
  for (int thread = 1; thread < nodes.num_threads(); ++thread) {
    try {
      workers_.emplace_back([this, thread] { work(thread); });
    } catch (const std::system_error&) {
      break;  // the system grants no more threads, and fewer do as well
    }
  }
}

Pool::~Pool() {
  is_stopping_ = true;
  sleepers_.wake_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::make_groups() {
  std::vector<std::pair<int, int>> groups, nodes;  // threads; groups
  for (const ThreadNodes::Node& node : nodes_.nodes()) {
    const int size = node.end - node.first, count = (size + kMostOfGroup - 1) / kMostOfGroup;
    nodes.resize(groups.size() + count, {static_cast<int>(groups.size()), static_cast<int>(groups.size()) + count});
    for (int i = 0; i < count; ++i) {
      groups.emplace_back(node.first + size * i / count, node.first + size * (i + 1) / count);
    }
  }
  groups_ = std::vector<Group>(groups.size());
  for (int own = 0; own < static_cast<int>(groups.size()); ++own) {
    Group& group = groups_[own];
    std::tie(group.first, group.end) = groups[own];
    for (int thread = group.first; thread < group.end; ++thread) shares_[thread].group = own;
    const auto [first, end] = nodes[own];  // of its node
    for (int i = 0; i < end - first; ++i) group.order.push_back(first + (own - first + i) % (end - first));
    const int num_groups = static_cast<int>(groups.size());
    for (int i = end; i < first + num_groups; ++i) group.order.push_back(i % num_groups);
  }
}

void Pool::run_job(const Job& job, int64_t num_tasks) {
  // Nobody reads job_ now, because the last call has waited for everyone who took a task of it.
  job_ = job;
  const uint64_t number = ((call_.load(std::memory_order_relaxed) >> kUsedBits) + 1) & kNumberMask;
  const int num_used = static_cast<int>(std::min<int64_t>(num_threads(), num_tasks));
  for (Group& group : groups_) {
    if (group.first >= num_used) break;
    group.num_done.store(0, std::memory_order_relaxed);
    group.taken_of.store(number - 1, std::memory_order_relaxed);  // not this job
  }
  for (int thread = 0; thread < num_used; ++thread) {
    const auto [first, end] = share(num_tasks, num_used, thread);
    shares_[thread].tasks.store(share_of(number, first, end), std::memory_order_release);
  }
  call_.store(number << kUsedBits | static_cast<uint64_t>(num_used), std::memory_order_seq_cst);
  affinity_.separate_threads();
  sleepers_.wake_below(0, num_used);
  const int64_t done = run_tasks(number, 0, num_used);
  if (job.next != nullptr) callers_ahead_ = job.next[0];
  add_done(0, done);
  std::optional<std::chrono::steady_clock::time_point> late_since;
  for (int num_pauses = 0; num_done(num_used) < num_tasks;) {
    if (!callers_ahead_.is_done()) {
      callers_ahead_.prefetch_each(1);
    } else if (num_pauses < kPausesBeforeYield) {
      pause();
      ++num_pauses;
    } else {  // the system has put a worker aside in the middle of a task
      const auto now = std::chrono::steady_clock::now();
      if (!late_since) late_since = now;
      if (now - *late_since > kLateTime) affinity_.suspend_moves();
      std::this_thread::yield();
    }
  }
}

void Pool::end_tasks() {
#if EAGRE_HAS_TILE_REGISTERS
  release_tiles();
#endif
}

// Whoever has added tasks has done all that came before, for the caller too.
int64_t Pool::num_done(int num_used) const {
  int64_t done = 0;
  for (const Group& group : groups_) {
    if (group.first >= num_used) break;
    done += group.num_done.load(std::memory_order_acquire);
  }
  return done;
}

// All that is left of a job for a thread: its own share from the front, then those of the threads behind it from the end,
// so that each share's owner goes on reading where it reads. Those of its group come first, then those of its node.
int64_t Pool::run_tasks(uint64_t number, int thread, int num_used) {
  int64_t done = run_share(shares_[thread], number, thread, true);
  for (const int group : groups_[shares_[thread].group].order) done += run_group(groups_[group], number, thread, num_used);
  if (done > 0) end_tasks();
  return done;
}

int64_t Pool::run_group(Group& group, uint64_t number, int thread, int num_used) {
  const int size = std::min(group.end, num_used) - group.first;
  const bool is_alone = groups_.size() == 1;
  if (size <= 0 || (!is_alone && group.taken_of.load(std::memory_order_relaxed) == number)) return 0;
  int64_t done = 0;
  const int distance = std::abs(thread - group.first);  // so that not all begin with the same one
  for (int i = 1; i <= size; ++i) {
    const int other = group.first + (distance + i) % size;
    if (other != thread) done += run_share(shares_[other], number, thread, false);
  }
  if (!is_alone) group.taken_of.store(number, std::memory_order_relaxed);  // a share only shrinks
  return done;
}

int64_t Pool::run_share(Share& share, uint64_t number, int thread, bool is_own) {
  int64_t done = 0;
  uint64_t tasks = share.tasks.load(std::memory_order_acquire);
  while (number_of(tasks) == number && first_of(tasks) < end_of(tasks)) {
    const int64_t first = first_of(tasks), end = end_of(tasks);
    const uint64_t rest = is_own ? share_of(number, first + 1, end) : share_of(number, first, end - 1);
    if (!share.tasks.compare_exchange_weak(tasks, rest, std::memory_order_acq_rel)) continue;
    job_.invoke(job_.context, job_.first_task + (is_own ? first : end - 1), thread);
    ++done;
    tasks = share.tasks.load(std::memory_order_acquire);
  }
  return done;
}

bool Pool::wait_for_job_after(int thread, uint64_t call, Prefetch& ahead) {
  const auto is_there = [&] { return call_.load(std::memory_order_seq_cst) != call; };
  const auto start = std::chrono::steady_clock::now();
  bool has_yielded = false;
  while (!is_there()) {
    for (int i = 0; i < kPausesPerLook && !is_there(); ++i) {
      if (ahead.is_done()) {
        pause();
      } else {
        ahead.prefetch_each(1);
      }
    }
    // Whoever else wants this processor, as the host that sends a step's tokens, should have it now. Later it would get it
    // in the middle of a task, for which the caller would wait.
    if (!has_yielded && ahead.is_done() && !affinity_.is_with_caller(thread) && !is_there()) {
      std::this_thread::yield();
      has_yielded = true;
      continue;
    }
    if (std::chrono::steady_clock::now() - start < kSpinTime && !affinity_.is_with_caller(thread)) continue;
    affinity_.record_processor(thread);
    sleepers_.sleep(thread, [&] { return is_stopping_ || is_there(); });
    if (is_stopping_) return false;
  }
  return true;
}

void Pool::work(int thread) {
  affinity_.settle(thread);
  uint64_t call = 0;
  Prefetch ahead;
  while (wait_for_job_after(thread, call, ahead)) {
    affinity_.record_processor(thread);
    call = call_.load(std::memory_order_seq_cst);
    const int num_used = static_cast<int>(call & ((1 << kUsedBits) - 1));
    if (thread >= num_used) continue;
    sleepers_.wake_below(thread, num_used);
    const int64_t done = run_tasks(call >> kUsedBits, thread, num_used);
    if (done == 0) continue;  // the job may be over, and another one written in its place
    if (job_.next != nullptr) ahead = job_.next[thread];
    add_done(thread, done);
  }
}

}  // namespace eagre
