// Which processors the threads of a pool are on.
#pragma once

#ifdef __linux__
#include <sched.h>
#endif

#include <atomic>
#include <vector>

namespace eagre {

// A system's scheduler wakes a thread where it ran last, or beside whoever wakes it, and corrects that now and then. On
// two cores a worker that wakes on its caller's processor shares it for many calls, while the other one is idle: each
// then waits for the other's spinning, and two threads are slower than one. So the caller looks before each job where
// the workers were last, and asks the system to move those that were where it is now itself.
class Seats {
 public:
  explicit Seats(int num_threads) : seats_(num_threads) {}

  // A worker, of number 1 or more, tells where it is. One that was moved may then go everywhere again, so that the
  // system can still correct what is wrong for other reasons. Where nothing has changed, it costs some nanoseconds.
  void tell(int thread);

  // The caller, thread 0, has workers that were last on its processor moved to others. Nothing happens where the system
  // does not tell or does not move, or where the process may use one processor only.
  void spread();

 private:
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
  std::atomic<bool> may_move_{true};
};

}  // namespace eagre
