// Ragged paged attention: writes a step's keys and values, then attends, for any mix of rows.
#pragma once

#include <cstdint>

#include "attention/pages.h"
#include "runtime/pool.h"
#include "runtime/step_rows.h"

namespace eagre {

struct AttentionInput {
  const float* qkv;        // [tokens][(num_heads + 2 * key heads) * head_dim]
  const float* rotations;  // [tokens][head_dim]: cosines, then sines, of half a head each
  const int32_t* page_table;
  int64_t table_width, num_heads;
  int64_t window;  // a query sees so many tokens up to its own; 0: all
};

// output: [tokens][num_heads * head_dim]; only rows of real tokens are written.
//
// The method is that of FlashAttention (Dao et al., 2022) and Flash-Decoding (Dao et al., 2023)
// over blocks of keys at fixed positions. A query's arithmetic depends on its own context
// alone: not on the chunk it came in, nor on its neighbours, nor on the number of threads.
void attend(Pool& pool, const StepRows& rows, const AttentionInput& input, const Pages& pages, float* output);

}  // namespace eagre
