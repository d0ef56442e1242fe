#include "runtime/turns.h"

#include <algorithm>

namespace eagre {

void Turns::begin(int64_t run) {
  std::unique_lock<std::mutex> lock(mutex_);
  Account& mine = account_of(run);
  if (!may_begin(mine)) {
    ++mine.num_waiting;
    last_wait_ = Clock::now();
    changed_.notify_all();  // it may be the turn of somebody who sleeps
    while (!may_begin(mine)) changed_.wait_for(lock, kLook);
    --mine.num_waiting;
  }
  mine.last_used = ++num_turns_;
  holder_ = &mine;
  is_held_ = true;
  since_ = Clock::now();
}

void Turns::make_patient() {
  const std::lock_guard<std::mutex> lock(mutex_);
  holder_->is_patient = true;
}

void Turns::end() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Clock::time_point now = Clock::now();
  holder_->held += (now - since_) * (holder_->is_patient ? kPatience : 1);
  since_ = now;
  is_held_ = false;
  // A waiting run is woken only where its turn has come; until then it looks by itself from time to time.
  const Account* next = first_but(*holder_);
  if (next != nullptr && next->held + kQuantum < holder_->held) changed_.notify_all();
}

bool Turns::is_contended() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return last_wait_ != Clock::time_point{} && Clock::now() - last_wait_ < kLately;
}

Turns::Account& Turns::account_of(int64_t run) {
  Account* oldest = nullptr;
  for (Account& account : accounts_) {
    if (account.last_used > 0 && account.run == run) return account;
    const bool is_busy = account.num_waiting > 0 || (is_held_ && &account == holder_);
    if (!is_busy && (oldest == nullptr || account.last_used < oldest->last_used)) oldest = &account;
  }
  if (oldest == nullptr) return *holder_;
  // The last holder's account may be the oldest only where there are no other runs, and then nobody compares with it.
  const Clock::duration now = holder_ == nullptr ? Clock::duration{} : holder_->held;
  *oldest = {run, now, ++num_turns_, 0};
  return *oldest;
}

// The account with the least time among those that want the turn, mine aside; null where none does.
const Turns::Account* Turns::first_but(const Account& mine) const {
  const Account* first = nullptr;
  for (const Account& account : accounts_) {
    const bool is_between_calls = &account == holder_ && !is_held_ && Clock::now() - since_ < kGap;
    if (&account == &mine || (account.num_waiting == 0 && !is_between_calls)) continue;
    if (first == nullptr || account.held < first->held) first = &account;
  }
  return first;
}

bool Turns::may_begin(const Account& mine) const {
  if (is_held_) return false;
  const Account* other = first_but(mine);
  if (other == nullptr) return true;
  const Clock::duration lead = &mine == holder_ ? Clock::duration(kQuantum) : Clock::duration{};
  return mine.held <= other->held + lead;
}

}  // namespace eagre
