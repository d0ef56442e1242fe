// Bursts: decode steps that one run of a program computes one after the other.
//
// The host learns of each step as soon as it has sampled, and not when the program ends. It may cut the burst: then the
// step that the program is at is the last one.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace eagre {

class Burst {
 public:
  // Its first step counts as begun.
  Burst(int64_t num_rows, int num_steps) : num_rows_(num_rows), num_steps_(num_steps), tokens_(num_rows * num_steps) {}

  int64_t num_rows() const { return num_rows_; }

  // Called by the program, with the tokens of one step after the other. Returns whether the next step begins. One step
  // more than there are is not taken.
  bool tell(const int32_t* tokens);

  // Waits until a step is told, and copies its tokens; returns false where that takes longer than `most`.
  bool wait(int step, std::chrono::microseconds most, int32_t* tokens);

  // Steps that are told.
  int num_told();

  // Lets no further step begin; returns how many have.
  int cut();

 private:
  const int64_t num_rows_;
  std::mutex mutex_;
  std::condition_variable told_;
  int num_steps_;  // that may begin
  int num_told_ = 0;
  std::vector<int32_t> tokens_;  // [steps][rows]
};

// The bursts of this process, by number: a program may still run when nobody waits for it any more.
class Bursts {
 public:
  static Bursts& shared();

  int32_t open(int64_t num_rows, int num_steps);
  std::shared_ptr<Burst> find(int32_t number);  // null where it is closed
  void close(int32_t number);

 private:
  std::mutex mutex_;
  int32_t last_ = 0;
  std::unordered_map<int32_t, std::shared_ptr<Burst>> open_;
};

}  // namespace eagre
