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
//
// Only Linux tells and moves. Two hardware threads of a core count as two processors here; the system chooses among those
// to which a worker may go.
class Seats {
 public:
  explicit Seats(int num_threads) : seats_(num_threads) {}

  // A worker, of number 1 or more, tells where it is. One that was moved may then go everywhere again, so that the
  // system can still correct what is wrong for other reasons.
  void tell(int thread);

  // The caller, thread 0, has workers that were last on its processor moved to others. Nothing happens where the system
  // does not tell or does not move, or where the process may use one processor only. There is one caller at a time.
  void spread();

  // The caller has waited long for a worker that was put aside: nobody is moved for a while.
  void rest();

  // Whether a worker was where the caller of the last job was at its begin. Then the worker should sleep in the place of
  // spinning, because the caller cannot compute meanwhile.
  bool is_with_caller(int thread) const {
    const int processor = seats_[thread].processor.load(std::memory_order_relaxed);
    return processor >= 0 && processor == seats_[0].processor.load(std::memory_order_relaxed);
  }

 private:
  static constexpr int kNowhere = -1;  // not told yet, or on the way
  // In jobs, of which a step of decoding has some 150 to 200.
  static constexpr int kShortestRest = 500, kLongestRest = 32'000, kSoon = 4'000;

  struct alignas(64) Seat {
    std::atomic<int> processor{kNowhere};
#ifdef __linux__
    std::atomic<int> id{0};  // the system's number of the thread
    std::atomic<bool> is_moved{false};
    bool was_ever_moved = false;  // the caller's own note
    cpu_set_t allowed;            // where a moved thread may go again; only the caller writes, while it is not moved
#endif
  };

  void begin_rest(int jobs) { num_of_rest_ = jobs, num_since_rest_ = 0; }

  std::vector<Seat> seats_;  // by thread
  int rest_ = kShortestRest, num_of_rest_ = 0;  // jobs of a rest, and those that are left of the present one
  int64_t num_since_rest_ = kSoon;

#ifdef __linux__
  void move(int thread, int callers_processor, const cpu_set_t& allowed);
  void follow(const cpu_set_t& allowed);

  bool may_move_ = true;
  cpu_set_t last_allowed_{};  // of the process, when a worker was moved last
#endif
};

}  // namespace eagre
