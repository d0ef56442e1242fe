#include "attention/plan.h"

#include "pages/key_block.h"

namespace eagre {
namespace {

constexpr int32_t kMostTokens = 64, kLeastTokens = 16;  // of a prompt, in one item
constexpr int32_t kMostQueries = 64;                    // of rows that attend together, for each key head
constexpr int64_t kItemsPerThread = 4;

// How many tokens of a prompt an item has: the more, the fewer times its keys are gathered, but not so many that a
// short prompt leaves threads idle.
int32_t fair_number_of_tokens(const std::vector<StepRow>& rows, int64_t num_heads, int64_t num_items) {
  int64_t num_tokens = 0;
  for (const StepRow& row : rows) num_tokens += row.num_tokens > 1 ? row.num_tokens : 0;
  int32_t count = kMostTokens;
  while (count > kLeastTokens && num_tokens * num_heads < num_items * count) count /= 2;
  return count;
}

}  // namespace

void Plan::make(const StepRows& step, const AttentionInput& in, const Pages& pages, int num_threads) {
  const std::vector<StepRow>& rows = step.rows();
  items_.clear();
  splits_.clear();
  first_partials_.assign(rows.size(), -1);
  num_partials_ = 0;
  most_tokens_ = most_rows_ = 1;
  first_row_ = rows.data();
  page_table_ = in.page_table;
  table_width_ = in.table_width;
  table_stride_ = in.table_stride;
  page_size_ = pages.page_size;
  window_ = in.window;
  is_causal_ = in.is_causal;
  last_seen_ = in.last_seen;
  first_seen_ = in.first_seen;
  num_heads_ = pages.num_heads;
  const int64_t fair = kItemsPerThread * num_threads;
  // One item for all heads of a row keeps its thread in one place of memory. Where there are few rows, each head is an
  // item of its own.
  heads_per_item_ = static_cast<int64_t>(rows.size()) >= fair ? num_heads_ : 1;
  int64_t num_parts = 0;
  for (const StepRow& row : rows) {
    if (row.num_tokens > 1) continue;
    const int64_t parts = row.start / kSplitKeys - begin_of(row) / kSplitKeys + 1;
    num_parts += parts;
    if (parts == 1) continue;
    splits_.push_back({&row, num_partials_, parts});
    first_partials_[&row - first_row_] = num_partials_;
    num_partials_ += parts * num_heads_;
  }
  const int32_t tokens_per_item = fair_number_of_tokens(rows, num_heads_, fair);
  const int32_t most = std::min<int64_t>(kMostQueries / std::max<int64_t>(1, in.num_heads / num_heads_),
                                         num_parts * (num_heads_ / heads_per_item_) / fair);
  for (const StepRow *row = rows.data(), *end = row + rows.size(); row < end;) {
    if (row->num_tokens > 1) {
      add_prompt(*row++, tokens_per_item);
      continue;
    }
    const int32_t count = num_beginning_alike(row, std::clamp<int64_t>(most, 1, end - row));
    add_rows(row, count);
    row += count;
  }
}

void Plan::add_prompt(const StepRow& row, int32_t tokens_per_item) {
  for (int64_t head = 0; head < num_heads_; ++head) {
    for (int32_t first = 0; first < row.num_tokens; first += tokens_per_item) {
      const int32_t count = std::min(tokens_per_item, row.num_tokens - first);
      most_tokens_ = std::max(most_tokens_, count);
      const int64_t end = seen_end(row, first + count - 1);
      items_.push_back({&row, 1, head, head + 1, first, count, seen_begin(row, first), end, 0});
    }
  }
}

// The first key that one of the tokens of a prompt sees.
int64_t Plan::seen_begin(const StepRow& row, int32_t token) const {
  if (first_seen_ != nullptr) return first_seen_[row.first_token + token];
  return first_visible(window_, int64_t{row.start} + token);
}

// Behind the last key that one of the tokens of a prompt sees.
int64_t Plan::seen_end(const StepRow& row, int32_t token) const {
  if (last_seen_ != nullptr) return int64_t{last_seen_[row.first_token + token]} + 1;
  const int64_t position = int64_t{row.start} + token;
  return is_causal_ ? position + 1 : last_of_text(window_, position, row.end) + 1;
}

// Adds neighbouring rows of one token: part after part of their context, and in each those together that share pages.
void Plan::add_rows(const StepRow* rows, int32_t count) {
  int64_t most = 0;
  for (int32_t i = 0; i < count; ++i) most = std::max<int64_t>(most, rows[i].start + 1);
  for (int64_t begin = begin_of(*rows); begin < most;) {
    const int64_t end = (begin / kSplitKeys + 1) * kSplitKeys;
    for (int32_t i = 0; i < count;) {
      int32_t next = i + 1;
      int64_t shared = std::min<int64_t>(end, rows[i].start + 1);
      for (; next < count; ++next) {
        const int64_t with_next = shared_end(rows[i], rows[next], begin, shared);
        // A row joins where no fewer keys are then saved from being read again.
        const int64_t saved = (next - i - 1) * (shared - begin), saved_with_next = (next - i) * (with_next - begin);
        if (with_next - begin < kBlockKeys || saved_with_next < saved) break;
        shared = with_next;
      }
      const int32_t together = next - i;
      most_rows_ = std::max(most_rows_, together);
      if (rows[i].start >= begin) {
        const int64_t end_key = together > 1 ? end : std::min<int64_t>(end, rows[i].start + 1);
        for (int64_t head = 0; head < num_heads_; head += heads_per_item_) {
          items_.push_back({rows + i, together, head, head + heads_per_item_, 0, 1, begin, end_key, shared});
        }
      }
      i = next;
    }
    begin = end;
  }
}

Item Plan::own_part(const Item& item, int32_t index) const {
  Item own = item;
  own.row += index;
  own.num_rows = 1;
  own.first_key = item.shared_key;
  own.end_key = std::min<int64_t>(item.end_key, own.row->start + 1);
  return own;
}

// How many of some rows, the first ones, have tokens side by side and begin with the same block of keys.
int32_t Plan::num_beginning_alike(const StepRow* rows, int64_t count) const {
  int32_t alike = 1;
  if (window_ > 0) return alike;  // rows at different positions begin to see at different keys
  const auto is_alike = [&](const StepRow& row) {
    return row.num_tokens == 1 && row.first_token == rows->first_token + alike &&
           shared_end(*rows, row, 0, kBlockKeys) == kBlockKeys;
  };
  while (alike < count && is_alike(rows[alike])) ++alike;
  return alike;
}

// Up to where, from `begin` to `end` at most, two rows see the same keys in the same pages, rounded down to whole blocks.
int64_t Plan::shared_end(const StepRow& a, const StepRow& b, int64_t begin, int64_t end) const {
  const int64_t seen = std::min<int64_t>({end, int64_t{1} * a.start + 1, int64_t{1} * b.start + 1});
  const int32_t* const pages_of_a = page_table_ + a.row * table_stride_;
  const int32_t* const pages_of_b = page_table_ + b.row * table_stride_;
  int64_t page = begin / page_size_;
  while (page * page_size_ < seen && page < table_width_ && pages_of_a[page] == pages_of_b[page]) ++page;
  return std::min(seen, page * page_size_) / kBlockKeys * kBlockKeys;
}

}  // namespace eagre
