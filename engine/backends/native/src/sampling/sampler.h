// A token for each row of logits: everything that sampling/sampler.py does, in its order, one row after the other. A
// row pays for what it asks for alone.
#pragma once

#include <cstdint>

#include "runtime/pool.h"

namespace eagre {

// What the features remember, by slot; null where a step uses none.
struct SampleStates {
  int32_t* history;          // [slots][history_length], tokens; the new one is appended
  const uint32_t* allowed;   // [slots][words]
  const int32_t* bias_ids;   // [slots][num_biases]
  const float* bias_values;  // [slots][num_biases]
  const int32_t* end_ids;    // [slots][num_end_ids]
  const int32_t* bad_words;  // [slots][num_bad_words][bad_word_length]
  int32_t* counts;           // [slots][vocab_size], raised by the new token
  const uint32_t* prompt;    // [slots][words]
  const uint32_t* breakers;  // [slots][words]
  const int32_t* listed;     // [slots][num_listed]
  int64_t history_length, num_biases, num_end_ids, num_bad_words, bad_word_length, num_listed;
};

struct SampleStep {
  const float* logits;    // [num_rows][vocab_size]
  const int32_t* ints;    // [num_rows][kNumInts]
  const float* floats;    // [num_rows][kNumFloats]
  const float* uniforms;  // [num_rows][2], for the draw and for XTC
  const uint32_t* masks;  // [num_rows][words], what grammars allow; null where the states are
  int64_t num_rows, vocab_size, num_slots;
  const SampleStates* states;  // null: nothing changes logits, and only the token is wanted
};

// out[row * num_columns] = the row's token, or what stands in its place (sample_columns.h); behind it, where the row
// uses logprobs, their columns, and otherwise zeros. Rows whose slot is not below num_slots are padding: not read, and
// all zeros.
void sample(Pool& pool, const SampleStep& step, int64_t num_columns, int32_t* out);

// The columns of logprobs.h of each row; `listed` is [num_rows][num_listed].
void logprobs_of(Pool& pool, const float* logits, int64_t num_rows, int64_t vocab_size, const int32_t* tokens,
                 const int32_t* listed, int64_t num_listed, int32_t* out);

}  // namespace eagre
