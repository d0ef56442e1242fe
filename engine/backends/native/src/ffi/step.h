// What every kernel that works on a step's tokens needs: its rows, checked, and the pool for the time of the call.
#pragma once

#include <cstdint>

#include "ffi/handler.h"
#include "runtime/pool.h"
#include "runtime/step_rows.h"

namespace eagre {

// The pool of this process and the memory that kernels keep from call to call, held for the time of one call.
class StepCall {
 public:
  StepCall() : pool_(Pool::shared()), turn_(pool_, current_run()) {}

  Pool& pool() const { return pool_; }
  const StepRows& rows() const { return kept(); }

  // For a step that makes no token of a stream: those of other engines go before it.
  void make_patient() { turn_.make_patient(); }

  PoolTurn& turn() { return turn_; }

  // Reads the rows of a step of so many tokens, of which the last num_tiles rows are tiles.
  ffi::Error read(const S32& rows, int64_t num_tiles, int64_t num_tokens) {
    const auto shape = rows.dimensions();
    if (shape.size() != 2 || shape[1] < 2 || num_tiles < 0 || num_tiles > shape[0]) {
      return invalid("rows have another shape");
    }
    const int64_t single = shape[0] - num_tiles;
    if (num_tokens < single || (num_tiles == 0 ? num_tokens != single : (num_tokens - single) % num_tiles != 0)) {
      return invalid("the number of tokens does not fit the rows");
    }
    kept().read(rows.typed_data(), shape[0], shape[1], num_tiles, num_tokens);
    return ffi::Error::Success();
  }

 private:
  static StepRows& kept() {
    static StepRows& rows = *new StepRows;
    return rows;
  }

  Pool& pool_;
  PoolTurn turn_;
};

}  // namespace eagre
