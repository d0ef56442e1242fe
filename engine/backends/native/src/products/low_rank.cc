#include "products/low_rank.h"

#include <algorithm>

#include "isa/isa.h"
#include "runtime/scratch.h"

namespace eagre {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kOutputsPerTask = 1024;
constexpr int kVectors = 4;  // whose sums are computed together
// What is read so far ahead is asked for early: each matrix is short, and the processor's own guesses end with its pages.
constexpr int64_t kAhead = 48, kAheadVectors = 16;
constexpr int kChains = 2;   // of sums over the inputs, so that one sum need not wait for the last
#ifdef __AVX512F__
constexpr int64_t kMostTokens = 4;  // that read a matrix together, as many as there are registers for their sums
#else
constexpr int64_t kMostTokens = 1;
#endif

// Neighbouring tokens of one adapter, or of none.
struct Block {
  int64_t first, count;  // among the sorted tokens
};

inline Floats widened(const float* p) { return load(p); }
inline Floats widened(const uint16_t* p) { return load_bf16(p); }

// kLanes products of each of some rows with neighbouring columns of `down`, each times the scale of the row.
template <int kCount, class Number>
void multiply_down(const AdaptedToken* tokens, const float* x, const Number* down, int64_t num_inputs, int64_t stride,
                   float* inner) {
  Floats sums[kCount][kChains];
  const float* rows[kCount];
  EAGRE_UNROLL(4)
  for (int row = 0; row < kCount; ++row) {
    rows[row] = x + tokens[row].token * num_inputs;
    for (int chain = 0; chain < kChains; ++chain) sums[row][chain] = zeros();
  }
  for (int64_t i = 0; i < num_inputs; i += kChains) {
    __builtin_prefetch(down + (i + kAhead) * stride);
    EAGRE_UNROLL(2)
    for (int chain = 0; chain < kChains; ++chain) {
      const Floats weights = widened(down + (i + chain) * stride);
      EAGRE_UNROLL(4)
      for (int row = 0; row < kCount; ++row) {
        sums[row][chain] = fma(broadcast(rows[row][i + chain]), weights, sums[row][chain]);
      }
    }
  }
  EAGRE_UNROLL(4)
  for (int row = 0; row < kCount; ++row) {
    store(inner + row * stride, mul(broadcast(tokens[row].scale), add(sums[row][0], sums[row][1])));
  }
}

// kOwnVectors * kLanes outputs of each of some rows, which begin at `at`.
template <int kCount, int kOwnVectors, class Number>
void multiply_up(const AdaptedToken* tokens, const float* inner, int64_t stride, const Number* up, int64_t rank,
                 int64_t num_outputs, int64_t at, float* y) {
  Floats sums[kCount][kOwnVectors];
  EAGRE_UNROLL(4)
  for (int row = 0; row < kCount; ++row) {
    EAGRE_UNROLL(4)
    for (int i = 0; i < kOwnVectors; ++i) sums[row][i] = zeros();
  }
  for (int64_t k = 0; k < rank; ++k) {
    Floats weights[kOwnVectors];
    const Number* own = up + k * num_outputs + at;
    for (int i = 0; i < kOwnVectors; i += 2) __builtin_prefetch(own + (kAheadVectors + i) * kLanes);
    EAGRE_UNROLL(4)
    for (int i = 0; i < kOwnVectors; ++i) weights[i] = widened(own + i * kLanes);
    EAGRE_UNROLL(4)
    for (int row = 0; row < kCount; ++row) {
      const Floats factor = broadcast(inner[row * stride + k]);
      EAGRE_UNROLL(4)
      for (int i = 0; i < kOwnVectors; ++i) sums[row][i] = fma(factor, weights[i], sums[row][i]);
    }
  }
  EAGRE_UNROLL(4)
  for (int row = 0; row < kCount; ++row) {
    float* out = y + tokens[row].token * num_outputs + at;
    EAGRE_UNROLL(4)
    for (int i = 0; i < kOwnVectors; ++i) store(out + i * kLanes, sums[row][i]);
  }
}

// The outputs of a block from `begin` to `end`; inner: [tokens][parts][rank].
template <int kCount, class Number>
void multiply_outputs(const LowRank<Number>& pairs, const AdaptedToken* tokens, const float* inner, int64_t begin,
                      int64_t end, float* y) {
  const int64_t stride = pairs.num_parts * pairs.rank, rank = pairs.ranks[tokens->slot];
  const Number* up = pairs.up + tokens->slot * pairs.up_stride;
  int64_t part = 0;
  for (int64_t at = begin; at < end;) {
    while (pairs.ends[part] <= at) ++part;
    const int64_t limit = std::min(end, pairs.ends[part]);
    const float* own = inner + part * pairs.rank;
    for (; at + kVectors * kLanes <= limit; at += kVectors * kLanes) {
      multiply_up<kCount, kVectors>(tokens, own, stride, up, rank, pairs.num_outputs, at, y);
    }
    for (; at < limit; at += kLanes) {
      multiply_up<kCount, 1>(tokens, own, stride, up, rank, pairs.num_outputs, at, y);
    }
  }
}

// Calls `body` with the number of a block's tokens as a constant.
template <class Body>
void with_count(int64_t count, const Body& body) {
  switch (count) {
    case 1: return body.template operator()<1>();
#ifdef __AVX512F__
    case 2: return body.template operator()<2>();
    case 3: return body.template operator()<3>();
    case 4: return body.template operator()<4>();
#endif
  }
}

template <class Number>
struct Down {
  const LowRank<Number>& pairs;
  const AdaptedToken* tokens;
  const float* x;
  int64_t column;
  float* inner;

  template <int kCount>
  void operator()() const {
    multiply_down<kCount>(tokens, x, pairs.down + tokens->slot * pairs.down_stride + column, pairs.num_inputs,
                          pairs.num_parts * pairs.rank, inner + column);
  }
};

template <class Number>
struct Up {
  const LowRank<Number>& pairs;
  const AdaptedToken* tokens;
  const float* inner;
  int64_t begin, end;
  float* y;

  template <int kCount>
  void operator()() const {
    multiply_outputs<kCount>(pairs, tokens, inner, begin, end, y);
  }
};

}  // namespace

template <class Number>
void multiply_low_rank(Pool& pool, std::vector<AdaptedToken>& tokens, const LowRank<Number>& pairs, const float* x,
                       float* y) {
  static Scratch& memory = *new Scratch;  // the caller holds the pool
  static std::vector<Block>& blocks = *new std::vector<Block>;
  const auto is_adapted = [&](const AdaptedToken& token) { return token.slot >= 0 && pairs.ranks[token.slot] > 0; };
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const AdaptedToken& a, const AdaptedToken& b) { return a.slot < b.slot; });
  blocks.clear();
  const int64_t num_tokens = static_cast<int64_t>(tokens.size());
  for (int64_t i = 0; i < num_tokens; ++i) {
    if (!blocks.empty() && tokens[i].slot == tokens[blocks.back().first].slot && blocks.back().count < kMostTokens) {
      ++blocks.back().count;
    } else {
      blocks.push_back({i, 1});
    }
  }
  const int64_t num_columns = pairs.num_parts * pairs.rank, num_blocks = static_cast<int64_t>(blocks.size());
  const int64_t vectors_of_part = pairs.rank / kLanes, num_vectors = pairs.num_parts * vectors_of_part;
  float* inner = memory.take<float>(static_cast<size_t>(num_tokens * num_columns));
  if (std::any_of(tokens.begin(), tokens.end(), is_adapted)) {
    pool.run(num_blocks * num_vectors, [&](int64_t task, int) {
      const Block& block = blocks[task / num_vectors];
      const AdaptedToken* own = &tokens[block.first];
      const int64_t vector = task % num_vectors;
      if (!is_adapted(*own) || vector % vectors_of_part * kLanes >= pairs.ranks[own->slot]) return;
      with_count(block.count, Down<Number>{pairs, own, x, vector * kLanes, inner + block.first * num_columns});
    });
  }
  const int64_t num_pieces = (pairs.num_outputs + kOutputsPerTask - 1) / kOutputsPerTask;
  pool.run(num_blocks * num_pieces, [&](int64_t task, int) {
    const Block& block = blocks[task / num_pieces];
    const AdaptedToken* own = &tokens[block.first];
    const int64_t begin = task % num_pieces * kOutputsPerTask, end = std::min(pairs.num_outputs, begin + kOutputsPerTask);
    if (is_adapted(*own)) {
      return with_count(block.count, Up<Number>{pairs, own, inner + block.first * num_columns, begin, end, y});
    }
    for (int64_t i = 0; i < block.count; ++i) {
      float* row = y + own[i].token * pairs.num_outputs;
      std::fill(row + begin, row + end, 0.0f);
    }
  });
}

template void multiply_low_rank(Pool&, std::vector<AdaptedToken>&, const LowRank<float>&, const float*, float*);
template void multiply_low_rank(Pool&, std::vector<AdaptedToken>&, const LowRank<uint16_t>&, const float*, float*);

}  // namespace eagre
