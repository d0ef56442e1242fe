// What adapters add to the sums of a product: up(down(x)) for rows of activations, each with the pair of matrices of its
// adapter (Hu et al., "LoRA", 2021).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "layout/packed_rows.h"
#include "runtime/pool.h"
#include "runtime/scratch.h"

namespace eagre {

// The pairs of all slots, in one layer. Each matrix lies as a packed one of float32, bfloat16 or bytes does
// (layout/format.h), without scales of groups: `down` has tiles of 16 columns of all inputs, `up` tiles of 16 outputs of
// all of `rank`. The outputs are in parts, each with columns of `down` of its own. A tile of bytes begins with a scale for
// each of its 16, float32, and a number is scale * (byte - 128).
struct LowRank {
  Activations numbers;  // the type of the rows with which they are multiplied: of bytes int8, of others their own
  const std::byte* down;  // of the first slot
  const std::byte* up;
  int64_t down_stride, up_stride;  // bytes from slot to slot
  const int32_t* ranks;  // of each slot, at most `rank`; 0: its adapter does not change this product
  int64_t rank;          // a multiple of kTile
  int64_t num_inputs;
  const int64_t* ends;  // of each part, among the outputs, multiples of kTile
  int64_t num_parts;
};

// The adapter of a row; a slot below 0 is none.
struct RowAdapter {
  int32_t slot;
  float scale;
};

// The products with `down` of a step's rows, and on demand those with `up`, one tile of outputs at a time, so that they
// are added where the tile's sums are. Neighbouring rows of one adapter read its matrices together.
class AdapterSums {
 public:
  AdapterSums() = default;
  AdapterSums(const AdapterSums&) = delete;
  AdapterSums& operator=(const AdapterSums&) = delete;

  // x is packed as `numbers` too; adapters: of its rows. What it is given must last as long as it is used.
  void compute(Pool& pool, const PackedRows& x, const LowRank& pairs, const RowAdapter* adapters);

  // Adds what the adapters of rows make of the outputs of `count` neighbouring tiles to the totals
  // of each, [rows][kTile], which lie `between` floats from each other. `first_row` is a block's first. A row's
  // result is the same bit for bit whichever rows are beside it.
  void add(int64_t tile, int count, int first_row, int num_rows, float* totals, size_t between) const;

  // Asks for what such calls will read behind the tiles from `begin` to `end`, which are being multiplied.
  void prefetch(int64_t begin, int64_t end) const;

 private:
  // Neighbouring rows of a block with one adapter.
  struct Run {
    int32_t row, count, slot;
  };

  void find_runs(int num_rows, const RowAdapter* adapters);
  template <class Number>
  void compute_of(Pool& pool, const PackedRows& x, const RowAdapter* adapters);
  void compute_of_bytes(Pool& pool, const PackedRows& x, const RowAdapter* adapters);
  int64_t part_of(int64_t tile) const;
  // Of the tiles from `begin` to `end`, for now or for later.
  template <bool kIsNext>
  void prefetch_up(int32_t slot, int64_t begin, int64_t end) const;
  // The first of the part of outputs that a tile of `down` begins, as the tasks that add them begin with it.
  void prefetch_first(int32_t slot, int64_t tile) const;
  int64_t up_tile_bytes() const;
  // Calls body(run) for each of some rows, which begin with a block, and asks for what the next one reads of some tiles.
  template <class Body>
  void for_each_run(int64_t tile, int count, int first_row, int num_rows, const Body& body) const;
  template <class Number>
  void add_of(int64_t tile, int count, int first_row, int num_rows, float* totals, size_t between) const;
  void add_of_bytes(int64_t tile, int count, int first_row, int num_rows, float* totals, size_t between) const;

  LowRank pairs_{};
  std::vector<Run> runs_;
  std::vector<size_t> first_runs_;  // of each block of rows, and behind them how many runs there are
  std::vector<int32_t> slots_;      // of the runs, each once where its rows are neighbours
  const std::byte* inner_ = nullptr;  // [rows][parts][rank]
  // Of inner bytes, each 16 neighbours of a row's: a number is scale * byte, and what is to be added to sums for the 128.
  const float* inner_scales_ = nullptr;
  const int32_t* inner_zeros_ = nullptr;
  Scratch memory_, scales_memory_, zeros_memory_;
};

}  // namespace eagre
