// Threads that sleep until there is a job, and wake each other.
//
// To wake a thread costs a system call, and the caller of a job that wakes all threads of a large machine by itself has
// begun late. So it wakes a few, each of which wakes a few more, and each sleeps at a place of its own: no thread wakes
// that the job does not need, and they do not queue for one mutex. One that the system has put aside wakes nobody
// meanwhile; then those that stand below it do without a job, and the others do their tasks.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <vector>

namespace eagre {

class WakeTree {
 public:
  explicit WakeTree(int num_threads) : sleepers_(num_threads) {}

  // Sleeps until `is_over`, which becomes true by sequentially consistent writes before the thread is woken.
  template <class IsOver>
  void sleep(int thread, const IsOver& is_over) {
    Sleeper& own = sleepers_[thread];
    std::unique_lock<std::mutex> lock(own.mutex);
    own.is_asleep.store(true, std::memory_order_seq_cst);
    own.wake.wait(lock, is_over);
    own.is_asleep.store(false, std::memory_order_relaxed);
  }

  // Called by a thread that knows of a job for the first `num_threads` threads: wakes those of them that stand below it.
  // Whoever is not asleep then sees what this thread has seen, if both saw and wrote it sequentially consistent.
  void wake_below(int thread, int num_threads) {
    const int first = thread * kBelow + 1, end = std::min(first + kBelow, num_threads);
    for (int below = first; below < end; ++below) {
      if (sleepers_[below].is_asleep.load(std::memory_order_seq_cst)) wake(sleepers_[below]);
    }
  }

  void wake_all() {
    for (Sleeper& sleeper : sleepers_) wake(sleeper);
  }

 private:
  static constexpr int kBelow = 4;  // threads; up to five are woken by the caller alone

  struct alignas(64) Sleeper {
    std::atomic<bool> is_asleep{false};
    std::mutex mutex;
    std::condition_variable wake;
  };

  static void wake(Sleeper& sleeper) {
    { const std::lock_guard<std::mutex> lock(sleeper.mutex); }  // whoever is about to sleep sees that it is over, or the call
    sleeper.wake.notify_one();
  }

  std::vector<Sleeper> sleepers_;
};

}  // namespace eagre
