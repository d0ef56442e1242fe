// What the threads do in one call of attention.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attention/input.h"
#include "pages/pages.h"
#include "runtime/step_rows.h"

namespace eagre {

constexpr int kSplitKeys = 512;  // the threads share the context of a single row in parts of so many keys

// The first position that a token at `position` sees. window: 0 for none.
inline int64_t first_visible(int64_t window, int64_t position) {
  return window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
}

// The last position that it sees of a text which is `end` tokens long, where tokens have no order.
inline int64_t last_of_text(int64_t window, int64_t position, int64_t end) {
  return window > 0 ? std::min(end, position + window) - 1 : end - 1;
}

// Queries of some key heads, and the keys that they are to see: of some tokens of one row of the step, or of several rows
// of one token.
struct Item {
  const StepRow* row;          // the first of `num_rows`, whose tokens lie side by side
  int32_t num_rows;
  int64_t head, end_head;      // key heads
  int32_t first, num_tokens;   // of a row's tokens
  int64_t first_key, end_key;  // positions; of several rows the end of the split, which some do not reach: see `own_part`
  int64_t shared_key;          // several rows have the same pages from first_key to here, whole blocks
};

// A row whose context several items share; partial results are [split][head].
struct Split {
  const StepRow* row;
  int64_t first_partial, num_partials;
};

class Plan {
 public:
  void make(const StepRows& rows, const AttentionInput& in, const Pages& pages, int num_threads);

  const std::vector<Item>& items() const { return items_; }
  const std::vector<Split>& splits() const { return splits_; }
  int64_t num_partials() const { return num_partials_; }
  int32_t most_tokens() const { return most_tokens_; }        // of any item of a prompt, which has one head
  int32_t most_rows() const { return most_rows_; }            // of any item of rows of one token
  int64_t heads_per_item() const { return heads_per_item_; }  // the most of those

  // Where the partial result of a head of an item of one row is, or -1 where the item is the whole.
  int64_t partial_of(const Item& item, int64_t head) const {
    const int64_t first = first_partials_[item.row - first_row_];
    // The last key lies in the item's split; the first may not, where a split is shared to its end.
    const int64_t split = (item.end_key - 1) / kSplitKeys - begin_of(*item.row) / kSplitKeys;
    return first < 0 ? -1 : first + split * num_heads_ + head;
  }

  // What one of several rows sees by itself, behind the pages that it shares.
  Item own_part(const Item& item, int32_t index) const;

 private:
  int64_t begin_of(const StepRow& row) const { return first_visible(window_, row.start); }
  void add_prompt(const StepRow& row, int32_t tokens_per_item);
  int64_t seen_begin(const StepRow& row, int32_t token) const;
  int64_t seen_end(const StepRow& row, int32_t token) const;
  void add_rows(const StepRow* rows, int32_t count);
  int32_t num_beginning_alike(const StepRow* rows, int64_t count) const;
  int64_t shared_end(const StepRow& a, const StepRow& b, int64_t begin, int64_t end) const;

  std::vector<Item> items_;
  std::vector<Split> splits_;
  std::vector<int64_t> first_partials_;  // of each row, or -1
  const StepRow* first_row_ = nullptr;
  const int32_t* page_table_ = nullptr;
  int64_t table_width_ = 0, table_stride_ = 0, page_size_ = 0, window_ = 0;
  bool is_causal_ = true;
  const int32_t* last_seen_ = nullptr;
  const int32_t* first_seen_ = nullptr;
  int64_t num_heads_ = 0, heads_per_item_ = 1, num_partials_ = 0;
  int32_t most_tokens_ = 1, most_rows_ = 1;
};

}  // namespace eagre
