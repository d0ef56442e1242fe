#include "attention/attention.h"

#include <algorithm>
#include <vector>

#include "attention/placement.h"
#include "attention/plan.h"
#include "attention/running_softmax.h"
#include "choice/token_index.h"
#include "isa/isa.h"
#include "pages/key_block.h"
#include "runtime/scratch.h"
#include "vectors/elementary.h"
#include "vectors/hadamard.h"

namespace eagre {
namespace {

constexpr int kLanes = 16;
constexpr int64_t kMostHeadsAtOnce = 4;
constexpr int64_t kMostBytesAtOnce = 32 << 10;  // of their keys in a block: what is on its way stays in the first cache

// One call's work, and the memory for it.
class Attention {
 public:
  Attention(Pool& pool, const StepRows& rows, const AttentionInput& in, const Pages& pages, float* output, PoolTurn* turn)
      : pool_(pool), rows_(rows), in_(in), pages_(pages), output_(output), turn_(turn),
        group_(in.num_heads / pages.num_heads), memory_(turn == nullptr ? shared_memory() : own_memory_) {}

  void run() {
    place_tokens();
    if (in_.index.queries != nullptr) {
      picks_ = pick_tokens(pool_, rows_, in_.index, in_.page_table, in_.table_width, in_.table_stride, pages_);
    }
    memory_.plan.make(rows_, in_, pages_, pool_.num_threads());
    attend_items();
    merge_partials();
  }

 private:
  static constexpr size_t kTokensInline = 4;  // the caller itself places so few, and merges them

  struct Stretch {  // tokens of a row that one thread places
    const StepRow* row;
    int32_t first, end;
  };

  struct Memory {
    Scratch queries, states, partials, blocks;
    Plan plan;
    std::vector<Stretch> stretches;
  };
  static Memory& shared_memory() {  // kept from call to call; the caller holds the pool, unless it pauses
    static Memory& kept = *new Memory;
    return kept;
  }
  const Plan& plan() const { return memory_.plan; }

  void place_tokens() {
    int64_t most = 0;
    for (const StepRow& row : rows_.rows()) most = std::max(most, int64_t{1} * row.first_token + row.num_tokens);
    const int64_t bytes = query_bytes(pages_);
    queries_ = {memory_.queries.take<std::byte>((most * in_.num_heads + kLanes) * bytes), most, group_, bytes};
    if (rows_.tokens().size() <= kTokensInline) {
      for (const StepRow& row : rows_.rows())
        for (int32_t i = 0; i < row.num_tokens; ++i) place_token(in_, pages_, row, row.first_token + i, queries_);
      return;
    }
    std::vector<Stretch>& stretches = memory_.stretches;
    stretches.clear();
    for (const StepRow& row : rows_.rows()) {
      for (int32_t first = 0; first < row.num_tokens; first += kBlockKeys) {
        stretches.push_back({&row, first, std::min<int32_t>(row.num_tokens, first + kBlockKeys)});
      }
    }
    pool_.run(static_cast<int64_t>(stretches.size()), [&](int64_t index, int) {
      const auto [row, first, end] = stretches[index];
      // What the row that probably follows in this thread writes to is then on its way. (A prompt writes side by side.)
      if (const size_t next = index + 1; next < stretches.size() && stretches[next].row->num_tokens == 1) {
        prefetch_place(in_, pages_, *stretches[next].row);
      }
      eagre::place_tokens(in_, pages_, *row, first, end, queries_);
    });
  }

  void attend_items() {
    const int64_t d = pages_.head_dim;
    prompt_state_size_ = state_floats(plan().most_tokens() * group_, d);
    joint_state_size_ = state_floats(plan().most_rows() * group_, d);
    row_state_size_ = state_floats(plan().heads_per_item() * group_, d);
    thread_states_size_ = std::max(2 * prompt_state_size_, 2 * row_state_size_ + plan().heads_per_item() * joint_state_size_);
    partial_size_ = state_floats(group_, d);
    states_ = memory_.states.take<float>(pool_.num_threads() * thread_states_size_);
    partials_ = memory_.partials.take<float>(std::max<int64_t>(1, plan().num_partials()) * partial_size_);
    heads_at_once_ = num_heads_at_once();
    block_size_ = block_words(pages_);
    blocks_ = memory_.blocks.take<uint32_t>(pool_.num_threads() * heads_at_once_ * block_size_);
    const std::vector<Item>& items = plan().items();
    const int64_t num_items = static_cast<int64_t>(items.size());
    for (int64_t first = 0, end; first < num_items; first = end) {
      if (first > 0) turn_->pause();
      end = turn_ == nullptr ? num_items : end_of_some(items, first);
      pool_.run(end - first, [&](int64_t index, int thread) {
        const Item& item = items[first + index];
        const Item* next = first + index + 1 < num_items ? &item + 1 : nullptr;
        item.num_rows > 1 ? attend_together(item, next, thread) : attend_item(item, next, thread);
      });
    }
  }

  // Behind so many items, from the first on, as a call computes before it pauses.
  int64_t end_of_some(const std::vector<Item>& items, int64_t first) const {
    int64_t end = first;
    for (int64_t work = 0; end < static_cast<int64_t>(items.size()) && work < kWorkBeforePause; ++end) {
      const Item& item = items[end];
      work += 2 * item.num_tokens * group_ * (item.end_key - item.first_key) * pages_.head_dim;
    }
    return end;
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

  // What a thread probably reads behind a block of an item's head: another one may take the next item. `walk` stands
  // at the item's next block, which begins at `first`.
  Ahead behind_block(const Item& item, int64_t head, int64_t first, const Walk& walk, const Item* next) const {
    if (first < item.end_key || next == nullptr) return {walk, head, keys_of_block(item, first)};
    const int64_t its = next->head + (head - item.head);
    return {walk_of(*next), its, its < next->end_head ? keys_of_block(*next, first_block(*next)) : 0};
  }

  // Heads of a row of one token that attend to their blocks together: what lies between the two products is then waited for
  // once, and not once for each of them. It needs requests for all that comes next, from the short last block of a row as
  // well.
  int64_t num_heads_at_once() const {
    if (!is_multiplied_as_stored(pages_) || !asks_near(pages_)) return 1;
    const int64_t key_bytes = kBlockKeys * vector_words(pages_) * static_cast<int64_t>(sizeof(uint32_t));
    const int64_t most = std::min({plan().heads_per_item(), kMostHeadsAtOnce, kMostBytesAtOnce / key_bytes, kLanes / group_});
    return std::max<int64_t>(1, most);
  }

  // One of `num_beside` blocks of a thread. Products of many rows and of int8 are slow enough without waiting.
  Block block_of(int thread, int64_t index, int64_t num_beside, bool are_few_rows) const {
    uint32_t* const memory = blocks_ + (thread * heads_at_once_ + index) * block_size_;
    return block_at(memory, pages_, num_beside, are_few_rows && pages_.type != PageType::kInt8);
  }

  // Query rows of an item: those of its heads lie one behind the other.
  int64_t rows_of_head(const Item& item) const { return item.num_tokens * group_; }
  int64_t rows_of(const Item& item) const { return (item.end_head - item.head) * rows_of_head(item); }
  State of_head(const Item& item, State state, int64_t head) const {
    return state_from(state, (head - item.head) * rows_of_head(item), pages_.head_dim);
  }

  // Of an item: the present part of kSplitKeys, or all parts before it where there are any. The latter are the second state
  // in the memory of the thread.
  State state_of(const Item& item, int thread, bool is_behind_whole) const {
    const int64_t partial = plan().partial_of(item, item.head);
    if (partial >= 0) return state_at(partials_ + partial * partial_size_, rows_of(item));
    const int64_t size = item.num_tokens > 1 ? prompt_state_size_ : row_state_size_;
    return state_at(states_ + thread * thread_states_size_ + (is_behind_whole ? size : 0), rows_of(item));
  }

  // Of a head of rows that attend together.
  State joint_state_of(const Item& item, int64_t head, int thread) const {
    float* const states = states_ + thread * thread_states_size_ + 2 * row_state_size_;
    return state_at(states + (head - item.head) * joint_state_size_, item.num_rows * group_);
  }

  // Goes through the blocks of keys, and at each of them through the heads, whose keys lie side by side. `next` is what
  // follows, or null.
  void attend_item(const Item& item, const Item* next, int thread) {
    clear(state_of(item, thread, false), rows_of(item), pages_.head_dim);
    go_on(item, next, thread);
  }

  // Attends to the keys of an item, whose state has begun, and ends it.
  void go_on(const Item& item, const Item* next, int thread) {
    const int64_t d = pages_.head_dim, at_once = item.num_tokens > 1 ? 1 : heads_at_once_;
    const State begun = state_of(item, thread, false), behind_whole = state_of(item, thread, true);
    bool has_whole = false;
    Walk walk = walk_of(item);
    Block blocks[kMostHeadsAtOnce];
    for (int64_t i = 0; i < at_once; ++i) blocks[i] = block_of(thread, i, at_once, item.num_tokens == 1);
    for (int64_t first = first_block(item); first < item.end_key; first += kBlockKeys) {
      if (first % kSplitKeys == 0 && first > item.first_key) {
        if (has_whole) merge(begun, behind_whole, rows_of(item), d);
        clear(behind_whole, rows_of(item), d);
        has_whole = true;
      }
      const int num_keys = keys_of_block(item, first);
      const int num_hidden = static_cast<int>(std::max<int64_t>(0, item.first_key - first));
      const Walk here = walk;
      for (int seen = 0; seen < num_keys;) seen += walk.next(num_keys - seen).count;
      for (int64_t head = item.head; head < item.end_head; head += at_once) {
        const int64_t end = std::min(head + at_once, item.end_head);
        for (int64_t own = head; own < end; ++own) {
          const bool is_last = own + at_once >= item.end_head;
          const int64_t its = item.head + (own - item.head) % at_once;
          const Ahead ahead = is_last ? behind_block(item, its, first + kBlockKeys, walk, next)
                                      : Ahead{here, own + at_once, num_keys};
          Walk from = here;
          gather(from, pages_, own, num_hidden, num_keys, ahead, blocks[own - head]);
        }
        const State state = of_head(item, has_whole ? behind_whole : begun, head);
        if (item.num_tokens > 1 || end - head == 1) {
          attend_block(item, head, first, blocks[0], state);
        } else {
          attend_heads(item, head, static_cast<int>(end - head), first, blocks, state);
        }
      }
    }
    if (plan().partial_of(item, item.head) >= 0) return;
    if (has_whole) merge(begun, behind_whole, rows_of(item), d);
    for (int64_t head = item.head; head < item.end_head; ++head) {
      store_output(*item.row, item.first, item.num_tokens, head, of_head(item, begun, head));
    }
  }

  // Rows that share pages attend to the keys in them together, so that these are loaded once for all, and then each row
  // goes on by itself. A row's sums are made in the same order as if it were alone.
  void attend_together(const Item& item, const Item* next, int thread) {
    const int64_t d = pages_.head_dim, count = item.num_rows * group_;
    const auto joint = [&](int64_t head) { return joint_state_of(item, head, thread); };
    for (int64_t head = item.head; head < item.end_head; ++head) clear(joint(head), count, d);
    Walk walk = walk_of(item);
    Block block = block_of(thread, 0, 1, false);
    for (int64_t first = item.first_key; first < item.shared_key; first += kBlockKeys) {
      const Walk here = walk;
      for (int seen = 0; seen < kBlockKeys;) seen += walk.next(kBlockKeys - seen).count;
      for (int64_t head = item.head; head < item.end_head; ++head) {
        const bool is_last = head + 1 == item.end_head;
        const int num_next = is_last ? keys_of_block(plan().own_part(item, 0), first + kBlockKeys) : kBlockKeys;
        Walk own = here;
        gather(own, pages_, head, 0, kBlockKeys, {is_last ? walk : here, is_last ? item.head : head + 1, num_next}, block);
        attend_whole_block(item, head, first, block, joint(head));
      }
    }
    for (int32_t i = 0; i < item.num_rows; ++i) {
      const Item own = plan().own_part(item, i);
      const State begun = state_of(own, thread, false);
      for (int64_t head = item.head; head < item.end_head; ++head) {
        copy_rows(joint(head), i * group_, group_, d, of_head(own, begun, head));
      }
      const Item following = i + 1 < item.num_rows ? plan().own_part(item, i + 1) : item;
      go_on(own, i + 1 < item.num_rows ? &following : next, thread);
    }
  }

  // What attend_rows needs of the biases of up to kRowsAtOnce query rows.
  struct Biases {
    float slopes[kRowsAtOnce], positions[kRowsAtOnce];
  };

  // The biases of query rows of neighbouring heads, from `head` on, of an item of one token.
  PlaceBiases biases_of_heads(const Item& item, int64_t head, int num_rows, int64_t first, Biases& made) const {
    for (int begin = 0; begin < num_rows && in_.distance_slopes != nullptr; begin += static_cast<int>(group_)) {
      Biases own;
      biases_of(item, head + begin / group_, 0, static_cast<int>(group_), first, own);
      std::copy_n(own.slopes, group_, made.slopes + begin);
      std::copy_n(own.positions, group_, made.positions + begin);
    }
    return biases_made(first, made);
  }

  PlaceBiases biases_made(int64_t first, const Biases& made) const {
    if (in_.distance_slopes == nullptr) return {};
    return {made.slopes, made.positions, static_cast<float>(first), in_.rounded_bias_scale * kLog2E};
  }

  // The biases of query rows from `begin` on of an item's head, at the block of keys that begins at `first`.
  PlaceBiases biases_of(const Item& item, int64_t key_head, int64_t begin, int num_rows, int64_t first, Biases& made) const {
    if (in_.distance_slopes == nullptr) return {};
    const float unit = in_.rounded_bias_scale != 0.0f ? 1.0f : kLog2E;
    for (int r = 0; r < num_rows; ++r) {
      const int64_t token = (begin + r) / group_;
      made.slopes[r] = in_.distance_slopes[key_head * group_ + (begin + r) % group_] * unit;
      // Of several rows each has one token.
      made.positions[r] = static_cast<float>(item.num_rows > 1 ? int64_t{item.row[token].start}
                                                               : item.row->start + item.first + token);
    }
    return biases_made(first, made);
  }

  // The bits of the keys that query rows from `begin` on of an item see of the block that begins at `first`; null: all.
  const uint64_t* picked_of(const Item& item, int64_t begin, int num_rows, int64_t first, uint64_t* bits) const {
    if (picks_.words == nullptr) return nullptr;
    for (int r = 0; r < num_rows; ++r) {
      const int64_t token = (begin + r) / group_;
      // Of several rows each has one token, side by side.
      bits[r] = picks_.of_block(item.row->first_token + item.first + token, first);
    }
    return bits;
  }

  // Several rows of a step, which see all keys of a block.
  void attend_whole_block(const Item& item, int64_t key_head, int64_t first, const Block& block, State state) {
    const int64_t count = item.num_rows * group_;
    const std::byte* const queries = queries_.at(key_head, item.row->first_token);
    Biases biases;
    uint64_t picked[kRowsAtOnce];
    int32_t hidden[kRowsAtOnce], visible[kRowsAtOnce];
    std::fill_n(hidden, kRowsAtOnce, 0);
    std::fill_n(visible, kRowsAtOnce, kBlockKeys);
    for (int64_t begin = 0; begin < count; begin += kRowsAtOnce) {
      const int rows = static_cast<int>(std::min<int64_t>(kRowsAtOnce, count - begin));
      const HeadQueries own{&block, queries + begin * queries_.bytes_per_head};
      attend_rows(pages_, &own, 1, in_.softcap, rows,
                  {kBlockKeys, hidden, visible, true, picked_of(item, begin, rows, first, picked)},
                  biases_of(item, key_head, begin, rows, first, biases), state_from(state, begin, pages_.head_dim));
    }
  }

  void attend_block(const Item& item, int64_t key_head, int64_t first, const Block& block, State state) {
    const int64_t count = item.num_tokens * group_;
    const std::byte* const queries = queries_.at(key_head, item.row->first_token + item.first);
    Biases biases;
    uint64_t picked[kRowsAtOnce];
    for (int64_t begin = 0; begin < count; begin += kRowsAtOnce) {
      const int rows = static_cast<int>(std::min<int64_t>(kRowsAtOnce, count - begin));
      const int64_t first_token = begin / group_, last_token = (begin + rows - 1) / group_;
      const int num_keys = num_visible(last_seen(item, last_token), first);
      // The first row sees what begins earliest, and the last one what ends latest.
      if (num_keys == 0 || num_hidden(item, first_token, first) == kBlockKeys) continue;
      int32_t hidden[kRowsAtOnce], visible[kRowsAtOnce];
      const bool is_whole =
          num_visible(last_seen(item, first_token), first) == kBlockKeys && num_hidden(item, last_token, first) == 0;
      for (int r = 0; r < rows && !is_whole; ++r) {
        hidden[r] = num_hidden(item, (begin + r) / group_, first);
        visible[r] = num_visible(last_seen(item, (begin + r) / group_), first);
      }
      std::fill_n(hidden, is_whole ? rows : 0, 0);
      std::fill_n(visible, is_whole ? rows : 0, kBlockKeys);
      const HeadQueries own{&block, queries + begin * queries_.bytes_per_head};
      attend_rows(pages_, &own, 1, in_.softcap, rows,
                  {num_keys, hidden, visible, is_whole, picked_of(item, begin, rows, first, picked)},
                  biases_of(item, key_head, begin, rows, first, biases), state_from(state, begin, pages_.head_dim));
    }
  }

  // Some heads of an item of one token, each at its block.
  void attend_heads(const Item& item, int64_t head, int num_heads, int64_t first, const Block* blocks, State state) {
    const int num_keys = num_visible(last_seen(item, 0), first), num_hidden_keys = num_hidden(item, 0, first);
    if (num_keys == 0 || num_hidden_keys == kBlockKeys) return;
    const int rows = static_cast<int>(num_heads * group_);
    HeadQueries heads[kMostHeadsAtOnce];
    for (int i = 0; i < num_heads; ++i) heads[i] = {blocks + i, queries_.at(head + i, item.row->first_token + item.first)};
    int32_t hidden[kRowsAtOnce], visible[kRowsAtOnce];
    std::fill_n(hidden, rows, num_hidden_keys);
    std::fill_n(visible, rows, num_keys);
    Biases biases;
    uint64_t picked[kRowsAtOnce];
    const uint64_t* const bits = picked_of(item, 0, 1, first, picked);
    if (bits != nullptr) std::fill_n(picked, rows, *bits);
    const bool is_whole = num_keys == kBlockKeys && num_hidden_keys == 0;
    attend_rows(pages_, heads, num_heads, in_.softcap, static_cast<int>(group_), {num_keys, hidden, visible, is_whole, bits},
                biases_of_heads(item, head, rows, first, biases), state);
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

  // How many of the first keys of a block that begins at `first` one of an item's tokens does not see.
  int num_hidden(const Item& item, int64_t token, int64_t first) const {
    const StepRow& row = *item.row;
    const bool is_given = row.num_tokens > 1 && in_.first_seen != nullptr;
    const int64_t begin = is_given ? in_.first_seen[row.first_token + item.first + token]
                                   : first_visible(in_.window, row.start + item.first + token);
    return static_cast<int>(std::clamp<int64_t>(begin - first, 0, kBlockKeys));
  }

  void merge_partials() {
    const std::vector<Split>& splits = plan().splits();
    const int64_t num_heads = plan().heads_per_item(), count = num_heads * group_, d = pages_.head_dim;
    const auto merge_row = [&](int64_t index, int) {
      const Split& split = splits[index];
      for (int64_t first = 0; first < pages_.num_heads; first += num_heads) {
        const auto partial = [&](int64_t i) {
          return state_at(partials_ + (split.first_partial + i * pages_.num_heads + first) * partial_size_, count);
        };
        for (int64_t i = 1; i < split.num_partials; ++i) merge(partial(0), partial(i), count, d);
        for (int64_t head = 0; head < num_heads; ++head) {
          store_output(*split.row, 0, 1, first + head, state_from(partial(0), head * group_, d));
        }
      }
    };
    if (splits.size() <= kTokensInline) {
      for (size_t i = 0; i < splits.size(); ++i) merge_row(static_cast<int64_t>(i), 0);
    } else {
      pool_.run(static_cast<int64_t>(splits.size()), merge_row);
    }
  }

  void store_output(const StepRow& row, int64_t first, int64_t num_tokens, int64_t key_head, State state) const {
    const int64_t d = pages_.head_dim, own = in_.head_dim, whole = own / kLanes * kLanes;
    for (int64_t r = 0; r < num_tokens * group_; ++r) {
      const int64_t token = row.first_token + first + r / group_, head = key_head * group_ + r % group_;
      float* to = output_ + (token * in_.num_heads + head) * own;
      Floats total = broadcast(sum(load(state.total + r * kLanes)));
      if (in_.sinks == nullptr) {
        for (int64_t i = 0; i < whole; i += kLanes) store(to + i, div(load(state.mix + r * d + i), total));
        if (whole < own) {
          alignas(64) float rest[kLanes];
          store(rest, div(load(state.mix + r * d + whole), total));
          std::copy_n(rest, own - whole, to + whole);
        }
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
  PoolTurn* const turn_;  // of a call that pauses, or null
  const int64_t group_;   // query heads that share a key head
  Memory own_memory_;     // of a call that pauses
  Memory& memory_;
  int64_t prompt_state_size_ = 0, row_state_size_ = 0, joint_state_size_ = 0, thread_states_size_ = 0, partial_size_ = 0;
  int64_t block_size_ = 0, heads_at_once_ = 1;
  Queries queries_{};
  Picks picks_{};
  float* states_ = nullptr;
  float* partials_ = nullptr;
  uint32_t* blocks_ = nullptr;
};

}  // namespace

void attend(Pool& pool, const StepRows& rows, const AttentionInput& input, const Pages& pages, float* output,
            PoolTurn* turn) {
  Attention(pool, rows, input, pages, output, turn).run();
}

}  // namespace eagre
