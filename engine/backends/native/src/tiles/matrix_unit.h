// Tiles of integers and many rows, on the matrix unit.
//
// A group of a tile, as bytes, is what a tile register holds as the right matrix: 8 rows of 64 bytes; and so is a group of
// a block of rows as the left one: 16 rows of 32 bytes. Their products are exact integers, and behind them come the same
// floating point operations in the same order as without the matrix unit, so the results are the same bit for bit.
#pragma once

#include "isa/tile_registers.h"

#if EAGRE_HAS_TILE_REGISTERS

#include <algorithm>
#include <type_traits>

#include "tiles/accumulate.h"
#include "tiles/tile_kernel.h"

namespace eagre {

constexpr int kLeastRowsOfMatrixUnit = 5;  // fewer take vector instructions, which are faster then

// Of formats with one scale for a group. Those with two would need two products of half the depth and twice as many sums
// in memory, which vector instructions do as fast.
constexpr bool has_unit_kernel(Format format) { return is_integer(format) && layout_of(format).parts == 1; }

// Shapes of the registers of two groups in work: sums, rows and weights. The unit takes as long as a block has rows, so
// that a block alone has no more than it needs. Blocks beside others share one shape, because changing it takes longer.
template <int kRows>
inline constexpr TileShapes kUnitShapes({{kRows, 64}, {kRows, 64}, {kRows, kGroup}, {kRows, kGroup}, {8, 64}, {8, 64}});

// The emulation is not inlined into its seven callers: with sanitisers it would take minutes to compile.
#if EAGRE_TILE_INSTRUCTIONS
#define EAGRE_UNIT_STEP [[gnu::always_inline]] inline
#else
#define EAGRE_UNIT_STEP [[gnu::noinline]]
#endif

// The sums of the groups of a tile with up to kRows rows. Registers of two groups are in work at a time: while the unit
// multiplies one group, the sums of another are on their way to memory, and those of a third are scaled and added up.
// Adding up a group is cut into quarters, and the tile instructions stand between them: if all of one kind came first, the
// processor would have no room to overlap it with the other.
template <bool kHasMinima, bool kUnsigned, int kRows, int kShapeRows>
class UnitSums {
 public:
  // `stride` is the number of rows of the block, padded. A block of fewer than kShapeRows is multiplied as if it had so
  // many, and one of fewer than kRows is added up as if it had kRows: what lies behind it is in the same memory, and
  // results that belong to no row are read by nobody.
  UnitSums(const UnpackedGroup* groups, const RowGroups& rows, int stride)
      : first_{groups, rows.values, rows.scales, rows.sums}, stride_(static_cast<size_t>(stride)) {}

  // There is at least one group. `ahead` is what is read next from the weights, `ahead_bytes` for each group: it is fetched
  // while the unit works.
  void add_to(float* totals, int num_groups, const std::byte* ahead, size_t ahead_bytes) {
    configure_tiles(kUnitShapes<kShapeRows>);
    // GCC 12 keeps `total` in memory unless all loops over it are unrolled, which costs as many loads and stores again.
    Floats total[kRows];
    EAGRE_UNROLL(16)
    for (int r = 0; r < kRows; ++r) total[r] = load(totals + r * kTile);
    const size_t stride = stride_;  // a copy, which the compiler need not read again after each store
    Place at = first_;
    multiply<0>(at);
    if (num_groups > 1) multiply<1>(at.behind(1, stride));
    tile_store<0>(dots_[0], 64);
    int left = num_groups;
    for (; left > 3; left -= 2, ahead += 2 * ahead_bytes) {
      for (size_t line = 0; line < 2 * ahead_bytes; line += 64) prefetch_later(ahead + line);
      at = step<0, true, true>(at, stride, total);
      at = step<1, true, true>(at, stride, total);
    }
    for (size_t line = 0; line < static_cast<size_t>(left) * ahead_bytes; line += 64) prefetch_later(ahead + line);
    if (left == 3) {
      at = step<0, true, true>(at, stride, total);
      at = step<1, true, false>(at, stride, total);
      step<0, false, false>(at, stride, total);
    } else if (left == 2) {
      at = step<0, true, false>(at, stride, total);
      step<1, false, false>(at, stride, total);
    } else {
      step<0, false, false>(at, stride, total);
    }
    EAGRE_UNROLL(16)
    for (int r = 0; r < kRows; ++r) store(totals + r * kTile, total[r]);
  }

 private:
  // A group, and its rows.
  struct Place {
    const UnpackedGroup* group;
    const int8_t* values;
    const float* scales;
    const int32_t* sums;

    [[gnu::always_inline]] Place behind(size_t count, size_t stride) const {
      return {group + count, values + count * stride * kGroup, scales + count * stride, sums + count * stride};
    }
  };

  template <int kSlot>
  [[gnu::always_inline]] void multiply(Place at) {
    tile_zero<kSlot>();
    tile_load<2 + kSlot>(at.values, kGroup);
    tile_load<4 + kSlot>(at.group->numbers, 64);
    dot<kSlot>();
  }

  template <int kSlot>
  [[gnu::always_inline]] void dot() {
    if constexpr (kUnsigned) {
      tile_dot_unsigned<kSlot, 2 + kSlot, 4 + kSlot>();
    } else {
      tile_dot_signed<kSlot, 2 + kSlot, 4 + kSlot>();
    }
  }

  // Adds up group g, stores the sums of g + 1, and multiplies g + 2 into the register that g used; returns the place of
  // g + 1.
  template <int kSlot, bool kHasNext, bool kHasSecondNext>
  EAGRE_UNIT_STEP Place step(Place at, size_t stride, Floats (&total)[kRows]) {
    const Floats scales = load(at.group->scales[0]);
    const Floats minima = kHasMinima ? load(at.group->minima[0]) : zeros();
    if constexpr (kHasNext) tile_store<1 - kSlot>(dots_[1 - kSlot], 64);
    add_quarter<0>(at, dots_[kSlot], scales, minima, total);
    if constexpr (kHasSecondNext) tile_zero<kSlot>();
    if constexpr (kHasSecondNext) tile_load<2 + kSlot>(at.behind(2, stride).values, kGroup);
    add_quarter<1>(at, dots_[kSlot], scales, minima, total);
    if constexpr (kHasSecondNext) tile_load<4 + kSlot>(at.behind(2, stride).group->numbers, 64);
    add_quarter<2>(at, dots_[kSlot], scales, minima, total);
    if constexpr (kHasSecondNext) dot<kSlot>();
    add_quarter<3>(at, dots_[kSlot], scales, minima, total);
    return at.behind(1, stride);
  }

  template <int kQuarter>
  [[gnu::always_inline]] static void add_quarter(Place at, const int32_t* dots, Floats scales, Floats minima,
                                                 Floats (&total)[kRows]) {
    EAGRE_UNROLL(4)
    for (int r = kQuarter * kRows / 4; r < (kQuarter + 1) * kRows / 4; ++r) {
      total[r] = add_part<kHasMinima>(total[r], load_ints(dots + r * kTile), scales, minima, at.scales[r], at.sums + r);
    }
    keep_order();
  }

  Place first_;
  size_t stride_;
  alignas(64) int32_t dots_[2][kBlockRows * kTile];
};

// Unpacked groups with all rows: one for all formats of a shape.
template <bool kHasMinima, bool kUnsigned>
void multiply_blocks(const PackedRows& x, Sums sums, const UnpackedGroup* unpacked, int first, int num_groups,
                     float* totals, const std::byte* ahead, size_t ahead_bytes) {
  for (int block = 0; block < x.num_blocks(); ++block, totals += kBlockRows * kTile) {
    const RowGroups rows(x, sums, block, first);
    const int stride = x.rows_of(block);
    const auto add = [&](auto count, auto shape) {
      UnitSums<kHasMinima, kUnsigned, decltype(count)::value, decltype(shape)::value>(unpacked, rows, stride)
          .add_to(totals, num_groups, ahead, block == 0 ? ahead_bytes : 0);
    };
    constexpr std::integral_constant<int, 4> kFour;
    constexpr std::integral_constant<int, 8> kEight;
    constexpr std::integral_constant<int, 12> kTwelve;
    constexpr std::integral_constant<int, kBlockRows> kAll;
    if (stride <= 4) {
      add(kFour, kAll);
    } else if (stride <= 8) {
      x.num_blocks() == 1 ? add(kEight, kEight) : add(kEight, kAll);
    } else if (stride <= 12) {
      x.num_blocks() == 1 ? add(kTwelve, kTwelve) : add(kTwelve, kAll);
    } else {
      add(kAll, kAll);
    }
  }
}

// What the codes of a format stand for, as int8.
template <Format F>
struct SignedCodes {
  uint8_t numbers[16];

  constexpr SignedCodes() : numbers() {
    for (int i = 0; i < 16; ++i) {
      numbers[i] = static_cast<uint8_t>(layout_of(F).codes->numbers[i] - layout_of(F).zero_point);
    }
  }
};

// The numbers of a group of whole bytes or of nibbles, without the zero point. This is a pass of its own over what the
// format has in memory, because a second one over what `unpack` has stored takes as long as the unpacking.
template <Format F>
[[gnu::always_inline]] inline void unpack_signed_numbers(const std::byte* __restrict from, uint8_t* __restrict to) {
  constexpr int kNumbers = kGroup * kTile, kZero = layout_of(F).zero_point;
  static_assert(layout_of(F).high_bits == 0 && (layout_of(F).low_bits == 8 || layout_of(F).low_bits == 4));
  if constexpr (layout_of(F).codes.has_value()) {
    static constexpr SignedCodes<F> kCodes;
    for (int v = 0; v < kNumbers / 128; ++v) {
      const Words codes = load_words(from + 64 * v);
      store_words(to + 64 * v, looked_up(shifted_bits<0>(codes, 15), kCodes.numbers));
      store_words(to + kNumbers / 2 + 64 * v, looked_up(shifted_bits<-4>(codes, 15), kCodes.numbers));
    }
  } else if constexpr (layout_of(F).low_bits == 8) {
    for (int i = 0; i < kNumbers; ++i) to[i] = static_cast<uint8_t>(std::to_integer<int>(from[i]) - kZero);
  } else {
    for (int i = 0; i < kNumbers / 2; ++i) to[i] = static_cast<uint8_t>((std::to_integer<int>(from[i]) & 15) - kZero);
    to += kNumbers / 2;
    for (int i = 0; i < kNumbers / 2; ++i) to[i] = static_cast<uint8_t>((std::to_integer<int>(from[i]) >> 4) - kZero);
  }
}

// Unpacks groups to bytes that are signed where the format has a zero point. Always inlined, as `unpack`.
template <Format F>
[[gnu::always_inline]] inline void unpack_signed(const std::byte* block, int num_groups, UnpackedGroup* to) {
  if constexpr (has_minima(F)) {
    unpack<F>(block, num_groups, to);
  } else {
    constexpr int kBlockGroups = layout_of(F).block_groups;
    for (int g = 0; g < num_groups; g += kBlockGroups, block += block_bytes(F)) {
      const BlockReader<F> reader(block);
      for (int i = 0; i < kBlockGroups; ++i) {
        prefetch_behind<block_bytes(F), kBlockGroups>(block, i);
        typename BlockReader<F>::Group group;
        reader.read(i, group);
        store(to[g + i].scales[0], group.scales[0]);
        unpack_signed_numbers<F>(block + numbers_offset(F) + i * group_bytes(F), to[g + i].numbers);
      }
    }
  }
}

// A tile kernel.
template <Format F>
void multiply_on_matrix_unit(const PackedRows& x, const std::byte* tile, UnpackedGroup* unpacked, float* totals) {
  static_assert(has_unit_kernel(F));
  constexpr Layout kLayout = layout_of(F);
  constexpr int kBlock = kLayout.block_groups;
  if (x.num_rows() < kLeastRowsOfMatrixUnit) return vector_kernel_of(F)(x, tile, unpacked, totals);
  for (int first = 0; first < x.num_groups(); first += kChunkGroups) {
    const int count = std::min(kChunkGroups, x.num_groups() - first);
    const std::byte* from = tile + first / kLayout.block_groups * block_bytes(F);
    unpack_signed<F>(from, count, unpacked);
    multiply_blocks<kLayout.has_minima, kLayout.has_minima && !shape_of(F).is_small>(
        x, kLayout.sums, unpacked, first, count, totals, from + tile_bytes(F, count), tile_bytes(F, kBlock) / kBlock);
  }
}

}  // namespace eagre

#endif  // EAGRE_HAS_TILE_REGISTERS
