// A running softmax of query rows over one block of keys after the other (Milakov and Gimelshein, "Online normalizer
// calculation for softmax", 2018), of powers of two: the queries are multiplied with log2(e) beforehand.
#pragma once

#include <cstdint>

#include "attention/block_products.h"

namespace eagre {

// Of `count` query rows, the best score, the sum of weights, and the mix of values. Arrays are padded to 16 rows, and behind
// the best scores are 16 more, so that rows can be looked at from any one on, sixteen at a time.
struct State {
  float* best;
  float* total;  // [count][16], sums of every sixteenth key
  float* mix;    // [count][head_dim]
};

// State of `count` rows in memory of `state_floats` float32.
State state_at(float* memory, int64_t count);
int64_t state_floats(int64_t count, int64_t head_dim);

// The same state from row `row` on.
State state_from(State s, int64_t row, int64_t head_dim);

void clear(State s, int64_t count, int64_t head_dim);

// Copies `count` rows, from row `first` on, to the first ones of a state.
void copy_rows(State s, int64_t first, int64_t count, int64_t head_dim, State to);

// Adds what `other`, which has seen later keys, holds. All merging is done by this function in the order of the keys,
// whoever has computed them.
void merge(State s, State other, int64_t count, int64_t head_dim);

// What a block shows to some query rows.
struct Sight {
  int num_keys;            // the most that a row sees; the rest of the block is not looked at
  const int32_t* hidden;   // row r sees the keys from hidden[r]
  const int32_t* visible;  // to visible[r] - 1
  bool is_whole;           // each row sees all num_keys keys, which fill their vectors, but for what is not picked
  const uint64_t* picked;  // and of these those whose bits are set in picked[r]; null: all
};

// What the scores of some query rows change by with the place of a key, see AttentionInput::distance_slopes.
struct PlaceBiases {
  const float* slopes;     // [num_rows], for scores as powers of two where nothing is rounded; null: there are no biases
  const float* positions;  // [num_rows], of the queries
  float first_key;         // the position of the block's first key
  float rounded_scale;     // 0: nothing is rounded
};

// Query rows that see one block.
struct HeadQueries {
  const Block* block;
  const std::byte* queries;
};

// Attends with up to kRowsAtOnce query rows, the same number of each head, to a block of each. A row that sees no key of it
// keeps its state.
// softcap: scores become softcap * tanh(score / softcap), if it is not 0.
void attend_rows(const Pages& pages, const HeadQueries* heads, int num_heads, float softcap, int rows_per_head,
                 const Sight& sight, const PlaceBiases& biases, State state);

}  // namespace eagre
