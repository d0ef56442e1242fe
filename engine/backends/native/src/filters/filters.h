// Filters of the distribution before a token is drawn from it: top-nσ, min-p, top-k, typical-p, top-p and XTC.
#pragma once

#include <cstdint>

#include "vectors/padded_row.h"
#include "filters/threshold.h"

namespace eagre {

// A row's logits, on their way to weights.
struct Logits {
  const float* row;  // padded with -infinity
  int64_t count;     // padded
  float best;        // the largest, a finite number
  float temperature;

  Floats centred(int64_t i) const { return sub(load(row + i), broadcast(best)); }
  Floats scaled(int64_t i) const { return div(centred(i), broadcast(temperature)); }
};

// The weights of a row and their sum: e^scaled for each token, or 0 where a filter has removed it.
struct Weights {
  float* weights;
  int64_t count;  // padded
  double total;
};

// The lowest centred logit that lies within so many standard deviations below the best one. Logits of -infinity do not
// count.
float top_n_sigma_floor(const Logits& logits, float top_n_sigma);

// The lowest centred logit of the `top_k` best; top_k is positive.
float top_k_floor(const Logits& logits, const Peaks& peaks, int64_t top_k, const SearchMemory& memory);

// Weights of the tokens whose centred logit reaches `floor` and whose probability is `min_p` of the best one's or more.
Weights weigh(const Logits& logits, float floor, float min_p, float* weights);

// Each filter works on the weights that the one before it has left, as if they were the whole distribution.
void filter_typical_p(const Logits& logits, float typical_p, Weights& left, const SearchMemory& memory);
void filter_top_p(float top_p, Weights& left, const SearchMemory& memory);
void filter_xtc(float threshold, Weights& left);  // it is the last filter and does not update the sum

}  // namespace eagre
