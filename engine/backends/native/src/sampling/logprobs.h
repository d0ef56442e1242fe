// Log probabilities of tokens, in the columns of sampling/logprobs.py.
#pragma once

#include <cstdint>

#include "sampling/sample_columns.h"

namespace eagre {

// Tokens whose log probabilities are wanted.
struct WantedLogprobs {
  int32_t token;  // the row's own, with its rank; where it is no token, its columns mean nothing
  const int32_t* listed;
  int64_t num_listed;
  const uint32_t* mask;  // the tokens that the row's grammar allows, as a set; null: it has no grammar
};

// Fills a row's columns, of which there are kListedLogprobs and one for each listed token, from logits as they are.
// `row` is memory for a padded row.
void write_logprobs(const float* logits, int64_t vocab_size, const WantedLogprobs& wanted, float* row,
                    int32_t* columns);

}  // namespace eagre
