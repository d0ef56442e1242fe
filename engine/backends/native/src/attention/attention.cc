#include "attention/attention.h"

#include <algorithm>
#include <vector>

#include "attention/placement.h"
#include "attention/plan.h"
#include "attention/running_softmax.h"
#include "isa/isa.h"
#include "pages/key_block.h"
#include "runtime/scratch.h"
#include "vectors/elementary.h"
#include "vectors/hadamard.h"

namespace eagre {
namespace {

constexpr int kLanes = 16;

// One call's work, and the memory for it.
class Attention {
 public:
  Attention(Pool& pool, const StepRows& rows, const AttentionInput& in, const Pages& pages, float* output)
      : pool_(pool), rows_(rows), in_(in), pages_(pages), output_(output), group_(in.num_heads / pages.num_heads) {}

  void run() {
    place_tokens();
    plan().make(rows_, in_, pages_, pool_.num_threads());
    attend_items();
    merge_partials();
  }

 private:
  static constexpr size_t kTokensInline = 4;  // the caller itself places so few, and merges them

  struct Memory {  // kept from call to call; the caller holds the pool
    Scratch queries, states, partials, blocks;
    Plan plan;
  };
  static Memory& memory() {
    static Memory& kept = *new Memory;
    return kept;
  }
  static Plan& plan() { return memory().plan; }

  void place_tokens() {
    int64_t most = 0;
    for (const StepRow& row : rows_.rows()) most = std::max(most, int64_t{1} * row.first_token + row.num_tokens);
    const int64_t bytes = query_bytes(pages_);
    queries_ = {memory().queries.take<std::byte>((most * in_.num_heads + kLanes) * bytes), most, group_, bytes};
    if (rows_.tokens().size() <= kTokensInline) {
      for (const StepRow& row : rows_.rows())
        for (int32_t i = 0; i < row.num_tokens; ++i) place_token(in_, pages_, row, row.first_token + i, queries_);
      return;
    }
    pool_.run(static_cast<int64_t>(rows_.rows().size()), [&](int64_t index, int) {
      const StepRow& row = rows_.rows()[index];
      for (int32_t i = 0; i < row.num_tokens; ++i) place_token(in_, pages_, row, row.first_token + i, queries_);
    });
  }

  void attend_items() {
    const int64_t d = pages_.head_dim;
    prompt_state_size_ = state_floats(plan().most_tokens() * group_, d);
    row_state_size_ = state_floats(plan().most_rows() * group_, d);
    thread_states_size_ = 2 * std::max(prompt_state_size_, plan().heads_per_item() * row_state_size_);
    partial_size_ = state_floats(group_, d);
    states_ = memory().states.take<float>(pool_.num_threads() * thread_states_size_);
    partials_ = memory().partials.take<float>(std::max<int64_t>(1, plan().num_partials()) * partial_size_);
    block_size_ = block_words(pages_);
    blocks_ = memory().blocks.take<uint32_t>(pool_.num_threads() * block_size_);
    const std::vector<Item>& items = plan().items();
    pool_.run(static_cast<int64_t>(items.size()), [&](int64_t index, int thread) {
      const Item* next = index + 1 < static_cast<int64_t>(items.size()) ? &items[index + 1] : nullptr;
      const Item& item = items[index];
      item.num_rows > 1 ? attend_together(item, next, thread) : attend_item(item, next, thread);
    });
  }

  static int64_t first_block(const Item& item) { return item.first_key / kBlockKeys * kBlockKeys; }

  // How many keys of the block that begins at `first` an item goes through.
  static int keys_of_block(const Item& item, int64_t first) {
    return static_cast<int>(std::clamp<int64_t>(item.end_key - first, 0, kBlockKeys));
  }

  // From an item's first block on.
  Walk walk_of(const Item& item) const {
    return Walk(pages_, in_.page_table + item.row->row * in_.table_stride, in_.table_width, first_block(item));
  }

  // What a thread probably reads behind a block of an item's last head: another one may take the next item. `walk` stands
  // at the item's next block, which begins at `first`.
  Ahead behind_block(const Item& item, int64_t first, const Walk& walk, const Item* next) const {
    if (first < item.end_key || next == nullptr) return {walk, item.head, keys_of_block(item, first)};
    return {walk_of(*next), next->head, keys_of_block(*next, first_block(*next))};
  }

  // Each head of an item has two states in its thread's memory. The second is that of whole parts of kSplitKeys, or of rows
  // that attend together: their own parts never cross a split, so that they need none of the former.
  State state_in_memory(const Item& item, int64_t head, int thread, bool is_second, int64_t count) const {
    const int64_t size = item.num_tokens > 1 ? prompt_state_size_ : row_state_size_;
    return state_at(states_ + thread * thread_states_size_ + ((head - item.head) * 2 + (is_second ? 1 : 0)) * size, count);
  }

  // Of an item's head: the present part of kSplitKeys, or all parts before it where there are any.
  State state_of(const Item& item, int64_t head, int thread, bool is_behind_whole) const {
    const int64_t count = item.num_tokens * group_, partial = plan().partial_of(item, head);
    if (partial >= 0) return state_at(partials_ + partial * partial_size_, count);
    return state_in_memory(item, head, thread, is_behind_whole, count);
  }

  // Goes through the blocks of keys, and at each of them through the heads, whose keys lie side by side. `next` is what
  // follows, or null.
  void attend_item(const Item& item, const Item* next, int thread) {
    for (int64_t head = item.head; head < item.end_head; ++head) {
      clear(state_of(item, head, thread, false), item.num_tokens * group_, pages_.head_dim);
    }
    go_on(item, next, thread);
  }

  // Attends to the keys of an item, whose states have begun, and ends it.
  void go_on(const Item& item, const Item* next, int thread) {
    const int64_t d = pages_.head_dim, count = item.num_tokens * group_;
    const auto state = [&](int64_t head, bool is_behind_whole) { return state_of(item, head, thread, is_behind_whole); };
    bool has_whole = false;
    Walk walk = walk_of(item);
    Block block = block_at(blocks_ + thread * block_size_, pages_);
    for (int64_t first = first_block(item); first < item.end_key; first += kBlockKeys) {
      if (first % kSplitKeys == 0 && first > item.first_key) {
        for (int64_t head = item.head; head < item.end_head; ++head) {
          if (has_whole) merge(state(head, false), state(head, true), count, d);
          clear(state(head, true), count, d);
        }
        has_whole = true;
      }
      const int num_keys = keys_of_block(item, first);
      const int num_hidden = static_cast<int>(std::max<int64_t>(0, item.first_key - first));
      const Walk here = walk;
      for (int seen = 0; seen < num_keys;) seen += walk.next(num_keys - seen).count;
      for (int64_t head = item.head; head < item.end_head; ++head) {
        const bool is_last = head + 1 == item.end_head;
        const Ahead ahead = is_last ? behind_block(item, first + kBlockKeys, walk, next) : Ahead{here, head + 1, num_keys};
        Walk own = here;
        gather(own, pages_, head, num_hidden, num_keys, ahead, block);
        attend_block(item, head, first, block, state(head, has_whole));
      }
    }
    if (plan().partial_of(item, item.head) >= 0) return;
    for (int64_t head = item.head; head < item.end_head; ++head) {
      if (has_whole) merge(state(head, false), state(head, true), count, d);
      store_output(*item.row, item.first, item.num_tokens, head, state(head, false));
    }
  }

  // Rows that share pages attend to the keys in them together, so that these are loaded once for all, and then each row
  // goes on by itself. A row's sums are made in the same order as if it were alone.
  void attend_together(const Item& item, const Item* next, int thread) {
    const int64_t d = pages_.head_dim, count = item.num_rows * group_;
    const auto joint = [&](int64_t head) { return state_in_memory(item, head, thread, true, count); };
    for (int64_t head = item.head; head < item.end_head; ++head) clear(joint(head), count, d);
    Walk walk = walk_of(item);
    Block block = block_at(blocks_ + thread * block_size_, pages_);
    for (int64_t first = item.first_key; first < item.shared_key; first += kBlockKeys) {
      const Walk here = walk;
      for (int seen = 0; seen < kBlockKeys;) seen += walk.next(kBlockKeys - seen).count;
      for (int64_t head = item.head; head < item.end_head; ++head) {
        const bool is_last = head + 1 == item.end_head;
        const int num_next = is_last ? keys_of_block(plan().own_part(item, 0), first + kBlockKeys) : kBlockKeys;
        Walk own = here;
        gather(own, pages_, head, 0, kBlockKeys, {is_last ? walk : here, is_last ? item.head : head + 1, num_next}, block);
        attend_whole_block(queries_.at(head, item.row->first_token), count, block, joint(head));
      }
    }
    for (int32_t i = 0; i < item.num_rows; ++i) {
      const Item own = plan().own_part(item, i);
      for (int64_t head = item.head; head < item.end_head; ++head) {
        copy_rows(joint(head), i * group_, group_, d, state_of(own, head, thread, false));
      }
      const Item following = i + 1 < item.num_rows ? plan().own_part(item, i + 1) : item;
      go_on(own, i + 1 < item.num_rows ? &following : next, thread);
    }
  }

  // Query rows that see all keys of a block.
  void attend_whole_block(const std::byte* queries, int64_t count, const Block& block, State state) {
    int32_t hidden[kRowsAtOnce], visible[kRowsAtOnce];
    std::fill_n(hidden, kRowsAtOnce, 0);
    std::fill_n(visible, kRowsAtOnce, kBlockKeys);
    for (int64_t begin = 0; begin < count; begin += kRowsAtOnce) {
      const int rows = static_cast<int>(std::min<int64_t>(kRowsAtOnce, count - begin));
      attend_rows(pages_, block, in_.softcap, queries + begin * queries_.bytes_per_head, rows,
                  {kBlockKeys, hidden, visible, true}, state_from(state, begin, pages_.head_dim));
    }
  }

  void attend_block(const Item& item, int64_t key_head, int64_t first, const Block& block, State state) {
    const int64_t count = item.num_tokens * group_;
    const std::byte* const queries = queries_.at(key_head, item.row->first_token + item.first);
    for (int64_t begin = 0; begin < count; begin += kRowsAtOnce) {
      const int rows = static_cast<int>(std::min<int64_t>(kRowsAtOnce, count - begin));
      const int64_t first_position = item.row->start + item.first + begin / group_;
      const int64_t last_position = item.row->start + item.first + (begin + rows - 1) / group_;
      const int num_keys = num_visible(last_seen(item, (begin + rows - 1) / group_), first);
      // The first row sees what begins earliest, and the last one what ends latest.
      if (num_keys == 0 || num_hidden(first_position, first) == kBlockKeys) continue;
      int32_t hidden[kRowsAtOnce], visible[kRowsAtOnce];
      const bool is_whole =
          num_visible(last_seen(item, begin / group_), first) == kBlockKeys && num_hidden(last_position, first) == 0;
      for (int r = 0; r < rows && !is_whole; ++r) {
        const int64_t position = item.row->start + item.first + (begin + r) / group_;
        hidden[r] = num_hidden(position, first);
        visible[r] = num_visible(last_seen(item, (begin + r) / group_), first);
      }
      std::fill_n(hidden, is_whole ? rows : 0, 0);
      std::fill_n(visible, is_whole ? rows : 0, kBlockKeys);
      attend_rows(pages_, block, in_.softcap, queries + begin * queries_.bytes_per_head, rows,
                  {num_keys, hidden, visible, is_whole}, state_from(state, begin, pages_.head_dim));
    }
  }

  // The last position that one of an item's tokens sees.
  int64_t last_seen(const Item& item, int64_t token) const {
    const StepRow& row = *item.row;
    if (row.num_tokens > 1 && in_.last_seen != nullptr) return in_.last_seen[row.first_token + item.first + token];
    const int64_t position = row.start + item.first + token;
    return row.num_tokens > 1 && !in_.is_causal ? last_of_text(in_.window, position, row.end) : position;
  }

  // How many keys of a block that begins at `first` a query sees up to a position, were there no window.
  static int num_visible(int64_t last, int64_t first) {
    return static_cast<int>(std::clamp<int64_t>(last - first + 1, 0, kBlockKeys));
  }

  // How many of the block's first keys its window hides.
  int num_hidden(int64_t position, int64_t first) const {
    return static_cast<int>(std::clamp<int64_t>(first_visible(in_.window, position) - first, 0, kBlockKeys));
  }

  void merge_partials() {
    const std::vector<Split>& splits = plan().splits();
    const auto merge_row = [&](int64_t index, int) {
      const Split& split = splits[index];
      for (int64_t head = 0; head < pages_.num_heads; ++head) {
        const auto partial = [&](int64_t i) {
          return state_at(partials_ + (split.first_partial + i * pages_.num_heads + head) * partial_size_, group_);
        };
        for (int64_t i = 1; i < split.num_partials; ++i) merge(partial(0), partial(i), group_, pages_.head_dim);
        store_output(*split.row, 0, 1, head, partial(0));
      }
    };
    if (splits.size() <= kTokensInline) {
      for (size_t i = 0; i < splits.size(); ++i) merge_row(static_cast<int64_t>(i), 0);
    } else {
      pool_.run(static_cast<int64_t>(splits.size()), merge_row);
    }
  }

  void store_output(const StepRow& row, int64_t first, int64_t num_tokens, int64_t key_head, State state) const {
    const int64_t d = pages_.head_dim;
    for (int64_t r = 0; r < num_tokens * group_; ++r) {
      const int64_t token = row.first_token + first + r / group_, head = key_head * group_ + r % group_;
      float* to = output_ + (token * in_.num_heads + head) * d;
      Floats total = broadcast(sum(load(state.total + r * kLanes)));
      if (in_.sinks == nullptr) {
        for (int64_t i = 0; i < d; i += kLanes) store(to + i, div(load(state.mix + r * d + i), total));
      } else {
        const Floats sink = broadcast(in_.sinks[head] * kLog2E), best = broadcast(state.best[r]), most = max(sink, best);
        const Floats kept = exp2(sub(best, most));
        total = fma(total, kept, exp2(sub(sink, most)));
        for (int64_t i = 0; i < d; i += kLanes) store(to + i, div(mul(load(state.mix + r * d + i), kept), total));
      }
      if (is_transformed(pages_)) hadamard(to, d, to);  // the values in the pages are transformed
    }
  }

  Pool& pool_;
  const StepRows& rows_;
  const AttentionInput& in_;
  const Pages& pages_;
  float* output_;
  const int64_t group_;  // query heads that share a key head
  int64_t prompt_state_size_ = 0, row_state_size_ = 0, thread_states_size_ = 0, partial_size_ = 0, block_size_ = 0;
  Queries queries_{};
  float* states_ = nullptr;
  float* partials_ = nullptr;
  uint32_t* blocks_ = nullptr;
};

}  // namespace

void attend(Pool& pool, const StepRows& rows, const AttentionInput& input, const Pages& pages, float* output) {
  Attention(pool, rows, input, pages, output).run();
}

}  // namespace eagre
