#include "sampling/logprobs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "processors/adjust.h"
#include "vectors/elementary.h"
#include "vectors/padded_row.h"

namespace eagre {
namespace {

struct Best {
  float logits[kMostLogprobs];
  int32_t token_ids[kMostLogprobs];
  int count = 0;

  // Of equal logits, the one that came first stays before the others.
  void insert(float logit, int32_t token_id, int most) {
    int place = count < most ? count++ : most - 1;
    for (; place > 0 && logits[place - 1] < logit; --place) {
      logits[place] = logits[place - 1];
      token_ids[place] = token_ids[place - 1];
    }
    logits[place] = logit;
    token_ids[place] = token_id;
  }
};

// The `most` best tokens of a padded row.
Best best_tokens(const float* row, int64_t count, const Peaks& peaks, int most) {
  Best best;
  const Floats low = broadcast(peaks.at_most(most));
  for (int64_t i = 0; i < count; i += 16) {
    const Floats x = load(row + i);
    uint32_t bits = bits_of(at_least(x, low));
    for (; bits != 0; bits &= bits - 1) {
      const int64_t token_id = i + __builtin_ctz(bits);
      if (best.count == most && row[token_id] <= best.logits[most - 1]) continue;
      best.insert(row[token_id], static_cast<int32_t>(token_id), most);
    }
  }
  return best;
}

// The probability of the tokens that are not in the set, of which the row then holds nothing else. The normaliser and the
// best logit are those of the whole row.
float share_outside(const uint32_t* set, float* row, int64_t vocab_size, float best, double normaliser) {
  ban_all(set, row, vocab_size);
  const double sum = sum_of(padded(vocab_size), [&](int64_t i) { return exp(sub(load(row + i), broadcast(best))); });
  return static_cast<float>(sum / std::exp(normaliser - best));
}

double log_of_sum(const float* row, int64_t count, float best) {
  if (std::isinf(best)) return best;
  return best + std::log(sum_of(count, [&](int64_t i) { return exp(sub(load(row + i), broadcast(best))); }));
}

int32_t rank_of(float logit, const float* row, int64_t count) {
  int64_t not_better = 0;
  for (int64_t i = 0; i < count; i += 16) {
    not_better += __builtin_popcount(bits_of(at_least(broadcast(logit), load(row + i))));
  }
  return static_cast<int32_t>(1 + count - not_better);
}

}  // namespace

void write_logprobs(const float* logits, int64_t vocab_size, const WantedLogprobs& wanted, float* row,
                    int32_t* columns) {
  const int64_t count = padded(vocab_size);
  const bool has_nan = copy_row(logits, vocab_size, row);
  const Peaks peaks = peaks_of(row, count);
  const double normaliser =
      has_nan ? std::numeric_limits<double>::quiet_NaN() : log_of_sum(row, count, peaks.best());
  const auto put = [&](int column, float logit) {
    const float logprob = static_cast<float>(logit - normaliser);
    std::memcpy(columns + column, &logprob, sizeof logprob);
  };
  const auto logit_of = [&](int32_t token) { return row[std::clamp<int64_t>(token, 0, vocab_size - 1)]; };
  columns[kToken] = wanted.token;
  put(kOwnLogprob, logit_of(wanted.token));
  columns[kRank] = rank_of(logit_of(wanted.token), row, count);
  std::fill(columns + kBestIds, columns + kListedLogprobs, 0);
  if (!has_nan) {
    const int most = static_cast<int>(std::min<int64_t>(kMostLogprobs, vocab_size));
    const Best best = best_tokens(row, count, peaks, most);
    for (int i = 0; i < most; ++i) {
      columns[kBestIds + i] = best.token_ids[i];
      put(kBestLogprobs + i, best.logits[i]);
    }
  }
  for (int64_t i = 0; i < wanted.num_listed; ++i) {
    put(kListedLogprobs + static_cast<int>(i), logit_of(wanted.listed[i]));
  }
  const float masked =
      wanted.mask == nullptr ? 0.0f : share_outside(wanted.mask, row, vocab_size, peaks.best(), normaliser);
  std::memcpy(columns + kMaskedShare, &masked, sizeof masked);
}

}  // namespace eagre
