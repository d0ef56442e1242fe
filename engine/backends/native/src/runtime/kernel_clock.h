// How long the kernels of running programs take, what they read and what they compute, while somebody measures.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

namespace eagre {

// What a call of a kernel does; those of a step's rows that are padding do nothing.
struct KernelWork {
  int64_t num_outputs = 0, num_inputs = 0;  // of its weights; 0: it has none, or they are not counted
  int64_t num_bytes = 0;                    // of weights and pages that it must read
  int64_t num_operations = 0;               // multiplications and additions
};

// The work of the call that this thread is in, which is counted while the clock runs.
inline KernelWork& current_work() {
  thread_local KernelWork work;
  return work;
}

// As engine/backends/native/kernel_times.py reads it: the sums of the calls of a target on weights of one shape.
struct KernelTime {
  char name[48];  // of the target
  int64_t num_outputs, num_inputs;
  int64_t num_calls, num_nanoseconds, num_bytes, num_operations;
};

class KernelClock {
 public:
  static KernelClock& shared() {
    static KernelClock* clock = new KernelClock;  // never destroyed, because a program may still run at exit
    return *clock;
  }

  bool is_running() const { return is_running_.load(std::memory_order_relaxed); }
  void run(bool is_wanted) { is_running_.store(is_wanted, std::memory_order_relaxed); }

  void add(const char* target, const KernelWork& work, std::chrono::nanoseconds time) {
    const std::string shape = std::to_string(work.num_outputs) + 'x' + std::to_string(work.num_inputs);
    const std::lock_guard<std::mutex> lock(mutex_);
    KernelTime& sums = times_[target + (' ' + shape)];  // zeros where it is new
    std::strncpy(sums.name, target, sizeof sums.name - 1);
    sums.num_outputs = work.num_outputs;
    sums.num_inputs = work.num_inputs;
    sums.num_calls += 1;
    sums.num_nanoseconds += time.count();
    sums.num_bytes += work.num_bytes;
    sums.num_operations += work.num_operations;
  }

  // Writes the sums of at most so many kernels, and forgets all; returns how many there were.
  int64_t take(KernelTime* times, int64_t most) {
    const std::lock_guard<std::mutex> lock(mutex_);
    int64_t count = 0;
    for (const auto& [key, sums] : times_) {
      if (count < most) times[count] = sums;
      ++count;
    }
    times_.clear();
    return count;
  }

 private:
  std::atomic<bool> is_running_{false};
  std::mutex mutex_;
  std::map<std::string, KernelTime> times_;
};

// Times a call from its construction to its end, if the clock runs.
class KernelTimer {
 public:
  explicit KernelTimer(const char* target) : target_(KernelClock::shared().is_running() ? target : nullptr) {
    if (target_ == nullptr) return;
    current_work() = {};
    begin_ = std::chrono::steady_clock::now();
  }
  KernelTimer(const KernelTimer&) = delete;
  KernelTimer& operator=(const KernelTimer&) = delete;
  ~KernelTimer() {
    if (target_ != nullptr) KernelClock::shared().add(target_, current_work(), std::chrono::steady_clock::now() - begin_);
  }

 private:
  const char* target_;  // null: the clock did not run
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace eagre
