// Keys and values of some neighbouring tokens, gathered from their pages for the vector unit.
#pragma once

#include <algorithm>
#include <cstdint>

#include "isa/attention_isa.h"
#include "pages/pages.h"
#include "runtime/prefetch.h"

namespace eagre {

constexpr int kBlockKeys = 64;  // of a block; blocks begin at multiples of it
constexpr int kHalfKeys = kBlockKeys / 2;
constexpr int kKeyVectors = kBlockKeys / 16;

// What is multiplied in the products of queries and keys, and of weights and values.
enum class Factors {
  kFloats,        // float32: of pages of float32, and of bfloat16 that has been widened block by block
  kPairs,         // pairs of bfloat16, where the pages are of 16 bits and the processor is faster at that: AMD's do as many
                  // pairs in a cycle as float32, Intel's a quarter as many; in a matrix unit also of pages of 8 bits
  kWidenedPairs,  // queries and weights of float32 and pairs of bfloat16, which become float32 as they are loaded
  kBytes,         // queries of int8, weights of bytes without a sign, and words of four bytes: of pages of int8
  kInt16Pairs,    // queries, weights and pairs that are integers of 16 bits: of pages of int16
};

// Whether sums are of integers, and exact.
inline bool is_of_integers(Factors factors) { return factors == Factors::kBytes || factors == Factors::kInt16Pairs; }

Factors factors_of(const Pages& pages);

// Whether products load what is in the pages where it lies.
bool is_multiplied_as_stored(const Pages& pages);

// The type of pages of 16 bits that these kernels multiply fastest.
PageType fastest_type();

// Bytes of a query: its features as float32 or bfloat16, or as integers with their scale, a float32, behind them. Behind the
// scale of int8 is an int32, what their products with bytes whose zero is kByteZero are too much by, negated.
int64_t query_bytes(const Pages& pages);

inline int64_t bytes_of_int16_query(int64_t head_dim) { return head_dim * 2 + 4; }
inline int64_t bytes_of_byte_query(int64_t head_dim) { return head_dim * kByteParts + 8; }

constexpr int kByteZero = 128;  // of keys that are bytes without a sign

// A block of keys and values, laid out for the vector unit, in two halves. A word holds a float32, two numbers of 16 bits
// or four bytes, which of keys have no sign, and their zero is kByteZero.
struct Block {
  const uint32_t* keys[2];    // [head_dim in words][kHalfKeys]
  const uint32_t* values[2];  // [kHalfKeys in words][head_dim]
  uint32_t* memory;  // room for both halves' keys, then for their values
  uint32_t* staged;  // as much as both halves' keys, for what is stored in another type or order
  float key_scales[kBlockKeys];  // of pages of integers
  float value_scales[kBlockKeys];
  float value_logs[kBlockKeys];      // of kBytes, powers of two that are the values' scales, or no number where these are none
  float value_inverses[kBlockKeys];  // 2 to the power of those, negated, or 0
  // At the pages of the next block; products ask for them. With `is_near` the product with the keys asks for the values of this
  // block, and the one with values for the next one's keys, so that the first cache has room for what is on its way; and where
  // that is too near, each for the same of the next block.
  mutable Prefetch prefetch, prefetch_beside_values;
  int64_t num_beside;  // blocks, with this one, whose products with the keys all come before those with values
  bool is_near;

  Prefetch& behind_keys() const { return prefetch; }
  Prefetch& behind_values() const { return is_near ? prefetch_beside_values : prefetch; }
};

// The keys of a block's vector of 16: words are kHalfKeys words apart.
inline const uint32_t* keys_of(const Block& block, int vector) { return block.keys[vector / 2] + vector % 2 * 16; }

// The values of a block's half.
inline const uint32_t* values_of(const Block& block, int half) { return block.values[half]; }

// How many tokens of a half that has `count` are multiplied in its products with weights, which are 0 behind the count.
int tokens_multiplied(const Pages& pages, int count);

// Words of 4 bytes that a head's vector takes as products load it.
int64_t vector_words(const Pages& pages);

// Words of memory that `block_at` needs.
int64_t block_words(const Pages& pages);

// Whether what products need next is asked for in the first cache.
bool asks_near(const Pages& pages);

// A block in memory of that size. num_beside: see Block; waits: whether products wait between their requests, see
// `prefetch_beside`.
Block block_at(uint32_t* memory, const Pages& pages, int64_t num_beside, bool waits);

// Neighbouring tokens of a context that lie in one page.
struct Run {
  int64_t key, value;  // vectors of the first token, of the first head
  int count;
};

// Walks a row's context, page by page.
class Walk {
 public:
  // table: int32[width], the row's pages; position: of the token to start at.
  Walk(const Pages& pages, const int32_t* table, int64_t width, int64_t position)
      : pages_(&pages),
        table_(table),
        width_(width),
        index_(position / pages.page_size),
        offset_(position % pages.page_size) {}

  Run next(int most) {
    const int64_t stored = index_ < width_ ? table_[index_] : 0;
    const int64_t page = stored >= 0 && stored < pages_->num_pages ? stored : 0;  // even of a wrong table
    const Run run{vector_index(*pages_, page, 0, 0, offset_),
                  vector_index(*pages_, page, pages_->num_parts - 1, 0, offset_),
                  static_cast<int>(std::min<int64_t>(most, pages_->page_size - offset_))};
    offset_ += run.count;
    if (offset_ == pages_->page_size) {
      offset_ = 0;
      ++index_;
    }
    return run;
  }

 private:
  const Pages* pages_;
  const int32_t* table_;
  int64_t width_, index_, offset_;
};

// Keys and values of one head that will be read next.
struct Ahead {
  Walk walk;
  int64_t head;
  int count;  // tokens, 0 for none
};

// Gathers the keys and values of `count` tokens from where `walk` stands, and moves it on. The values of the rest of a half
// are set to zero, and so are those of the first `num_hidden` tokens, which a window hides from all queries: another request
// may have left NaN there, and zero times NaN is NaN. Of integers only their scales are: they are always numbers.
void gather(Walk& walk, const Pages& pages, int64_t head, int num_hidden, int count, Ahead ahead, Block& block);

}  // namespace eagre
