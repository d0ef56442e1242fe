#include "recurrence/gated_delta.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "isa/isa.h"
#include "products/finish.h"
#include "recurrence/convolution.h"
#include "runtime/scratch.h"

namespace eagre {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kTokenBlock = 64;     // tokens whose queries and keys are prepared together
constexpr float kUnitEpsilon = 1e-6f;   // of the lengths of queries and keys

// x scaled to unit length and by `scale`, of `size` features.
void to_unit(const float* x, int64_t size, float scale, float* unit) {
  Floats squares = zeros();
  for (int64_t i = 0; i < size; i += kLanes) {
    const Floats part = load(x + i);
    squares = fma(part, part, squares);
  }
  const Floats factor = broadcast(scale / std::sqrt(sum(squares) + kUnitEpsilon));
  for (int64_t i = 0; i < size; i += kLanes) store(unit + i, mul(load(x + i), factor));
}

float sigmoid(float x) { return x >= 0.0f ? 1.0f / (1.0f + std::exp(-x)) : std::exp(x) / (1.0f + std::exp(x)); }
float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// What the recurrence of a head reads of some tokens, and what it makes of them.
struct HeadTokens {
  float q[kTokenBlock * kLargestDeltaHead];
  float k[kTokenBlock * kLargestDeltaHead];
  float out[kTokenBlock * kLargestDeltaHead];
  float decay[kTokenBlock];
  float beta[kTokenBlock];
  float decays[kTokenBlock * kLargestDeltaHead];  // of each row of the matrix, where they differ
  float faded[kTokenBlock * kLargestDeltaHead];   // keys times decays
};

// Sixteen times kParts columns of a head's matrix over some tokens. The columns are independent of each other, and so
// few that they stay in the first cache from token to token.
template <int kParts, bool kByRow>
void recur(const GatedDelta& layer, float* matrix, const float* values, int64_t values_stride, HeadTokens& tokens,
           float* out, int64_t first, int64_t end) {
  const int64_t num_keys = layer.key_dim, stride = layer.value_dim;
  for (int64_t token = first; token < end; ++token) {
    const float *q = tokens.q + token * num_keys, *k = tokens.k + token * num_keys;
    const float *decays = tokens.decays + token * num_keys, *known_by = kByRow ? tokens.faded + token * num_keys : k;
    const Floats decay = broadcast(tokens.decay[token]), beta = broadcast(tokens.beta[token]);
    Floats even[kParts], odd[kParts], change[kParts];
    EAGRE_UNROLL(2)
    for (int part = 0; part < kParts; ++part) even[part] = odd[part] = zeros();
    for (int64_t i = 0; i < num_keys; i += 2) {
      const Floats one = broadcast(known_by[i]), other = broadcast(known_by[i + 1]);
      EAGRE_UNROLL(2)
      for (int part = 0; part < kParts; ++part) {
        const float* above = matrix + i * stride + part * kLanes;
        even[part] = fma(load(above), one, even[part]);
        odd[part] = fma(load(above + stride), other, odd[part]);
      }
    }
    EAGRE_UNROLL(2)
    for (int part = 0; part < kParts; ++part) {
      const Floats sums = add(even[part], odd[part]), known = kByRow ? sums : mul(sums, decay);
      change[part] = mul(sub(load(values + token * values_stride + part * kLanes), known), beta);
      even[part] = odd[part] = zeros();
    }
    for (int64_t i = 0; i < num_keys; i += 2) {
      const Floats one = broadcast(k[i]), other = broadcast(k[i + 1]);
      const Floats one_q = broadcast(q[i]), other_q = broadcast(q[i + 1]);
      const Floats first_decay = kByRow ? broadcast(decays[i]) : decay;
      const Floats second_decay = kByRow ? broadcast(decays[i + 1]) : decay;
      EAGRE_UNROLL(2)
      for (int part = 0; part < kParts; ++part) {
        float* above = matrix + i * stride + part * kLanes;
        const Floats first_row = fma(one, change[part], mul(load(above), first_decay));
        const Floats second_row = fma(other, change[part], mul(load(above + stride), second_decay));
        store(above, first_row);
        store(above + stride, second_row);
        even[part] = fma(first_row, one_q, even[part]);
        odd[part] = fma(second_row, other_q, odd[part]);
      }
    }
    EAGRE_UNROLL(2)
    for (int part = 0; part < kParts; ++part) {
      store(out + token * stride + part * kLanes, add(even[part], odd[part]));
    }
  }
}

// All columns of a head's matrix over the tokens of a row from `first` to `end`.
template <bool kByRow>
void recur_columns(const GatedDelta& layer, float* matrix, const float* values, int64_t values_stride,
                   HeadTokens& tokens, int64_t first, int64_t end) {
  int64_t column = 0;
  for (; column + 2 * kLanes <= layer.value_dim; column += 2 * kLanes) {
    recur<2, kByRow>(layer, matrix + column, values + column, values_stride, tokens, tokens.out + column, first, end);
  }
  if (column < layer.value_dim) {
    recur<1, kByRow>(layer, matrix + column, values + column, values_stride, tokens, tokens.out + column, first, end);
  }
}

void recur_all(const GatedDelta& layer, float* matrix, const float* values, int64_t values_stride, HeadTokens& tokens,
               int64_t first, int64_t end) {
  const auto run = layer.has_row_decays ? recur_columns<true> : recur_columns<false>;
  run(layer, matrix, values, values_stride, tokens, first, end);
}

// out: the head's part of the output of its tokens, normed and gated.
void finish(const GatedDelta& layer, const float* made, const float* gates, float* out) {
  Floats squares = zeros();
  for (int64_t i = 0; i < layer.value_dim; i += kLanes) {
    const Floats part = load(made + i);
    squares = fma(part, part, squares);
  }
  const float mean = sum(squares) / static_cast<float>(layer.value_dim);
  const Floats factor = broadcast(1.0f / std::sqrt(mean + layer.epsilon));
  for (int64_t i = 0; i < layer.value_dim; i += kLanes) {
    const Floats normed = mul(mul(load(made + i), factor), load(layer.norm + i));
    const Floats gate = load(gates + i);
    store(out + i, mul(normed, layer.has_sigmoid_gates ? logistic(gate) : silu(gate)));
  }
}

// One head over the tokens of a row, kTokenBlock at most, from offset `first` to `end`.
void run_tokens(const GatedDelta& layer, const RecurrentRow& row, int64_t head, const float* mixed, HeadTokens& tokens,
                float* matrix, float* save, int64_t first, int64_t end, float* output) {
  const int64_t channels = layer.num_channels(), width = channels + layer.value_size(), count = end - first;
  const int64_t key_size = layer.num_key_heads * layer.key_dim, key = layer.key_head(head) * layer.key_dim;
  const int64_t begin = row.first_token + first;
  const float scale = 1.0f / std::sqrt(static_cast<float>(layer.key_dim));
  for (int64_t i = 0; i < count; ++i) {
    const float* of_token = mixed + (begin + i) * channels;
    to_unit(of_token + key, layer.key_dim, scale, tokens.q + i * layer.key_dim);
    to_unit(of_token + key_size + key, layer.key_dim, 1.0f, tokens.k + i * layer.key_dim);
    const int64_t at = (begin + i) * layer.num_heads + head;
    tokens.beta[i] = layer.beta_scale * sigmoid(layer.beta[at]);
    if (layer.has_row_decays) {
      const float* logarithms = layer.alpha + at * layer.key_dim;
      for (int64_t row = 0; row < layer.key_dim; row += kLanes) {
        const int64_t place = i * layer.key_dim + row;
        const Floats decays = exp(load(logarithms + row));
        store(tokens.decays + place, decays);
        store(tokens.faded + place, mul(load(tokens.k + place), decays));
      }
      continue;
    }
    tokens.decay[i] = std::exp(layer.decay[head] * softplus(layer.alpha[at] + layer.time_bias[head]));
  }
  const float* values = mixed + begin * channels + 2 * key_size + head * layer.value_dim;
  const int64_t middle = save == nullptr ? count : row.num_before_save - first;
  recur_all(layer, matrix, values, channels, tokens, 0, middle);
  if (save != nullptr) {
    std::memcpy(save, matrix, layer.key_dim * layer.value_dim * sizeof(float));
    recur_all(layer, matrix, values, channels, tokens, middle, count);
  }
  for (int64_t i = 0; i < count; ++i) {
    finish(layer, tokens.out + i * layer.value_dim, layer.qkvz + (begin + i) * width + channels + head * layer.value_dim,
           output + (begin + i) * layer.value_size() + head * layer.value_dim);
  }
}

// One head over the rows of a sequence.
void run_head(const GatedDelta& layer, const RecurrentRow* rows, size_t num_rows, int64_t head, const float* mixed,
              HeadTokens& tokens, float* output) {
  const int64_t size = layer.key_dim * layer.value_dim;
  const auto entry = [&](int32_t index) { return layer.matrices + (index * layer.num_heads + head) * size; };
  float* matrix = entry(rows[0].slot);
  if (rows[0].start == 0) {
    std::memset(matrix, 0, size * sizeof(float));
  } else if (rows[0].load > 0) {
    std::memcpy(matrix, entry(rows[0].load), size * sizeof(float));
  }
  for (size_t i = 0; i < num_rows; ++i) {
    const RecurrentRow& row = rows[i];
    for (int64_t first = 0; first < row.num_tokens; first += kTokenBlock) {
      const int64_t end = std::min<int64_t>(first + kTokenBlock, row.num_tokens);
      const bool saves = row.save > 0 && first < row.num_before_save && row.num_before_save <= end;
      run_tokens(layer, row, head, mixed, tokens, matrix, saves ? entry(row.save) : nullptr, first, end, output);
    }
  }
}

}  // namespace

void run_gated_delta(Pool& pool, const std::vector<RecurrentRow>& rows, const GatedDelta& layer, float* output) {
  static Scratch& convolved = *new Scratch;  // the caller holds the pool
  static Scratch& of_threads = *new Scratch;
  const std::vector<Sequence>& sequences = sequences_of(rows);
  const int64_t num_sequences = static_cast<int64_t>(sequences.size()), channels = layer.num_channels();
  float* mixed = convolved.take<float>(layer.num_tokens * channels);
  HeadTokens* tokens = of_threads.take<HeadTokens>(pool.num_threads());
  run_convolution(pool, rows, sequences,
                  {layer.qkvz, channels + layer.value_size(), 0, channels, layer.kernel, layer.convolution, nullptr,
                   layer.inputs},
                  mixed);
  pool.run(num_sequences * layer.num_heads, [&](int64_t task, int thread) {
    const Sequence& sequence = sequences[task / layer.num_heads];
    run_head(layer, &rows[sequence.first], sequence.end - sequence.first, task % layer.num_heads, mixed, tokens[thread],
             output);
  });
}

}  // namespace eagre
