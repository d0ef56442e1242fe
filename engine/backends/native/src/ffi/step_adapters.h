// The adapters of a step's rows, and their pairs beside a stack of weights, as the targets take them, checked.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "ffi/handler.h"
#include "ffi/step.h"
#include "products/low_rank.h"

namespace eagre {

constexpr int64_t kAdapter = 9, kAdapterScale = 10;  // columns of a step's rows, as base/token_layout.py has them

// Whether one of the rows has an adapter.
inline bool have_adapters(const S32& rows) {
  const int64_t num_rows = rows.dimensions()[0], stride = rows.dimensions()[1];
  if (stride <= kAdapter) return false;
  for (int64_t row = 0; row < num_rows; ++row) {
    if (rows.typed_data()[row * stride + kAdapter] > 0) return true;
  }
  return false;
}

// The pairs of all slots and layers as their caller hands them over; `down` without elements: there are none.
struct PairStack {
  // A lane being 4 bytes; of bytes the third-last axis has the scales of a tile before its numbers.
  const ffi::AnyBuffer& down;  // [slots][layers][parts * rank / 16][inputs / lane][16][lane]
  const ffi::AnyBuffer& up;    // [slots][layers][outputs / 16][rank / lane][16][lane]
  const S32& ranks;            // [slots]
  ffi::Span<const int64_t> ends;

  bool is_empty() const { return down.element_count() == 0; }
};

inline ffi::Error read_pairs(const PairStack& stack, int64_t layer, int64_t num_inputs, int64_t num_outputs, LowRank& pairs) {
  const auto down = stack.down.dimensions(), up = stack.up.dimensions();
  const XLA_FFI_DataType type = stack.down.element_type();
  const bool are_bytes = type == ffi::U8;
  if (type != stack.up.element_type() || (!are_bytes && type != ffi::F32 && type != ffi::BF16)) {
    return invalid("the pairs have another type");
  }
  const int64_t lane = are_bytes ? 4 : type == ffi::F32 ? 1 : 2;
  const auto has_tiles = [lane](ffi::Span<const int64_t> shape) {
    return shape.size() == 6 && shape[4] == kTile && shape[5] == lane;
  };
  if (!has_tiles(down) || !has_tiles(up) || down[0] != up[0] || down[1] != up[1] ||
      static_cast<int64_t>(stack.ranks.element_count()) != down[0] || (down[3] - are_bytes) * lane != num_inputs ||
      up[2] * kTile != num_outputs) {
    return invalid("the pairs have other shapes");
  }
  pairs.numbers = are_bytes ? Activations::kInt8 : type == ffi::F32 ? Activations::kFloat32 : Activations::kBfloat16;
  pairs.num_parts = static_cast<int64_t>(stack.ends.size());
  pairs.ends = stack.ends.begin();
  pairs.rank = (up[3] - are_bytes) * lane;
  pairs.num_inputs = num_inputs;
  if (pairs.rank < 1 || pairs.rank % kTile != 0 || down[2] * kTile != pairs.num_parts * pairs.rank) {
    return invalid("the pairs have other shapes");
  }
  int64_t before = 0;
  for (const int64_t end : stack.ends) {
    if (end % kTile != 0 || end <= before) return invalid("the parts have other sizes");
    before = end;
  }
  if (before != num_outputs) return invalid("the parts have other sizes");
  if (layer < 0 || layer >= down[1]) return invalid("there is no such layer");
  const auto place = [&](const ffi::AnyBuffer& buffer, ffi::Span<const int64_t> shape, int64_t& stride) {
    const int64_t of_layer = shape[2] * shape[3] * kTile * static_cast<int64_t>(sizeof(float));
    stride = shape[1] * of_layer;
    return static_cast<const std::byte*>(buffer.untyped_data()) + layer * of_layer;
  };
  pairs.down = place(stack.down, down, pairs.down_stride);
  pairs.up = place(stack.up, up, pairs.up_stride);
  pairs.ranks = stack.ranks.typed_data();
  for (int64_t slot = 0; slot < down[0]; ++slot) {
    if (pairs.ranks[slot] < 0 || pairs.ranks[slot] > pairs.rank) return invalid("an adapter has another rank");
  }
  return ffi::Error::Success();
}

// The real tokens of a step and the adapters of their rows, of which column 0 is none, in the order of the slots, so that
// those of one adapter are neighbours.
class StepAdapters {
 public:
  ffi::Error read(const S32& rows, const StepRows& step, int64_t num_slots) {
    const int64_t stride = rows.dimensions()[1];
    if (stride <= kAdapterScale) return invalid("rows have no adapters");
    found_.clear();
    for (const StepRow& row : step.rows()) {
      const int32_t* columns = rows.typed_data() + row.row * stride;
      const int32_t slot = std::max(columns[kAdapter] - 1, -1);
      if (slot >= num_slots) return invalid("there is no such adapter");
      found_.push_back({row.first_token, row.num_tokens, slot, columns[kAdapterScale]});
    }
    if (found_ == rows_) return ffi::Error::Success();  // every product of a step has the same
    rows_.clear();  // what follows may find no memory
    order_.clear();
    for (const auto& [first_token, num_tokens, slot, bits] : found_) {
      float scale;
      std::memcpy(&scale, &bits, sizeof scale);
      for (int32_t i = 0; i < num_tokens; ++i) order_.push_back({first_token + i, {slot, scale}});
    }
    std::stable_sort(order_.begin(), order_.end(),
                     [](const Token& a, const Token& b) { return a.adapter.slot < b.adapter.slot; });
    tokens_.clear();
    adapters_.clear();
    for (const Token& token : order_) {
      tokens_.push_back(token.index);
      adapters_.push_back(token.adapter);
    }
    std::swap(found_, rows_);
    return ffi::Error::Success();
  }

  const std::vector<int32_t>& tokens() const { return tokens_; }
  const RowAdapter* adapters() const { return adapters_.data(); }

 private:
  struct Token {
    int32_t index;
    RowAdapter adapter;
  };

  // Of each row with tokens: the first of them, how many, the slot, and the bits of the scale.
  std::vector<std::array<int32_t, 4>> found_, rows_;
  std::vector<Token> order_;
  std::vector<int32_t> tokens_;
  std::vector<RowAdapter> adapters_;
};

}  // namespace eagre
