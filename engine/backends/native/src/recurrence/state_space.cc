#include "recurrence/state_space.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "isa/isa.h"
#include "products/finish.h"
#include "runtime/scratch.h"
#include "vectors/elementary.h"

namespace eagre {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kTokenBlock = 64;  // tokens whose steps are prepared together

float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// The steps of a head over some tokens, and its decays where a head has one for all its channels.
struct HeadSteps {
  float steps[kTokenBlock * kLargestStateHead];  // by channel [tokens][head_dim], else [tokens]
  float decays[kTokenBlock];
};

// Sixteen times kParts columns of a head's matrix over `count` tokens from `begin` on, whose steps are from `prepared`
// on. The columns are independent of each other, and so few that they stay in the first cache from token to token.
template <int kParts, bool kByChannel>
void recur(const StateSpace& layer, int64_t head, int64_t column, float* matrix, const HeadSteps& steps,
           int64_t prepared, int64_t begin, int64_t count, float* output) {
  const int64_t stride = layer.head_dim, size = layer.state_size, values = layer.value_size();
  const int64_t channel = head * layer.head_dim + column;
  const int64_t group = head / (layer.num_heads / layer.num_groups);
  Floats skip[kParts];
  for (int part = 0; part < kParts; ++part) {
    skip[part] = kByChannel ? load(layer.skip + channel + part * kLanes) : broadcast(layer.skip[head]);
  }
  for (int64_t i = 0; i < count; ++i) {
    const float* of_token = layer.mixed + (begin + i) * layer.mixed_width();
    const float* in = of_token + values + group * size;
    const float* out = in + layer.num_groups * size;
    Floats step[kParts], added[kParts], even[kParts], odd[kParts];
    EAGRE_UNROLL(2)
    for (int part = 0; part < kParts; ++part) {
      step[part] = kByChannel ? load(steps.steps + (prepared + i) * layer.head_dim + column + part * kLanes)
                              : broadcast(steps.steps[prepared + i]);
      added[part] = mul(load(of_token + channel + part * kLanes), step[part]);
      even[part] = odd[part] = zeros();
    }
    const Floats decay = broadcast(kByChannel ? 0.0f : steps.decays[prepared + i]);
    for (int64_t j = 0; j < size; j += 2) {
      const Floats one = broadcast(in[j]), other = broadcast(in[j + 1]);
      const Floats one_out = broadcast(out[j]), other_out = broadcast(out[j + 1]);
      EAGRE_UNROLL(2)
      for (int part = 0; part < kParts; ++part) {
        float* above = matrix + j * stride + part * kLanes;
        Floats first_decay = decay, second_decay = decay;
        if constexpr (kByChannel) {
          const float* decays = layer.decay + j * values + channel + part * kLanes;
          first_decay = exp(mul(step[part], load(decays)));
          second_decay = exp(mul(step[part], load(decays + values)));
        }
        const Floats first_row = fma(one, added[part], mul(load(above), first_decay));
        const Floats second_row = fma(other, added[part], mul(load(above + stride), second_decay));
        store(above, first_row);
        store(above + stride, second_row);
        even[part] = fma(first_row, one_out, even[part]);
        odd[part] = fma(second_row, other_out, odd[part]);
      }
    }
    EAGRE_UNROLL(2)
    for (int part = 0; part < kParts; ++part) {
      const Floats value = load(of_token + channel + part * kLanes);
      store(output + (begin + i) * values + channel + part * kLanes,
            fma(value, skip[part], add(even[part], odd[part])));
    }
  }
}

// All columns of a head's matrix over some tokens.
template <bool kByChannel>
void recur_all(const StateSpace& layer, int64_t head, float* matrix, const HeadSteps& steps, int64_t prepared,
               int64_t begin, int64_t count, float* output) {
  int64_t column = 0;
  for (; column + 2 * kLanes <= layer.head_dim; column += 2 * kLanes) {
    recur<2, kByChannel>(layer, head, column, matrix + column, steps, prepared, begin, count, output);
  }
  if (column < layer.head_dim) {
    recur<1, kByChannel>(layer, head, column, matrix + column, steps, prepared, begin, count, output);
  }
}

// Prepares the steps of `count` tokens from `begin` on.
void prepare(const StateSpace& layer, int64_t head, int64_t begin, int64_t count, HeadSteps& steps) {
  const int64_t width = layer.is_by_channel ? layer.head_dim : 1, first = head * width, all = layer.num_steps();
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; j < width; ++j) {
      const float step = softplus(layer.time_steps[(begin + i) * all + first + j] + layer.time_bias[first + j]);
      steps.steps[i * width + j] = std::min(std::max(step, layer.least_step), layer.most_step);
    }
    if (!layer.is_by_channel) steps.decays[i] = std::exp(steps.steps[i] * layer.decay[head]);
  }
}

// One head over the rows of a sequence.
void run_head(const StateSpace& layer, const RecurrentRow* rows, size_t num_rows, int64_t head, HeadSteps& steps,
              float* output) {
  const int64_t size = layer.state_size * layer.head_dim;
  const auto entry = [&](int32_t index) { return layer.matrices + (index * layer.num_heads + head) * size; };
  float* matrix = entry(rows[0].slot);
  if (rows[0].start == 0) {
    std::memset(matrix, 0, size * sizeof(float));
  } else if (rows[0].load > 0) {
    std::memcpy(matrix, entry(rows[0].load), size * sizeof(float));
  }
  const auto run = [&](int64_t prepared, int64_t begin, int64_t count) {
    (layer.is_by_channel ? recur_all<true> : recur_all<false>)(layer, head, matrix, steps, prepared, begin, count,
                                                               output);
  };
  for (size_t i = 0; i < num_rows; ++i) {
    const RecurrentRow& row = rows[i];
    for (int64_t first = 0; first < row.num_tokens; first += kTokenBlock) {
      const int64_t begin = row.first_token + first, count = std::min<int64_t>(kTokenBlock, row.num_tokens - first);
      prepare(layer, head, begin, count, steps);
      const int64_t middle = row.num_before_save - first;
      if (row.save > 0 && 0 < middle && middle <= count) {
        run(0, begin, middle);
        std::memcpy(entry(row.save), matrix, size * sizeof(float));
        run(middle, begin + middle, count - middle);
      } else {
        run(0, begin, count);
      }
    }
  }
}

// Gates and norms the values of a token, in place.
void finish_token(const StateSpace& layer, int64_t token, float* values) {
  const float* gates = layer.gates + token * layer.gates_width + layer.first_gate;
  const int64_t width = layer.value_size() / layer.num_groups;
  for (int64_t group = 0; group < layer.num_groups; ++group) {
    const int64_t begin = group * width, end = begin + width;
    const bool gates_first = layer.norm == nullptr || !layer.norms_first;
    Floats squares = zeros();
    for (int64_t i = begin; i < end; i += kLanes) {
      Floats part = load(values + i);
      if (gates_first) {
        part = mul(part, silu(load(gates + i)));
        store(values + i, part);
      }
      squares = fma(part, part, squares);
    }
    if (layer.norm == nullptr) continue;
    const Floats factor = broadcast(1.0f / std::sqrt(sum(squares) / static_cast<float>(width) + layer.epsilon));
    for (int64_t i = begin; i < end; i += kLanes) {
      Floats part = mul(mul(load(values + i), factor), load(layer.norm + i));
      if (!gates_first) part = mul(part, silu(load(gates + i)));
      store(values + i, part);
    }
  }
}

}  // namespace

void run_state_space(Pool& pool, const std::vector<RecurrentRow>& rows, const StateSpace& layer, float* output) {
  static Scratch& of_threads = *new Scratch;  // the caller holds the pool
  const std::vector<Sequence>& sequences = sequences_of(rows);
  HeadSteps* steps = of_threads.take<HeadSteps>(pool.num_threads());
  pool.run(static_cast<int64_t>(sequences.size()) * layer.num_heads, [&](int64_t task, int thread) {
    const Sequence& sequence = sequences[task / layer.num_heads];
    run_head(layer, &rows[sequence.first], sequence.end - sequence.first, task % layer.num_heads, steps[thread],
             output);
  });
  pool.run(static_cast<int64_t>(rows.size()), [&](int64_t task, int) {
    const RecurrentRow& row = rows[task];
    for (int64_t token = row.first_token; token < row.first_token + row.num_tokens; ++token) {
      finish_token(layer, token, output + token * layer.value_size());
    }
  });
}

}  // namespace eagre
