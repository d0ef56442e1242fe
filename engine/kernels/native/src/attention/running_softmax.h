// Attention of query rows to one block of keys after the other, with a running softmax (Milakov and Gimelshein, "Online
// normalizer calculation for softmax", 2018) of powers of two: the queries are multiplied with log2(e) beforehand.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/key_block.h"

namespace eagre {

constexpr int kMostRows = 4;  // query rows that one pass over a block serves

// A running softmax: of `count` query rows, the best score, the sum of weights, and the mix of values.
struct State {
  float* best;
  float* total;
  float* mix;  // [count][head_dim]
};

// State of `count` rows in memory of `state_floats` float32.
State state_at(float* memory, int64_t count);
int64_t state_floats(int64_t count, int64_t head_dim);

void clear(State s, int64_t count, int64_t head_dim);

// Adds what `other`, which has seen later keys, holds. All merging is done by this function in the order of the keys,
// whoever has computed them.
void merge(State s, State other, int64_t count, int64_t head_dim);

// Attends with up to kMostRows query rows to one block, of which row r sees the keys from hidden[r] to visible[r] - 1.
// A row that sees none keeps its state. queries: of each row head_dim float32 or bfloat16, as the pages are (bfloat16
// with int8 pages, which have scales). softcap: scores become softcap * tanh(score / softcap), if it is not 0.
void attend_rows(const Pages& pages, const Block& block, int num_keys, float softcap, int count,
                 const std::byte* const* queries, const int* hidden, const int* visible, State state);

}  // namespace eagre
