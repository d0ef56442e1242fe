// Makes a token's queries ready for attention, and puts its keys and values into their page.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/input.h"
#include "attention/pages.h"
#include "runtime/step_rows.h"

namespace eagre {

// One token of a row: its queries, normed, rotated and scaled, go to `queries`, which holds those of all tokens,
// [tokens][num_heads][head_dim] float32 or bfloat16; its keys, normed and rotated, and its values go to their page.
void place_token(const AttentionInput& in, const Pages& pages, const StepRow& row, int64_t token, std::byte* queries);

}  // namespace eagre
