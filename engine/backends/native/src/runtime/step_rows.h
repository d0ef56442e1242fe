// The rows of a step: which tokens are real, and where each row stands in its sequence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace eagre {

// One row of the batch with at least one real token.
struct StepRow {
  int32_t row;          // in the page table
  int32_t first_token;  // among the step's tokens
  int32_t num_tokens;
  int32_t start;  // position of its first token in the sequence
  int32_t end;    // tokens of the whole text, to which attention without order reaches
};

class StepRows {
  static constexpr int64_t kEnd = 7;  // the column of a text's end, where rows have so many

 public:
  // rows: int32[num_rows][stride], whose columns 0 and 1 are a row's start and its number of tokens. Rows of one token
  // come first, then num_tiles rows of up to tile_size tokens. A row without tokens is padding.
  void read(const int32_t* rows, int64_t num_rows, int64_t stride, int64_t num_tiles, int64_t num_tokens) {
    rows_.clear();
    tokens_.clear();
    const int64_t num_single = num_rows - num_tiles;
    const int64_t tile_size = num_tiles > 0 ? (num_tokens - num_single) / num_tiles : 0;
    for (int64_t row = 0; row < num_rows; ++row) {
      const int32_t start = rows[row * stride], count = rows[row * stride + 1];
      const int64_t room = row < num_single ? 1 : tile_size;
      if (count <= 0 || count > room || start < 0 || start > INT32_MAX - count) continue;
      const int64_t first = row < num_single ? row : num_single + (row - num_single) * tile_size;
      const int32_t end = std::max(start + count, stride > kEnd ? rows[row * stride + kEnd] : 0);
      rows_.push_back({static_cast<int32_t>(row), static_cast<int32_t>(first), count, start, end});
      for (int32_t i = 0; i < count; ++i) tokens_.push_back(static_cast<int32_t>(first) + i);
    }
  }

  const std::vector<StepRow>& rows() const { return rows_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }  // indices of the real ones

 private:
  std::vector<StepRow> rows_;
  std::vector<int32_t> tokens_;
};

}  // namespace eagre
