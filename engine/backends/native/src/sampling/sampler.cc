#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "processors/adjust.h"
#include "filters/filters.h"
#include "sampling/draw.h"
#include "sampling/logprobs.h"
#include "vectors/padded_row.h"
#include "processors/repetition.h"
#include "sampling/sample_columns.h"
#include "runtime/scratch.h"

namespace eagre {
namespace {

constexpr int64_t kWordBits = 32;

// Of one thread.
struct RowMemory {
  float* row;
  float* weights;
  SearchMemory search;
  DryMemory* dry;
};

// Kept from call to call; the caller holds the pool.
class Memory {
 public:
  Memory(const Pool& pool, int64_t vocab_size, int64_t history_length) : count_(padded(vocab_size)) {
    static Scratch& floats = *new Scratch;
    static std::vector<DryMemory>& dry = *new std::vector<DryMemory>;
    const size_t num_threads = static_cast<size_t>(pool.num_threads());
    floats_ = floats.take<float>(num_threads * kArrays * count_);
    dry.resize(num_threads);
    for (DryMemory& memory : dry) {
      memory.matches.resize(std::max(memory.matches.size(), static_cast<size_t>(history_length)));
      memory.lengths.resize(std::max(memory.lengths.size(), static_cast<size_t>(history_length > 0 ? vocab_size : 0)));
    }
    dry_ = dry.data();
  }

  RowMemory of(int thread) const {
    float* p = floats_ + thread * kArrays * count_;
    return {p, p + count_, {p + 2 * count_, p + 3 * count_}, dry_ + thread};
  }

 private:
  static constexpr int64_t kArrays = 4;
  int64_t count_;
  float* floats_;
  DryMemory* dry_;
};

// One row of a step, with its own part of everything.
class Row {
 public:
  Row(const SampleStep& step, int64_t row, const RowMemory& memory)
      : step_(step), states_(step.states), memory_(memory), count_(padded(step.vocab_size)),
        logits_(step.logits + row * step.vocab_size), ints_(step.ints + row * kNumInts),
        floats_(step.floats + row * kNumFloats), uniforms_(step.uniforms + row * 2),
        mask_(step.masks + (states_ == nullptr ? 0 : row * num_words())), slot_(ints_[kSlot]) {}

  int32_t choose_token() const {
    const int32_t none = static_cast<int32_t>(step_.vocab_size);
    if (copy_row(logits_, step_.vocab_size, memory_.row)) return none;
    if (states_ != nullptr) adjust();
    Peaks peaks = peaks_of(memory_.row, count_);
    float best = peaks.best();
    if (states_ != nullptr && best == -std::numeric_limits<float>::infinity()) return none + kNothingLeft;
    if (floats_[kTemperature] == 0.0f) return static_cast<int32_t>(first_best(memory_.row, count_, best));
    if (std::isinf(best)) {  // those that are best are equal, and all others impossible
      for (int64_t i = 0; i < step_.vocab_size; ++i) {
        memory_.row[i] = memory_.row[i] == best ? 0.0f : -std::numeric_limits<float>::infinity();
      }
      peaks = peaks_of(memory_.row, count_);
      best = 0.0f;
    }
    return static_cast<int32_t>(draw_token({memory_.row, count_, best, floats_[kTemperature]}, peaks));
  }

  // Appends the token to the history and counts it, where the row uses them.
  void remember(int32_t token) const {
    const int32_t position = ints_[kPosition];
    if (uses(kUsesHistory) && position >= 0 && position < states_->history_length) {
      states_->history[slot_ * states_->history_length + position] = token;
    }
    if (uses(kUsesPenalties) && token < step_.vocab_size) ++states_->counts[slot_ * step_.vocab_size + token];
  }

  void write_columns(int32_t token, int32_t* columns) const {
    columns[kToken] = token;
    if (states_ == nullptr || !uses(kUsesLogprobs)) return;
    const int32_t* listed = states_->listed + slot_ * states_->num_listed;
    if (uses(kUsesDrawnLogprobs) && token < step_.vocab_size) {  // without a token, a NaN shall show
      keep_drawn(token);
      write_logprobs(memory_.weights, step_.vocab_size, {token, listed, states_->num_listed, nullptr}, memory_.row,
                     columns);
      return;
    }
    write_logprobs(logits_, step_.vocab_size, {token, listed, states_->num_listed, uses(kUsesGrammar) ? mask_ : nullptr},
                   memory_.row, columns);
  }

 private:
  bool uses(Uses feature) const { return (static_cast<uint32_t>(ints_[kUses]) & feature) != 0; }
  int64_t num_words() const { return (step_.vocab_size + kWordBits - 1) / kWordBits; }

  // Puts logits into the place of the weights, of which the probabilities are those by which the token was drawn.
  void keep_drawn(int32_t token) const {
    const float impossible = -std::numeric_limits<float>::infinity(), temperature = floats_[kTemperature];
    if (temperature == 0.0f) {
      std::fill_n(memory_.weights, step_.vocab_size, impossible);
      memory_.weights[token] = 0.0f;
      return;
    }
    const float best = peaks_of(memory_.row, count_).best();
    for (int64_t i = 0; i < step_.vocab_size; ++i) {
      memory_.weights[i] = memory_.weights[i] > 0.0f ? (memory_.row[i] - best) / temperature : impossible;
    }
  }

  void adjust() const {
    const SampleStates& s = *states_;
    const int64_t vocab_size = step_.vocab_size, words = slot_ * num_words();
    float* row = memory_.row;
    const int64_t position = std::clamp<int64_t>(ints_[kPosition], 0, s.history_length);
    const int32_t* end = s.history + slot_ * s.history_length + position;
    const int64_t num_output = std::clamp<int64_t>(position - ints_[kNumPromptTokens], 0, position);
    if (uses(kUsesAllowedTokens)) keep_only(s.allowed + words, row, vocab_size);
    if (uses(kUsesLogitBias)) {
      const int64_t first = slot_ * s.num_biases;
      add_biases(s.bias_ids + first, s.bias_values + first, s.num_biases, row, vocab_size);
    }
    if (uses(kUsesMinTokens) && ints_[kPosition] - ints_[kNumPromptTokens] < ints_[kMinTokens]) {
      ban(s.end_ids + slot_ * s.num_end_ids, s.num_end_ids, row, vocab_size);
    }
    if (uses(kUsesBadWords)) {
      const int32_t* bad = s.bad_words + slot_ * s.num_bad_words * s.bad_word_length;
      ban_last_tokens({bad, s.num_bad_words, s.bad_word_length}, end, num_output, row, vocab_size);
    }
    if (uses(kUsesGrammar)) keep_only(mask_, row, vocab_size);
    if (uses(kUsesPenalties)) {
      const Penalties penalties{s.counts + slot_ * vocab_size, s.prompt + words, floats_[kRepetitionPenalty],
                                floats_[kFrequencyPenalty], floats_[kPresencePenalty]};
      penalise(penalties, row, vocab_size);
    }
    if (uses(kUsesDry)) {
      const Dry dry{s.breakers + words, floats_[kDryMultiplier], floats_[kDryBase], ints_[kDryAllowedLength]};
      penalise_repetition(dry, end, std::min<int64_t>(position, ints_[kDryPenaltyLastN]), *memory_.dry, row, vocab_size);
    }
  }

  int64_t draw_token(const Logits& logits, const Peaks& peaks) const {
    float floor = -std::numeric_limits<float>::infinity();
    if (floats_[kTopNSigma] > 0.0f) floor = top_n_sigma_floor(logits, floats_[kTopNSigma]);
    if (ints_[kTopK] > 0) floor = std::max(floor, top_k_floor(logits, peaks, ints_[kTopK], memory_.search));
    Weights weights = weigh(logits, floor, floats_[kMinP], memory_.weights);
    if (floats_[kTypicalP] < 1.0f) filter_typical_p(logits, floats_[kTypicalP], weights, memory_.search);
    if (floats_[kTopP] < 1.0f) filter_top_p(floats_[kTopP], weights, memory_.search);
    if (uniforms_[1] < floats_[kXtcProbability]) filter_xtc(floats_[kXtcThreshold], weights);
    return draw(weights.weights, weights.count, uniforms_[0]);
  }

  const SampleStep& step_;
  const SampleStates* states_;
  const RowMemory& memory_;
  int64_t count_;
  const float* logits_;
  const int32_t* ints_;
  const float* floats_;
  const float* uniforms_;
  const uint32_t* mask_;
  int64_t slot_;
};

}  // namespace

void sample(Pool& pool, const SampleStep& step, int64_t num_columns, int32_t* out) {
  const Memory memory(pool, step.vocab_size, step.states == nullptr ? 0 : step.states->history_length);
  pool.run(step.num_rows, [&](int64_t i, int thread) {
    int32_t* columns = out + i * num_columns;
    std::fill_n(columns, num_columns, 0);
    const int64_t slot = step.ints[i * kNumInts + kSlot];
    if (slot < 0 || slot >= step.num_slots) return;
    const RowMemory mine = memory.of(thread);
    const Row row(step, i, mine);
    const int32_t token = row.choose_token();
    if (step.states != nullptr) row.remember(token);
    row.write_columns(token, columns);
  });
}

void logprobs_of(Pool& pool, const float* logits, int64_t num_rows, int64_t vocab_size, const int32_t* tokens,
                 const int32_t* listed, int64_t num_listed, int32_t* out) {
  const Memory memory(pool, vocab_size, 0);
  pool.run(num_rows, [&](int64_t i, int thread) {
    write_logprobs(logits + i * vocab_size, vocab_size, {tokens[i], listed + i * num_listed, num_listed, nullptr},
                   memory.of(thread).row, out + i * (kListedLogprobs + num_listed));
  });
}

}  // namespace eagre
