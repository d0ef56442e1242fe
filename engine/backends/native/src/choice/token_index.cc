#include "choice/token_index.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "isa/isa.h"
#include "runtime/scratch.h"
#include "vectors/hadamard.h"

namespace eagre {
namespace {

constexpr int kLanes = 16;
constexpr int64_t kTaskKeys = 1024;           // whose scores for a query are a task
constexpr int64_t kMostScores = 16ll << 20;   // that are kept at once, unless one query needs more
constexpr int kHeadsAtOnce = 4;               // whose sums are kept in registers
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// A query that does not see all tokens before it.
struct Query {
  const int32_t* pages;  // of its row
  int64_t token, num_keys;
};

// The features of the index in a token's vector, to every sixteenth place.
void read_key(const Pages& pages, int64_t vector, int64_t size, float* to) {
  const int64_t at = (vector + 1) * pages.head_dim - size;
  if (pages.type == PageType::kFloat32) {
    const float* from = static_cast<const float*>(pages.data) + at;
    for (int64_t i = 0; i < size; ++i) to[i * kLanes] = from[i];
  } else if (pages.type == PageType::kBfloat16) {
    const uint16_t* from = static_cast<const uint16_t*>(pages.data) + at;
    for (int64_t i = 0; i < size; ++i) {
      const uint32_t bits = static_cast<uint32_t>(from[i]) << 16;
      std::memcpy(to + i * kLanes, &bits, sizeof bits);
    }
  } else if (pages.type == PageType::kInt16) {
    const int16_t* from = static_cast<const int16_t*>(pages.data) + at;
    for (int64_t i = 0; i < size; ++i) to[i * kLanes] = static_cast<float>(from[i]) * pages.scales[vector];
  } else {
    const int64_t d = pages.head_dim;
    const int8_t* from = static_cast<const int8_t*>(pages.data) + vector * d;
    alignas(64) float whole[kLargestHead];
    for (int64_t i = 0; i < d; ++i) whole[i] = static_cast<float>(from[i]) * pages.scales[vector];
    hadamard(whole, d, whole);  // which undoes itself
    for (int64_t i = 0; i < size; ++i) to[i * kLanes] = whole[d - size + i];
  }
}

// Adds what kHeads heads make of 16 keys, [size][kLanes], to their scores.
template <int kHeads>
Floats add_heads(const float* queries, const float* weights, const float* keys, int64_t size, Floats scores) {
  Floats sums[kHeads];
  for (int h = 0; h < kHeads; ++h) sums[h] = zeros();
  for (int64_t i = 0; i < size; ++i) {
    const Floats key = load(keys + i * kLanes);
    for (int h = 0; h < kHeads; ++h) sums[h] = fma(broadcast(queries[h * size + i]), key, sums[h]);
  }
  for (int h = 0; h < kHeads; ++h) scores = fma(broadcast(weights[h]), max(sums[h], zeros()), scores);
  return scores;
}

// The scores of a query for the keys from `begin` to `end`, to `scores` and up to a multiple of 16 of them.
void score_keys(const TokenIndex& index, int64_t table_width, const Pages& pages, const Query& query, int64_t begin,
                int64_t end, float* scores) {
  const float* const queries = index.queries + query.token * index.num_heads * index.size;
  const float* const weights = index.weights + query.token * index.num_heads;
  alignas(64) float keys[kLargestHead * kLanes];
  Walk walk(pages, query.pages, table_width, begin);
  for (int64_t first = begin; first < end; first += kLanes) {
    const int count = static_cast<int>(std::min<int64_t>(kLanes, end - first));
    std::fill_n(keys, count < kLanes ? index.size * kLanes : 0, 0.0f);
    for (int key = 0; key < count;) {
      const Run run = walk.next(count - key);
      for (int i = 0; i < run.count; ++i, ++key) read_key(pages, run.key + i, index.size, keys + key);
    }
    Floats made = zeros();
    int64_t head = 0;
    for (; head + kHeadsAtOnce <= index.num_heads; head += kHeadsAtOnce) {
      made = add_heads<kHeadsAtOnce>(queries + head * index.size, weights + head, keys, index.size, made);
    }
    for (; head < index.num_heads; ++head) {
      made = add_heads<1>(queries + head * index.size, weights + head, keys, index.size, made);
    }
    store(scores + (first - begin), made);
  }
}

// Sets the bits of the best scores. order: memory for so many numbers.
void set_best(float* scores, int64_t num_keys, int64_t num_picked, int32_t* order, uint64_t* words) {
  for (int64_t i = 0; i < num_keys; ++i) {
    if (scores[i] != scores[i]) scores[i] = kMinusInfinity;  // what is no number has no place in an order
  }
  std::iota(order, order + num_keys, 0);
  std::nth_element(order, order + num_picked, order + num_keys, [scores](int32_t a, int32_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  });
  for (int64_t i = 0; i < num_picked; ++i) words[order[i] / kBlockKeys] |= uint64_t{1} << (order[i] % kBlockKeys);
}

}  // namespace

Picks pick_tokens(Pool& pool, const StepRows& rows, const TokenIndex& index, const int32_t* page_table, int64_t table_width,
                  int64_t table_stride, const Pages& pages) {
  struct Memory {
    Scratch scores, words, orders;
    std::vector<Query> queries;
  };
  static Memory& memory = *new Memory;  // kept from call to call; the caller holds the pool
  std::vector<Query>& queries = memory.queries;
  queries.clear();
  int64_t num_tokens = 0, longest = 0;
  for (const StepRow& row : rows.rows()) {
    num_tokens = std::max(num_tokens, int64_t{1} * row.first_token + row.num_tokens);
    for (int64_t i = 0; i < row.num_tokens; ++i) {
      const int64_t num_keys = row.start + i + 1;
      if (num_keys > index.num_picked) queries.push_back({page_table + row.row * table_stride, row.first_token + i, num_keys});
      longest = std::max(longest, num_keys);
    }
  }
  if (queries.empty()) return {};
  const int64_t stride = (longest + kBlockKeys - 1) / kBlockKeys, width = stride * kBlockKeys;
  uint64_t* const words = memory.words.take<uint64_t>(num_tokens * stride);
  std::fill_n(words, num_tokens * stride, ~uint64_t{0});
  const int64_t num_queries = static_cast<int64_t>(queries.size());
  const int64_t at_once = std::clamp<int64_t>(kMostScores / width, 1, num_queries);
  float* const scores = memory.scores.take<float>(at_once * width);
  int32_t* const orders = memory.orders.take<int32_t>(pool.num_threads() * width);
  const int64_t parts = (longest + kTaskKeys - 1) / kTaskKeys;
  for (int64_t first = 0; first < num_queries; first += at_once) {
    const int64_t count = std::min(at_once, num_queries - first);
    pool.run(count * parts, [&](int64_t task, int) {
      const Query& query = queries[first + task / parts];
      const int64_t begin = task % parts * kTaskKeys, end = std::min(begin + kTaskKeys, query.num_keys);
      if (begin < end) score_keys(index, table_width, pages, query, begin, end, scores + task / parts * width + begin);
    });
    pool.run(count, [&](int64_t task, int thread) {
      const Query& query = queries[first + task];
      uint64_t* const of_query = words + query.token * stride;
      std::fill_n(of_query, stride, 0);
      set_best(scores + task * width, query.num_keys, index.num_picked, orders + thread * width, of_query);
    });
  }
  return {words, stride};
}

}  // namespace eagre
