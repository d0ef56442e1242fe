// A group of a tile of integers, unpacked from its block into registers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "isa/isa.h"
#include "layout/format.h"

namespace eagre {

// The kernel that `of` names for a format of integers, which it is given as a constant; null for the other formats.
template <class Kernel, class Of>
Kernel kernel_of_integers(Format format, const Of& of) {
  switch (format) {
    case Format::kInt8: return of(std::integral_constant<Format, Format::kInt8>());
    case Format::kInt8Min: return of(std::integral_constant<Format, Format::kInt8Min>());
    case Format::kInt8Zero: return of(std::integral_constant<Format, Format::kInt8Zero>());
    case Format::kInt4: return of(std::integral_constant<Format, Format::kInt4>());
    case Format::kInt4Min: return of(std::integral_constant<Format, Format::kInt4Min>());
    case Format::kInt4Zero: return of(std::integral_constant<Format, Format::kInt4Zero>());
    case Format::kQ2K: return of(std::integral_constant<Format, Format::kQ2K>());
    case Format::kQ3K: return of(std::integral_constant<Format, Format::kQ3K>());
    case Format::kQ4K: return of(std::integral_constant<Format, Format::kQ4K>());
    case Format::kQ5K: return of(std::integral_constant<Format, Format::kQ5K>());
    case Format::kQ6K: return of(std::integral_constant<Format, Format::kQ6K>());
    case Format::kIq4Xs: return of(std::integral_constant<Format, Format::kIq4Xs>());
    case Format::kMxfp4: return of(std::integral_constant<Format, Format::kMxfp4>());
    case Format::kIq4Nl: return of(std::integral_constant<Format, Format::kIq4Nl>());
    case Format::kIq3Xxs: return of(std::integral_constant<Format, Format::kIq3Xxs>());
    case Format::kIq3S: return of(std::integral_constant<Format, Format::kIq3S>());
    case Format::kIq2S: return of(std::integral_constant<Format, Format::kIq2S>());
    case Format::kIq1M: return of(std::integral_constant<Format, Format::kIq1M>());
    case Format::kFloat32:
    case Format::kBfloat16:
    case Format::kFloat16: break;
  }
  return nullptr;
}

constexpr int kVectorsOfBytes = kGroup * kTile / 64;

// What is left of a format when its numbers have been unpacked to bytes.
struct Shape {
  int parts;  // of a group, each with a scale
  bool has_minima;
  bool is_small;  // the numbers are below 128
};

constexpr Shape shape_of(Format f) {
  const Layout layout = layout_of(f);
  return {layout.parts, layout.has_minima, bits_of_number(f) < 8};
}

// A group in memory, as the matrix unit takes it.
struct alignas(64) UnpackedGroup {
  uint8_t numbers[kGroup * kTile];
  float scales[2][kTile];
  float minima[2][kTile];
};

template <int kParts, bool kHasMinima>
struct IntegerGroup {
  Words numbers[kVectorsOfBytes];
  Floats scales[kParts], minima[kParts];

  [[gnu::always_inline]] void store_unpacked(UnpackedGroup& group) const {
    EAGRE_UNROLL(8)
    for (int i = 0; i < kVectorsOfBytes; ++i) store_words(group.numbers + 64 * i, numbers[i]);
    store_factors(group);
  }
  [[gnu::always_inline]] void store_factors(UnpackedGroup& group) const {
    for (int part = 0; part < kParts; ++part) {
      store(group.scales[part], scales[part]);
      if constexpr (kHasMinima) store(group.minima[part], minima[part]);
    }
  }
};

// Reads the groups of one block.
template <Format F>
class BlockReader {
 public:
  static constexpr Layout kLayout = layout_of(F);
  using Group = IntegerGroup<kLayout.parts, kLayout.has_minima>;

  explicit BlockReader(const std::byte* block)
      : block_(block), scale_(kLayout.has_exponents ? half_powers_of_two(block) : load_halves(block)) {
    if constexpr (kLayout.factor != 1.0f) scale_ = mul(scale_, broadcast(kLayout.factor));  // exact
    if constexpr (kLayout.has_minima) minimum_ = load_halves(block + kHalves);
    // Exact: a float16 and a zero point of 9 bits have fewer digits together than a float32.
    if constexpr (kLayout.has_zero_points) minimum_ = mul(scale_, minimum_);
  }

  [[gnu::always_inline]] void read(int index, Group& group) const {
    if constexpr (is_k(F)) {
      const int8_t* bytes = reinterpret_cast<const int8_t*>(block_);
      for (int part = 0; part < kLayout.parts; ++part) {
        const size_t at = size_t{kTile} * (index * kLayout.parts + part);
        group.scales[part] = mul(scale_, load_bytes(bytes + scales_offset(F) + at));
        if constexpr (kLayout.has_minima) {
          group.minima[part] = mul(minimum_, load_bytes(bytes + minima_offset(F) + at));
        }
      }
    } else {
      group.scales[0] = scale_;
      if constexpr (kLayout.has_minima) group.minima[0] = minimum_;
    }
    read_numbers(numbers(index), group, std::make_index_sequence<kVectorsOfBytes>());
  }

  const std::byte* numbers(int index) const { return block_ + numbers_offset(F) + index * group_bytes(F); }

 private:
  template <size_t... kVectors>
  [[gnu::always_inline]] static void read_numbers(const std::byte* from, Group& group, std::index_sequence<kVectors...>) {
    (read_vector<static_cast<int>(kVectors)>(from, group), ...);
  }

  template <int kVector>
  [[gnu::always_inline]] static void read_vector(const std::byte* from, Group& group) {
    constexpr int kLow = kLayout.low_bits, kHigh = kLayout.high_bits;
    if constexpr (kLow == 8) {
      group.numbers[kVector] = load_words(from + 64 * kVector);
    } else {
      const Words low = load_words(from + 64 * (kVector % kLow));
      group.numbers[kVector] = shifted_bits<-kLow*(kVector / kLow)>(low, (1 << kLow) - 1);
      if constexpr (kLayout.codes.has_value()) {
        group.numbers[kVector] = looked_up(group.numbers[kVector], kLayout.codes->numbers);
      }
      if constexpr (kHigh > 0) {
        const Words high = load_words(from + 64 * (kLow + kVector % kHigh));
        const Words on_top = shifted_bits<kLow - kHigh*(kVector / kHigh)>(high, ((1 << kHigh) - 1) << kLow);
        group.numbers[kVector] = either(group.numbers[kVector], on_top);
      }
    }
  }

  const std::byte* block_;
  Floats scale_, minimum_;
};

}  // namespace eagre
