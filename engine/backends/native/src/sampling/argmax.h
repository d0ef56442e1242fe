// The best token of each row of logits, in one pass.
#pragma once

#include <cstdint>

#include "runtime/pool.h"

namespace eagre {

// tokens[row] = the first index of the row's largest logit, or num_logits where one is NaN; rows
// whose slot is not below num_slots are padding and get num_logits.
void argmax(Pool& pool, const float* logits, int64_t num_rows, int64_t num_logits, const int32_t* slots,
            int64_t num_slots, int32_t* tokens);

}  // namespace eagre
