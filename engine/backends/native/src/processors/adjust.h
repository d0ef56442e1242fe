// Changes of a row's logits before a token is chosen: bans, biases, and penalties for tokens that occurred before.
#pragma once

#include <cstdint>

namespace eagre {

// Sets of tokens are packed: token t is bit t % 32 of word t / 32. Token ids outside the vocabulary change nothing.

inline bool is_in(const uint32_t* words, int64_t token) { return (words[token / 32] >> token % 32 & 1u) != 0; }

// Sets the logits of all tokens that are not in the set to -infinity.
void keep_only(const uint32_t* words, float* row, int64_t vocab_size);

// Sets the logits of all tokens in the set to -infinity.
void ban_all(const uint32_t* words, float* row, int64_t vocab_size);

void add_biases(const int32_t* token_ids, const float* values, int64_t count, float* row, int64_t vocab_size);

void ban(const int32_t* token_ids, int64_t count, float* row, int64_t vocab_size);

// Sequences of `length` tokens, of which negative ones match everything; none ends in a negative one.
struct BadWords {
  const int32_t* words;  // [count][length]
  int64_t count, length;
};

// Bans the last token of each sequence whose other tokens are the last ones of the `num_output` tokens before `end`.
void ban_last_tokens(const BadWords& bad, const int32_t* end, int64_t num_output, float* row, int64_t vocab_size);

struct Penalties {
  const int32_t* counts;   // [vocab_size], how often the output has each token
  const uint32_t* prompt;  // the prompt's tokens, as a set
  float repetition, frequency, presence;
};

void penalise(const Penalties& penalties, float* row, int64_t vocab_size);

}  // namespace eagre
