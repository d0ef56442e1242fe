// The layouts of blocks are those of the ggml project (ggml-common.h, dequantize_row_iq* in ggml-quants.c).
#include "packing/grids.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

namespace eagre {
namespace {

// The entries of an encoding's grid as codes of its format. Loaders read it in any number of threads.
template <int kEntries, int kNumbers>
struct Grid {
  uint8_t codes[kEntries][kNumbers];
  std::atomic<bool> is_taken{false};

  // Of magnitudes, the codes of positive numbers.
  bool take(const int8_t* grid, int64_t num_bytes, const Codes& codes_of_format, int zero_point) {
    if (num_bytes != kEntries * kNumbers) return false;
    static std::mutex mutex;
    const std::lock_guard<std::mutex> lock(mutex);
    if (is_taken) return true;
    for (int i = 0; i < kEntries * kNumbers; ++i) {
      const auto* found = std::find(codes_of_format.numbers, codes_of_format.numbers + 16, zero_point + grid[i]);
      if (found == codes_of_format.numbers + 16) return false;
      codes[i / kNumbers][i % kNumbers] = static_cast<uint8_t>(found - codes_of_format.numbers);
    }
    is_taken = true;
    return true;
  }
};

Grid<256, 8> iq2_xxs_grid;
Grid<512, 8> iq2_xs_grid;
Grid<1024, 8> iq2_s_grid;
Grid<256, 4> iq3_xxs_grid;
Grid<512, 4> iq3_s_grid;
Grid<2048, 8> iq1_grid;  // of -1, 0 and 1, not of codes; IQ1_S and IQ1_M have the same

uint16_t word_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return bits;
}
uint32_t double_word_at(const uint8_t* p) {
  uint32_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return bits;
}

// The signs of eight numbers of which seven are known: an even number of them is negative.
uint8_t even_signs(uint32_t seven) {
  return static_cast<uint8_t>(seven | (__builtin_parity(seven) << 7));
}

// Codes of an entry, of which some signs are turned.
template <int kNumbers>
void put(const uint8_t (&codes)[kNumbers], uint32_t signs, uint8_t* to) {
  for (int i = 0; i < kNumbers; ++i) to[i] = static_cast<uint8_t>(codes[i] ^ ((signs >> i & 1) != 0 ? 15 : 0));
}

int8_t odd(uint32_t scale) { return static_cast<int8_t>(2 * scale + 1); }

void iq2_xxs(const uint8_t* block, RowBlock& to) {
  to.scale = word_at(block);
  for (int group = 0; group < 8; ++group) {
    const uint8_t* own = block + 2 + 8 * group;
    const uint32_t signs = double_word_at(own + 4);
    to.scales[2 * group] = to.scales[2 * group + 1] = odd(signs >> 28);
    for (int i = 0; i < 4; ++i) {
      put(iq2_xxs_grid.codes[own[i]], even_signs(signs >> (7 * i) & 127), to.numbers + group * kGroup + 8 * i);
    }
  }
}

void iq2_xs(const uint8_t* block, RowBlock& to) {
  to.scale = word_at(block);
  for (int i = 0; i < 32; ++i) {
    const uint16_t own = word_at(block + 2 + 2 * i);
    put(iq2_xs_grid.codes[own & 511], even_signs(own >> 9), to.numbers + 8 * i);
  }
  for (int i = 0; i < 16; ++i) to.scales[i] = odd(block[66 + i / 2] >> (i % 2 * 4) & 15);
}

void iq2_s(const uint8_t* block, RowBlock& to) {
  to.scale = word_at(block);
  for (int i = 0; i < 32; ++i) {
    const uint32_t high = block[66 + i / 4] >> (i % 4 * 2) & 3;
    put(iq2_s_grid.codes[block[2 + i] | high << 8], block[34 + i], to.numbers + 8 * i);
  }
  for (int i = 0; i < 16; ++i) to.scales[i] = odd(block[74 + i / 2] >> (i % 2 * 4) & 15);
}

void iq3_xxs(const uint8_t* block, RowBlock& to) {
  to.scale = word_at(block);
  for (int group = 0; group < 8; ++group) {
    const uint8_t* own = block + 2 + 8 * group;
    const uint32_t signs = double_word_at(block + 66 + 4 * group);
    to.scales[group] = odd(signs >> 28);
    for (int i = 0; i < 8; ++i) {
      const uint32_t of_eight = even_signs(signs >> (7 * (i / 2)) & 127);
      put(iq3_xxs_grid.codes[own[i]], of_eight >> (i % 2 * 4), to.numbers + group * kGroup + 4 * i);
    }
  }
}

void iq3_s(const uint8_t* block, RowBlock& to) {
  to.scale = word_at(block);
  for (int i = 0; i < 64; ++i) {
    const uint32_t high = block[66 + i / 8] >> (i % 8) & 1;
    put(iq3_s_grid.codes[block[2 + i] | high << 8], block[74 + i / 2] >> (i % 2 * 4), to.numbers + 4 * i);
  }
  for (int group = 0; group < 8; ++group) to.scales[group] = odd(block[106 + group / 2] >> (group % 2 * 4) & 15);
}

// -1, 0 or 1, moved by an eighth: the codes of kIq1Codes.
void put_moved(const uint8_t (&thirds)[8], bool is_down, uint8_t* to) {
  static constexpr uint8_t kMoved[3][2] = {{6, 4}, {8, 7}, {11, 9}};
  for (int i = 0; i < 8; ++i) to[i] = kMoved[thirds[i]][is_down ? 1 : 0];
}

void iq1_s(const uint8_t* block, RowBlock& to) {
  to.scale = word_at(block);
  for (int group = 0; group < 8; ++group) {
    const uint32_t high = word_at(block + 34 + 2 * group);
    to.scales[2 * group] = to.scales[2 * group + 1] = odd(high >> 12 & 7);
    for (int i = 0; i < 4; ++i) {
      const uint32_t index = block[2 + 4 * group + i] | (high >> (3 * i) & 7) << 8;
      put_moved(iq1_grid.codes[index], (high & 0x8000) != 0, to.numbers + group * kGroup + 8 * i);
    }
  }
}

void iq1_m(const uint8_t* block, RowBlock& to) {
  uint32_t scale = 0;  // a float16, of which each of four words has a part on top of four scales
  for (int i = 0; i < 4; ++i) scale |= (word_at(block + 48 + 2 * i) >> 12 & 15u) << (4 * i);
  to.scale = static_cast<uint16_t>(scale);
  for (int i = 0; i < 16; ++i) to.scales[i] = odd(word_at(block + 48 + i / 4 * 2) >> (i % 4 * 3) & 7);
  for (int i = 0; i < 32; ++i) {
    const uint32_t high = block[32 + i / 2] >> (i % 2 * 4);
    put_moved(iq1_grid.codes[block[i] | (high & 7) << 8], (high & 8) != 0, to.numbers + 8 * i);
  }
}

// The codes of -1, 0 and 1 times eight.
constexpr uint8_t kThirds[4] = {5, 12, 10, 12};

// Bytes that hold five numbers of three values each, as a fraction of 256: their digits come by multiplication.
void tq1_0(const uint8_t* block, RowBlock& to) {
  uint8_t* next = to.numbers;
  const auto put_digits = [&](const uint8_t* from, int count, int num_digits) {
    int power = 1;
    for (int digit = 0; digit < num_digits; ++digit, power *= 3) {
      for (int i = 0; i < count; ++i) *next++ = kThirds[static_cast<uint8_t>(from[i] * power) * 3 >> 8];
    }
  };
  put_digits(block, 32, 5);
  put_digits(block + 32, 16, 5);
  put_digits(block + 48, 4, 4);
  to.scale = word_at(block + 52);
  std::fill_n(to.scales, 16, int8_t{1});
}

void tq2_0(const uint8_t* block, RowBlock& to) {
  for (int i = 0; i < 256; ++i) to.numbers[i] = kThirds[block[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3];
  to.scale = word_at(block + 64);
  std::fill_n(to.scales, 16, int8_t{1});
}

// Of IQ1_S and IQ1_M the numbers stay what they are, plus one.
constexpr Codes kPlusOne{{0, 1, 2, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255}};

}  // namespace

bool take_grid(Encoding encoding, const int8_t* grid, int64_t num_bytes) {
  switch (encoding) {
    case Encoding::kIq2Xxs: return iq2_xxs_grid.take(grid, num_bytes, kIq2Codes, 128);
    case Encoding::kIq2Xs: return iq2_xs_grid.take(grid, num_bytes, kIq2Codes, 128);
    case Encoding::kIq2S: return iq2_s_grid.take(grid, num_bytes, kIq2Codes, 128);
    case Encoding::kIq3Xxs: return iq3_xxs_grid.take(grid, num_bytes, kIq3XxsCodes, 128);
    case Encoding::kIq3S: return iq3_s_grid.take(grid, num_bytes, kIq3SCodes, 128);
    case Encoding::kIq1S:
    case Encoding::kIq1M: return iq1_grid.take(grid, num_bytes, kPlusOne, 1);
    default: return false;
  }
}

Decode grid_decoder_of(Encoding encoding) {
  switch (encoding) {
    case Encoding::kIq2Xxs: return iq2_xxs_grid.is_taken ? iq2_xxs : nullptr;
    case Encoding::kIq2Xs: return iq2_xs_grid.is_taken ? iq2_xs : nullptr;
    case Encoding::kIq2S: return iq2_s_grid.is_taken ? iq2_s : nullptr;
    case Encoding::kIq3Xxs: return iq3_xxs_grid.is_taken ? iq3_xxs : nullptr;
    case Encoding::kIq3S: return iq3_s_grid.is_taken ? iq3_s : nullptr;
    case Encoding::kIq1S: return iq1_grid.is_taken ? iq1_s : nullptr;
    case Encoding::kIq1M: return iq1_grid.is_taken ? iq1_m : nullptr;
    case Encoding::kTq1_0: return tq1_0;
    case Encoding::kTq2_0: return tq2_0;
    default: return nullptr;
  }
}

}  // namespace eagre
