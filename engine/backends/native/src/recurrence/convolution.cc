#include "recurrence/convolution.h"

#include <algorithm>

#include "isa/isa.h"
#include "products/finish.h"

namespace eagre {
namespace {

constexpr int64_t kChannelBlock = 256;  // channels of a task

// Sixteen channels over the rows of a sequence. The window are the inputs before the next token.
void convolve(const Convolution& layer, const RecurrentRow* rows, size_t num_rows, int64_t channel, float* output) {
  const int64_t channels = layer.channels, before = layer.kernel - 1;
  const float* weights = layer.weights + channel;
  Floats window[kLargestKernel - 1];
  const auto entry = [&](int32_t index) { return layer.inputs + index * before * channels + channel; };
  const auto keep = [&](int32_t index) {
    for (int64_t i = 0; i < before; ++i) store(entry(index) + i * channels, window[i]);
  };
  const RecurrentRow& first = rows[0];
  const float* begin = entry(first.load > 0 ? first.load : first.slot);
  for (int64_t i = 0; i < before; ++i) window[i] = first.start == 0 ? zeros() : load(begin + i * channels);
  for (size_t row = 0; row < num_rows; ++row) {
    const RecurrentRow& of_row = rows[row];
    for (int32_t i = 0; i < of_row.num_tokens; ++i) {
      const int64_t token = of_row.first_token + i;
      const Floats x = load(layer.x + token * layer.width + layer.first + channel);
      Floats sum = mul(x, load(weights + before * channels));
      for (int64_t j = 0; j < before; ++j) sum = fma(window[j], load(weights + j * channels), sum);
      if (layer.bias != nullptr) sum = add(sum, load(layer.bias + channel));
      store(output + token * channels + channel, layer.has_silu ? silu(sum) : sum);
      for (int64_t j = 0; j + 1 < before; ++j) window[j] = window[j + 1];
      window[before - 1] = x;
      if (of_row.save > 0 && i + 1 == of_row.num_before_save) keep(of_row.save);
    }
  }
  keep(first.slot);
}

}  // namespace

void run_convolution(Pool& pool, const std::vector<RecurrentRow>& rows, const std::vector<Sequence>& sequences,
                     const Convolution& layer, float* output) {
  const int64_t num_blocks = (layer.channels + kChannelBlock - 1) / kChannelBlock;
  pool.run(static_cast<int64_t>(sequences.size()) * num_blocks, [&](int64_t task, int) {
    const Sequence& sequence = sequences[task / num_blocks];
    const int64_t begin = task % num_blocks * kChannelBlock, end = std::min(begin + kChannelBlock, layer.channels);
    for (int64_t channel = begin; channel < end; channel += kChannelMultiple) {
      convolve(layer, &rows[sequence.first], sequence.end - sequence.first, channel, output);
    }
  });
}

}  // namespace eagre
