#include "processors/adjust.h"

#include <algorithm>
#include <limits>

#include "isa/isa.h"

namespace eagre {
namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();

// The bits of tokens i to i + 15, i being a multiple of 16.
uint32_t sixteen_of(const uint32_t* words, int64_t i) { return words[i / 32] >> i % 32 & 0xffffu; }

}  // namespace

void keep_only(const uint32_t* words, float* row, int64_t vocab_size) {
  for (int64_t i = 0; i < vocab_size; i += 16) {
    store(row + i, choose(mask_of(sixteen_of(words, i)), load(row + i), broadcast(kBanned)));
  }
  // The bits of the last word beyond the vocabulary change nothing, because the row is -infinity there.
}

void ban_all(const uint32_t* words, float* row, int64_t vocab_size) {
  for (int64_t i = 0; i < vocab_size; i += 16) {
    store(row + i, choose(mask_of(sixteen_of(words, i)), broadcast(kBanned), load(row + i)));
  }
}

void add_biases(const int32_t* token_ids, const float* values, int64_t count, float* row, int64_t vocab_size) {
  for (int64_t i = 0; i < count; ++i) {
    if (token_ids[i] >= 0 && token_ids[i] < vocab_size) row[token_ids[i]] += values[i];
  }
}

void ban(const int32_t* token_ids, int64_t count, float* row, int64_t vocab_size) {
  for (int64_t i = 0; i < count; ++i) {
    if (token_ids[i] >= 0 && token_ids[i] < vocab_size) row[token_ids[i]] = kBanned;
  }
}

void ban_last_tokens(const BadWords& bad, const int32_t* end, int64_t num_output, float* row, int64_t vocab_size) {
  for (int64_t i = 0; i < bad.count; ++i) {
    const int32_t* word = bad.words + i * bad.length;
    const int32_t* last = word + bad.length - 1;
    if (*last < 0 || *last >= vocab_size) continue;
    bool is_due = true;
    for (int64_t back = 1; back < bad.length && is_due; ++back) {
      is_due = last[-back] < 0 || (back <= num_output && last[-back] == end[-back]);
    }
    if (is_due) row[*last] = kBanned;
  }
}

void penalise(const Penalties& penalties, float* row, int64_t vocab_size) {
  const Floats none = zeros(), repetition = broadcast(penalties.repetition);
  int32_t last[16] = {};  // counts of the last tokens, where the vocabulary does not fill a vector
  std::copy(penalties.counts + vocab_size / 16 * 16, penalties.counts + vocab_size, last);
  for (int64_t i = 0; i < vocab_size; i += 16) {
    const Floats counts = to_floats(load_ints(i + 16 <= vocab_size ? penalties.counts + i : last));
    const uint32_t in_output = 0xffffu & ~bits_of(at_least(none, counts));
    const uint32_t seen = in_output | sixteen_of(penalties.prompt, i);
    if (seen == 0) continue;
    const Floats x = load(row + i);
    const Floats repeated = choose(at_least(none, x), mul(x, repetition), div(x, repetition));
    Floats penalised = choose(mask_of(seen), repeated, x);
    penalised = sub(penalised, mul(broadcast(penalties.frequency), counts));
    penalised = sub(penalised, choose(mask_of(in_output), broadcast(penalties.presence), none));
    store(row + i, penalised);
  }
}

}  // namespace eagre
