// Which processors the threads of a pool are on.
#pragma once

#ifdef __linux__
#include <sched.h>
#endif

#include <atomic>
#include <cstdint>
#include <vector>

namespace eagre {

// A system's scheduler wakes a thread where it ran last, or beside whoever wakes it, and corrects that now and then. On
// two cores a worker that wakes on its caller's processor shares it for many calls, while the other one is idle. So the
// caller looks before each job where the workers were last, and asks the system to move those that were where it is now
// itself. Where other processes keep the processors busy, a worker beside them is put aside in the middle of a task
// again and again while its caller waits, and one that shares its caller's processor does less harm. So a caller that
// has waited long moves none for a while, and for twice as long each time that this comes again soon.
class Seats {
 public:
  explicit Seats(int num_threads) : seats_(num_threads) {}

  // A worker, of number 1 or more, tells where it is. One that was moved may then go everywhere again, so that the
  // system can still correct what is wrong for other reasons. Where nothing has changed, it costs some nanoseconds.
  void tell(int thread);

  // The caller, thread 0, has workers that were last on its processor moved to others. Nothing happens where the system
  // does not tell or does not move, or where the process may use one processor only.
  void spread();

  // The caller has waited long for a worker that was put aside on another processor: nobody is moved for a while.
  void rest();

  // Whether a worker is where the caller of the last job was at its begin, so that it should not keep it from computing.
  bool is_with_caller(int thread) const {
    const int processor = seats_[thread].processor.load(std::memory_order_relaxed);
    return processor >= 0 && processor == seats_[0].processor.load(std::memory_order_relaxed);
  }

 private:
  // In jobs, of which a step of decoding has some 150 to 200.
  static constexpr int kShortestRest = 500, kLongestRest = 32'000, kSoon = 4'000;

  static constexpr int kNowhere = -1;  // not told yet, or on the way

  struct alignas(64) Seat {
    std::atomic<int> processor{kNowhere};
    std::atomic<int> id{0};  // the system's number of the thread
    std::atomic<bool> is_moved{false};
#ifdef __linux__
    cpu_set_t allowed;  // where a thread that was moved may go again; only the caller writes, while it is not moved
#endif
  };

  void move(int thread, int callers);

  std::vector<Seat> seats_;  // by thread
  int rest_ = kShortestRest, num_of_rest_ = 0;  // jobs of a rest, and those that are left of the present one
  int64_t num_since_rest_ = kSoon;
  bool may_move_ = true;
};

}  // namespace eagre
