// What attention of one layer is computed from, its pages aside.
#pragma once

#include <cstdint>

namespace eagre {

// Weights of an RMS norm of queries or keys; null where there is none.
struct HeadNorm {
  const float* weights;  // [head_dim], or [heads * head_dim] where all heads are normed as one vector
  bool is_of_all_heads;
};

struct AttentionInput {
  const float* qkv;  // [tokens][(num_heads + parts of the pages * key heads) * head_dim]
  int64_t num_heads;
  int64_t head_dim;  // even; in the pages heads may be wider, with zeros behind these features
  const int32_t* page_table;  // [rows][table_stride], of which the layer's pages are the first table_width
  int64_t table_width, table_stride;
  const float* rotations;  // [tokens][rotary_dim]: cosines, then sines, of half as many angles each
  int64_t rotary_dim;      // features that are rotated, the first ones of a head; even, 0 for none
  HeadNorm q_norm, k_norm;
  float epsilon;      // of the norms
  float query_scale;  // what queries are multiplied with, so that a softmax of powers of two is that of the scores
  float softcap;      // of the scores; 0: none
  int64_t window;     // a query sees so many tokens up to and with its own; 0: all
  // Else tokens of a prompt also see those behind them, whose pages hold the whole text after this step; with a window,
  // as many of them as before them.
  bool is_causal;
  const float* sinks;  // [num_heads], scores that take a part of the weights, without a value; or null
  // [tokens], the last position that each token of a prompt sees, never falling within a row; null: its own.
  const int32_t* last_seen;
  // [tokens], the first position likewise, never falling within a row; null: as the window says.
  const int32_t* first_seen;
};

}  // namespace eagre
