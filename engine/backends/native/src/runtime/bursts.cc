#include "runtime/bursts.h"

#include <algorithm>
#include <limits>

namespace eagre {

bool Burst::tell(const int32_t* tokens) {
  bool goes_on;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (num_told_ >= num_steps_) return false;
    std::copy_n(tokens, num_rows_, tokens_.begin() + num_told_ * num_rows_);
    ++num_told_;
    goes_on = num_told_ < num_steps_;
  }
  told_.notify_all();
  return goes_on;
}

bool Burst::wait(int step, std::chrono::microseconds most, int32_t* tokens) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!told_.wait_for(lock, most, [&] { return num_told_ > step; })) return false;
  std::copy_n(tokens_.begin() + step * num_rows_, num_rows_, tokens);
  return true;
}

int Burst::num_told() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_told_;
}

int Burst::cut() {
  const std::lock_guard<std::mutex> lock(mutex_);
  num_steps_ = std::min(num_steps_, num_told_ + 1);
  return num_steps_;
}

Bursts& Bursts::shared() {
  static Bursts* bursts = new Bursts;  // never destroyed, because a program may still run at exit
  return *bursts;
}

int32_t Bursts::open(int64_t num_rows, int num_steps) {
  const std::lock_guard<std::mutex> lock(mutex_);
  do {
    last_ = last_ == std::numeric_limits<int32_t>::max() ? 1 : last_ + 1;
  } while (open_.count(last_) > 0);
  open_.emplace(last_, std::make_shared<Burst>(num_rows, num_steps));
  return last_;
}

std::shared_ptr<Burst> Bursts::find(int32_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = open_.find(number);
  return found == open_.end() ? nullptr : found->second;
}

void Bursts::close(int32_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  open_.erase(number);
}

}  // namespace eagre
