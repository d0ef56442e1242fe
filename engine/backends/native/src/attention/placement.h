// Makes a token's queries ready for attention, and puts its keys and values into their page.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/input.h"
#include "pages/pages.h"
#include "runtime/step_rows.h"

namespace eagre {

// The queries of a step's tokens, [key head][token][query heads that share it], so that those which attend to the same keys
// lie one behind the other. Each is as `query_bytes` in pages/key_block.h says.
struct Queries {
  std::byte* data;
  int64_t num_tokens, group, bytes_per_head;

  std::byte* at(int64_t key_head, int64_t token) const {
    return data + (key_head * num_tokens + token) * group * bytes_per_head;
  }
};

// Asks for the memory to which the keys and values of a row's only token go.
void prefetch_place(const AttentionInput& in, const Pages& pages, const StepRow& row);

// One token of a row: its queries, normed, rotated and scaled, go to `queries`; its keys, normed and rotated, and its
// values go to their page.
void place_token(const AttentionInput& in, const Pages& pages, const StepRow& row, int64_t token, const Queries& queries);

// The same of a row's tokens from `first` to `end`, many of them at once where that is faster. Behind the end of an encoder's
// text it may write zeros up to a multiple of 16 tokens.
void place_tokens(const AttentionInput& in, const Pages& pages, const StepRow& row, int32_t first, int32_t end,
                  const Queries& queries);

}  // namespace eagre
