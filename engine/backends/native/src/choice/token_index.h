// Picks the tokens that a query sees by the scores of an index (DeepSeek-AI, "DeepSeek-V3.2", 2025).
#pragma once

#include <cstdint>

#include "pages/key_block.h"
#include "pages/pages.h"
#include "runtime/pool.h"
#include "runtime/step_rows.h"

namespace eagre {

static_assert(kBlockKeys == 64);  // so that a word has the bits of a block

// The keys of the index are the last features of what is in the pages, which have one part.
struct TokenIndex {
  const float* queries;  // [tokens][num_heads][size]; null: there is no index
  const float* weights;  // [tokens][num_heads]
  int64_t num_heads, size, num_picked;
};

// Which tokens the queries of a step see of those before them.
struct Picks {
  const uint64_t* words;  // [tokens][stride], a bit for each position; null: each query sees all
  int64_t stride;

  uint64_t of_block(int64_t token, int64_t first_key) const { return words[token * stride + first_key / kBlockKeys]; }
};

// Of a query and a token, the score is the sum over the index's heads of the query's weight times their product, where that
// is above 0, in the order of the heads; a product is summed in the order of the features. So scores are the same whatever
// the step has beside. The best index.num_picked tokens are picked, of two alike the earlier one. The words are good until
// the next call.
// page_table: int32[rows][table_stride], of which the layer's pages are the first table_width.
Picks pick_tokens(Pool& pool, const StepRows& rows, const TokenIndex& index, const int32_t* page_table, int64_t table_width,
                  int64_t table_stride, const Pages& pages);

}  // namespace eagre
