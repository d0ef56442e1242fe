// Rows of activations, made ready for products: normalised, quantised and interleaved.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "isa/isa.h"
#include "layout/format.h"
#include "layout/matrix.h"
#include "layout/rounding.h"
#include "runtime/pool.h"
#include "runtime/scratch.h"
#include "vectors/norms.h"

namespace eagre {

constexpr int kBlockRows = 16;  // rows that one pass over a tile of weights serves
constexpr int kMarkRows = 8;    // rows of which a byte says which have something
static_assert(kBlockRows % kMarkRows == 0);

// The rows of a block are padded to one of a few counts, for each of which there is a kernel. What the rows behind the last one
// hold is anything, and nobody reads their results.
constexpr int padded_rows(int rows) {
  return rows <= 1 ? rows : rows <= 12 ? (rows + 1) / 2 * 2 : kBlockRows;
}

// What is done to a row before it is multiplied.
struct RowSource {
  const float* values;   // [rows][num_inputs]
  const int32_t* index;  // [num_rows], which rows to take
  int num_rows;
  Norm norm;  // over the row
};

// Bytes of a group of 32 values of a row.
constexpr size_t group_bytes(Activations kind) {
  return kGroup * (kind == Activations::kFloat32 ? 4 : kind == Activations::kBfloat16 ? 2 : 1);
}

// Blocks of kBlockRows rows, each laid out as [group][row][...], so that what a kernel loads lies close together, once
// for each kind of activations that a matrix asks for. Each group of int8 values has a scale, and a few groups have an
// offset: a value is scale * int8 + offset.
class PackedRows {
 public:
  int num_rows() const { return num_rows_; }
  int num_groups() const { return num_groups_; }
  int num_blocks() const { return (num_rows_ + kBlockRows - 1) / kBlockRows; }
  int rows_of(int block) const {  // padded
    return padded_rows(std::min(kBlockRows, num_rows_ - block * kBlockRows));
  }

  const std::byte* values(Activations kind, int block) const {
    return values_[static_cast<int>(kind)] + first_group(block) * group_bytes(kind);
  }
  const float* scales(int block) const { return scales_ + first_group(block); }
  // The offsets of a group of the rows from kMarkRows * i on; 0 where there is none.
  const float* offsets(int group, int i) const {
    const int row = kMarkRows * i, block = row / kBlockRows;
    return offsets_ + first_group(block) + size_t{1} * group * rows_of(block) + row % kBlockRows;
  }
  // Which of the rows from kMarkRows * i on have an offset in a group, a bit each.
  uint8_t offset_marks(int group, int i) const { return offset_marks_[group * marks_stride_ + i]; }
  // The groups in which a row has an offset.
  const int32_t* offset_groups() const { return offset_groups_; }
  int num_offset_groups() const { return num_offset_groups_; }
  // What a row adds to its products of pairs, [group][row], where they are to be taken.
  const int32_t* pair_sums(int block) const { return pair_sums_ + first_group(block); }
  bool has_pair_sums() const { return pair_sums_ != nullptr; }
  // int32, or float32 of those that are scaled: [group][row], or [group][row][2] of halves.
  const int32_t* sums(Sums kind, int block) const {
    return sums_[static_cast<int>(kind)] + first_group(block) * (is_of_halves(kind) ? 2 : 1);
  }

  // The blocks from `begin` to `end`, in the same memory.
  PackedRows blocks(int begin, int end) const;

 protected:
  size_t first_group(int block) const { return size_t{1} * block * kBlockRows * num_groups_; }

  int num_rows_ = 0, num_groups_ = 0;
  std::byte* values_[kNumActivations] = {};  // null where nobody asks for them
  float* scales_ = nullptr;
  float* offsets_ = nullptr;
  uint8_t* offset_marks_ = nullptr;  // [group][marks_stride]
  int marks_stride_ = 0;
  int32_t* offset_groups_ = nullptr;
  int num_offset_groups_ = 0;
  int32_t* pair_sums_ = nullptr;
  int32_t* sums_[kNumSums] = {};
};

// Packs rows into memory of its own, which it keeps from call to call.
class RowPacker : public PackedRows {
 public:
  // So many rows are packed by one thread: rows of a block share lines of memory, which two threads should not write by
  // turns.
  static constexpr int kRowsAtOnce = kMarkRows;
  static constexpr int64_t kGroupsInline = 256;  // the caller packs so few itself: handing them out costs more

  RowPacker() = default;
  RowPacker(const RowPacker&) = delete;
  RowPacker& operator=(const RowPacker&) = delete;

  // `weights` says what will be asked for.
  void pack(Pool& pool, const RowSource& source, const Matrix& weights);

  // The same in parts, for whoever packs for several matrices at once: `begin`, each of num_tasks() tasks once, in any
  // threads below the number of them, and `end`.
  void begin(int num_threads, const RowSource& source, const Matrix& weights);
  int num_tasks() const { return (num_rows_ + kRowsAtOnce - 1) / kRowsAtOnce; }
  void pack_task(int64_t task, int thread);
  void end();

 private:
  // The lanes of a vector: the same group of each of some neighbouring rows of a block, and then another one, 16 in all.
  struct Lanes {
    int first_row;
    size_t first_place;  // of what is found for the first group of the first row
    int stride;          // from there to the next group's
    int groups[kTile];   // one for each group of the lanes

    size_t place(int i) const { return first_place + size_t{1} * groups[i] * static_cast<size_t>(stride); }
  };

  size_t floats_of_thread() const { return size_t{1} * kRowsAtOnce * num_groups_ * kGroup; }
  void pack_rows(int begin, int end, float* normed);
  void copy_row(const float* x, int row, Activations kind);
  template <int kRows>
  void quantise_rows(const float* const* rows, int first_row);
  // `trace` becomes NaN where a value is infinite or NaN.
  template <int kRows>
  void quantise_groups(const float* const* rows, const Lanes& lanes, Floats& trace);
  // Puts what was found, a lane for each group, at [group][row][per_group], at `part` of the last.
  template <int kRows, class Vector, class Number>
  void put(const Lanes& lanes, int per_group, int part, Vector x, Number* to);
  template <int kRows>
  void mark_offsets(const Lanes& lanes, uint32_t have_offsets);
  // `first` is the sum of a group's first half. The sums of finite rows are whole numbers below 2^24, which float32 holds.
  template <int kRows>
  void put_sums(const Lanes& lanes, Floats scale, Floats total, Floats first);
  void find_offset_groups();

  RowSource source_{};       // of the tasks
  float* normed_ = nullptr;  // [threads][kRowsAtOnce][inputs], where rows are normed
  bool halves_are_asked_for_ = false;
  Scratch values_memory_[kNumActivations], scales_memory_, sums_memory_[kNumSums], normed_memory_;
  Scratch offsets_memory_, offset_marks_memory_, offset_groups_memory_, pair_sums_memory_;
};

}  // namespace eagre
