// Turns at one resource for several users, fair by the time for which they hold it.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace eagre {

// Multiplications that a long call does, some milliseconds of work, before it lets other runs have their turn.
constexpr int64_t kWorkBeforePause = int64_t{1} << 30;

// Several engines of a process compute at once, and each run of one of their programs makes many short calls that need
// all threads of the pool. A plain mutex goes to whoever asks for it first after a call, which is nearly always the run
// that has just held it, and a mutex that alternates gives most of the time to the run with the longest calls, and wakes
// a thread for each of them. So each run has an account of the time for which it has held the turn, and the run with the
// least time goes first (start-time fair queueing; Goyal, Vin and Cheng, SIGCOMM 1996). The last holder keeps the turn
// until it is a quantum ahead, so that few changes of threads are needed. It keeps its place for a moment between two
// calls too, or else a run of long calls would slip in between the short calls of another; where no call follows, that
// moment is lost. The time of a patient run, which nobody reads as it goes, counts several times, so that the gaps of
// streams beside it stay short.
class Turns {
 public:
  using Clock = std::chrono::steady_clock;

  // Returns once it is the turn of `run`, a number that all calls of one run of a program share.
  void begin(int64_t run);

  // Makes the run that has the turn a patient one, with this turn.
  void make_patient();

  // Ends the turn that `begin` gave.
  void end();

  // Whether a run has waited for its turn lately, so that a long call should pause from time to time.
  bool is_contended();

 private:
  static constexpr auto kQuantum = std::chrono::milliseconds(2);
  static constexpr auto kGap = std::chrono::microseconds(50);   // between two calls of a run
  static constexpr auto kLook = std::chrono::microseconds(50);  // between two looks of a waiting thread
  static constexpr int kPatience = 3;                           // how many times a patient run's time counts
  static constexpr auto kLately = std::chrono::seconds(1);
  static constexpr int kMostRuns = 16;                          // more share accounts, which is less fair but right

  struct Account {
    int64_t run = 0;
    Clock::duration held{};  // in virtual time: a run begins with what the one served last has
    uint64_t last_used = 0;
    int num_waiting = 0;
    bool is_patient = false;
  };

  Account& account_of(int64_t run);
  const Account* first_but(const Account& mine) const;
  bool may_begin(const Account& mine) const;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Account, kMostRuns> accounts_{};
  Account* holder_ = nullptr;  // who has the turn or, while nobody has it, who had it last
  bool is_held_ = false;
  Clock::time_point since_{};  // when the turn began, or ended
  Clock::time_point last_wait_{};  // when a run found that it had to wait
  uint64_t num_turns_ = 0;
};

}  // namespace eagre
