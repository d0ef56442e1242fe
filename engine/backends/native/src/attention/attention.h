// Ragged paged attention: writes a step's keys and values into their pages, then attends, for any mix of rows.
#pragma once

#include "attention/input.h"
#include "pages/pages.h"
#include "runtime/pool.h"
#include "runtime/step_rows.h"

namespace eagre {

// output: [tokens][num_heads * head_dim]; only rows of real tokens are written.
//
// The method is that of FlashAttention (Dao et al., 2022) and Flash-Decoding (Dao et al., 2023) over blocks of keys at
// fixed positions. A query's arithmetic depends on its own context alone: not on the chunk it came in, nor on its
// neighbours, nor on the number of threads. Blocks that a window hides from all queries of an item are not computed.
//
// With a turn, the call pauses wherever it has computed for some milliseconds. Then the rows must be the caller's own.
void attend(Pool& pool, const StepRows& rows, const AttentionInput& input, const Pages& pages, float* output,
            PoolTurn* turn = nullptr);

}  // namespace eagre
