#include "runtime/pool.h"

#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <system_error>

#include "isa/isa.h"
#include "isa/tile_registers.h"

namespace eagre {
namespace {

constexpr auto kSpinTime = std::chrono::microseconds(50);  // before a worker sleeps
constexpr int kPausesPerLook = 16;                         // between two looks at the clock
constexpr int kPausesBeforeYield = 1000;                   // of the caller, who waits for the last tasks
constexpr auto kLateTime = std::chrono::milliseconds(2);   // a caller that has waited longer takes a worker for put aside
constexpr int kMostThreads = 1024;

#ifdef __linux__
// Cores that this process may run on. Threads of one core share its vector units, so they count once.
int allowed_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 0;
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) continue;
    const std::string number = std::to_string(cpu);
    std::string siblings = number;  // where the system does not say, a core of its own
    std::ifstream("/sys/devices/system/cpu/cpu" + number + "/topology/thread_siblings_list") >> siblings;
    cores.insert(siblings);
  }
  return static_cast<int>(cores.size());
}

// Cores' worth of time that a container's control group (version 2) grants, or 0 where it sets no limit.
int granted_cores() {
  double quota = 0, period = 0;
  std::ifstream limit("/sys/fs/cgroup/cpu.max");
  if (!(limit >> quota >> period) || period <= 0) return 0;  // "max 100000" is no number
  return std::max(1, static_cast<int>(quota / period));
}
#endif

int default_num_threads() {
  if (const char* text = std::getenv("EAGRE_THREADS")) {
    const int wanted = std::atoi(text);
    if (wanted >= 1) return std::min(wanted, kMostThreads);
  }
  int cores = 0;
#ifdef __linux__
  cores = allowed_cores();
  if (const int granted = granted_cores(); granted > 0) cores = std::min(cores, granted);
#endif
  return std::clamp(cores > 0 ? cores : static_cast<int>(std::thread::hardware_concurrency()), 1, kMostThreads);
}

}  // namespace

Pool& Pool::shared() {
  // The first call makes the pool, so that its threads inherit the floating point modes in which XLA runs programs. In
  // other modes denormal numbers would count, and a result would depend on the thread that computes it. The pool is
  // never destroyed, because a thread of the runtime may still be inside a kernel at exit.
  static Pool* pool = new Pool(default_num_threads());
  return *pool;
}

Pool::Pool(int num_threads) : shares_(std::max(1, num_threads)), affinity_(std::max(1, num_threads)) {
  for (int thread = 1; thread < num_threads; ++thread) {
    try {
      workers_.emplace_back([this, thread] { work(thread); });
    } catch (const std::system_error&) {
      break;  // the system grants no more threads, and fewer do as well
    }
  }
}

Pool::~Pool() {
  {
    const std::lock_guard<std::mutex> lock(sleep_mutex_);
    is_stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::run_job(const Job& job, int64_t num_tasks) {
  // Nobody reads job_ now, because the last call has waited for everyone who took a task of it.
  job_ = job;
  num_done_.store(0, std::memory_order_relaxed);
  const uint64_t number = (number_.load(std::memory_order_relaxed) + 1) & kNumberMask;
  const int64_t threads = num_threads();
  for (int64_t thread = 0; thread < threads; ++thread) {
    const auto [first, end] = share(num_tasks, threads, thread);
    shares_[thread].tasks.store(share_of(number, first, end), std::memory_order_release);
  }
  number_.store(number, std::memory_order_seq_cst);
  affinity_.separate_threads();
  if (num_asleep_.load(std::memory_order_seq_cst) > 0) {
    { const std::lock_guard<std::mutex> lock(sleep_mutex_); }  // whoever is about to sleep sees the number or the call
    wake_.notify_all();
  }
  const int64_t done = run_tasks(number, 0);
  if (job.next != nullptr) callers_ahead_ = job.next[0];
  num_done_.fetch_add(done, std::memory_order_acq_rel);
  std::optional<std::chrono::steady_clock::time_point> late_since;
  for (int num_pauses = 0; num_done_.load(std::memory_order_acquire) < num_tasks;) {
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

// All that is left of a job for a thread: its own share from the front, then those of the threads behind it from the end,
// so that each share's owner goes on reading where it reads.
int64_t Pool::run_tasks(uint64_t number, int thread) {
  int64_t done = run_share(shares_[thread], number, thread, true);
  const int threads = num_threads();
  for (int i = 1; i < threads; ++i) done += run_share(shares_[(thread + i) % threads], number, thread, false);
  if (done > 0) end_tasks();
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

bool Pool::wait_for_job_after(int thread, uint64_t number, Prefetch& ahead) {
  const auto is_there = [&] { return number_.load(std::memory_order_seq_cst) != number; };
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
    std::unique_lock<std::mutex> lock(sleep_mutex_);
    num_asleep_.fetch_add(1, std::memory_order_seq_cst);
    wake_.wait(lock, [&] { return is_stopping_ || is_there(); });
    num_asleep_.fetch_sub(1, std::memory_order_seq_cst);
    if (is_stopping_) return false;
  }
  return true;
}

void Pool::work(int thread) {
  uint64_t number = 0;
  Prefetch ahead;
  while (wait_for_job_after(thread, number, ahead)) {
    affinity_.record_processor(thread);
    number = number_.load(std::memory_order_acquire);
    const int64_t done = run_tasks(number, thread);
    if (done == 0) continue;  // the job may be over, and another one written in its place
    if (job_.next != nullptr) ahead = job_.next[thread];
    num_done_.fetch_add(done, std::memory_order_acq_rel);
  }
}

}  // namespace eagre
