#include "processors/repetition.h"

#include <algorithm>
#include <cmath>

#include "processors/adjust.h"

namespace eagre {
namespace {

constexpr float kMostPenalty = 1e30f;  // finite, so that a penalised token is still better than a banned one

// matches[j] = how many tokens before place j, counted from the end, equal the tokens before the end. This is the Z
// function of the sequence read backwards, in linear time (Gusfield, "Algorithms on Strings, Trees, and Sequences", 1997).
void find_matches(const int32_t* end, int64_t count, int32_t* matches) {
  const auto token = [&](int64_t back) { return end[-1 - back]; };
  int64_t left = 0, right = 0;  // the match that reaches furthest
  for (int64_t j = 1; j < count; ++j) {
    int64_t length = j < right ? std::min<int64_t>(right - j, matches[j - left]) : 0;
    while (j + length < count && token(length) == token(j + length)) ++length;
    matches[j] = static_cast<int32_t>(length);
    if (j + length > right) {
      left = j;
      right = j + length;
    }
  }
}

}  // namespace

void penalise_repetition(const Dry& dry, const int32_t* end, int64_t count, DryMemory& memory, float* row,
                         int64_t vocab_size) {
  const auto is_token = [&](int32_t token) { return token >= 0 && token < vocab_size; };
  int64_t reach = 0;  // tokens before the end up to a breaker
  while (reach < count && !(is_token(end[-1 - reach]) && is_in(dry.breakers, end[-1 - reach]))) ++reach;
  if (reach < dry.allowed_length) return;
  int32_t* matches = memory.matches.data();
  find_matches(end, count, matches);
  // The first pass finds the longest repetition that each token continues; the second penalises each token once.
  const auto length_at = [&](int64_t j) { return static_cast<int32_t>(std::min<int64_t>(matches[j], reach)); };
  for (int64_t j = 1; j < count; ++j) {
    const int32_t length = length_at(j), following = end[-j];
    if (length < dry.allowed_length || !is_token(following) || is_in(dry.breakers, following)) continue;
    memory.lengths[following] = std::max(memory.lengths[following], length);
  }
  for (int64_t j = 1; j < count; ++j) {
    if (!is_token(end[-j])) continue;
    int32_t& length = memory.lengths[end[-j]];
    if (length == 0) continue;
    const float excess = static_cast<float>(length - dry.allowed_length);
    row[end[-j]] -= std::min(dry.multiplier * std::pow(dry.base, excess), kMostPenalty);
    length = 0;
  }
}

}  // namespace eagre
