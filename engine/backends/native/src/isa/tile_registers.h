// The matrix unit of newer x86 processors (AMX): eight registers of up to 16 rows of 64 bytes, and products of them.
//
// EAGRE_HAS_TILE_REGISTERS says whether this library may use them. What is below has two implementations. One is the
// instructions. The other does the same in plain C++, with the same bits, so that kernels for the matrix unit can be
// tested on a machine without one; it is chosen by EAGRE_EMULATES_TILE_REGISTERS. Only sources that include this header,
// directly or through another, are compiled for such a library; it shares all other objects with the variant that
// setup.py calls its base.
//
// A task of a pool's job configures the registers of its thread and may then use them to its end, or until it configures
// them otherwise. What they hold at first is unknown.
//
//   static constexpr TileShapes kShapes({{16, 64}, {16, 32}, {8, 64}});  // registers 0, 1, 2: rows, bytes of a row
//   configure_tiles(kShapes);     // does nothing where the thread has these shapes already; else takes 100 ns
//   tile_zero<0>();
//   tile_load<1>(a, 32);          // rows lie 32 bytes apart
//   tile_load<2>(b, 64);
//   tile_dot_signed<0, 1, 2>();   // register 0 += register 1 times register 2
//   tile_store<0>(c, 64);
//
// In a product of registers C += A * B, with four int8 or two bfloat16 to a word of 4 bytes:
//   A  [rows of C][words]: a row of A is a row of the left matrix
//   B  [words][columns of C]: word k holds what word k of A is multiplied with, for each column. C has as many columns as
//      words lie in a row of B
// The shapes of the three must fit each other, or the processor raises an invalid instruction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AMX_TILE__) && defined(__AMX_INT8__) && defined(__AMX_BF16__)
#define EAGRE_HAS_TILE_REGISTERS 1
#define EAGRE_TILE_INSTRUCTIONS 1
#elif defined(EAGRE_EMULATES_TILE_REGISTERS)
#define EAGRE_HAS_TILE_REGISTERS 1
#define EAGRE_TILE_INSTRUCTIONS 0
#else
#define EAGRE_HAS_TILE_REGISTERS 0
#define EAGRE_TILE_INSTRUCTIONS 0
#endif

#if EAGRE_HAS_TILE_REGISTERS

namespace eagre {

constexpr int kTileRegisters = 8;
constexpr int kMostTileRows = 16;
constexpr int kMostTileBytes = 64;  // of a row

struct TileShape {
  int rows, bytes;  // both 0 for a register that is not used
};

// The shapes of all registers, as LDTILECFG reads them (Intel 64 and IA-32 Architectures Software Developer's Manual).
// An object lives as long as the process, because threads remember which one they have.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  constexpr explicit TileShapes(const TileShape (&shapes)[kTileRegisters]) {
    for (int i = 0; i < kTileRegisters; ++i) {
      bytes[i] = static_cast<uint16_t>(shapes[i].bytes);
      rows[i] = static_cast<uint8_t>(shapes[i].rows);
    }
  }
};
static_assert(sizeof(TileShapes) == 64);

// What the registers of this thread are configured for, or null.
inline const TileShapes*& current_tile_shapes() {
  thread_local const TileShapes* current = nullptr;
  return current;
}

inline void configure_tiles(const TileShapes& shapes);

// The pool calls this when a thread has done its tasks of a job. Other code of the process may configure the registers
// between two jobs, so nobody relies on what was configured before; and registers that are given back cost nothing when
// the system changes threads.
inline void release_tiles();

#if EAGRE_TILE_INSTRUCTIONS

inline void configure_tiles(const TileShapes& shapes) {
  if (current_tile_shapes() == &shapes) return;
  // The operand stands for the whole object. The compilers' own _tile_loadconfig declares eight bytes of it as read, and
  // an optimiser may drop what is written to the others.
  asm volatile("ldtilecfg %0" ::"m"(shapes));
  current_tile_shapes() = &shapes;
}

inline void release_tiles() {
  if (current_tile_shapes() == nullptr) return;
  asm volatile("tilerelease");
  current_tile_shapes() = nullptr;
}

template <int T>
inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(T));
}

// Rows of the register's shape, `stride` bytes from each other.
template <int T>
inline void tile_load(const void* from, size_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(T) : "memory");
}

template <int T>
inline void tile_store(void* to, size_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(T) : "memory");
}

// int32 += int8 * int8. Sums are exact.
template <int C, int A, int B>
inline void tile_dot_signed() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

// int32 += int8 * uint8: B is unsigned. Sums are exact.
template <int C, int A, int B>
inline void tile_dot_unsigned() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

// float32 += bfloat16 * bfloat16. The products of the first numbers of all words are summed in their order, from 0, those
// of the second numbers likewise, and C + (first + second) is the result; each addition rounds to nearest even. Denormal
// numbers count as 0, here and in the result.
template <int C, int A, int B>
inline void tile_dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

#else  // the emulation

struct EmulatedTile {
  int rows, bytes;
  alignas(64) uint8_t data[kMostTileRows][kMostTileBytes];  // 0 beyond the shape
};

inline EmulatedTile* emulated_tiles() {
  thread_local EmulatedTile tiles[kTileRegisters];
  return tiles;
}

inline void configure_tiles(const TileShapes& shapes) {
  if (current_tile_shapes() == &shapes) return;
  for (int i = 0; i < kTileRegisters; ++i) {
    EmulatedTile& tile = emulated_tiles()[i];
    tile.rows = shapes.rows[i];
    tile.bytes = shapes.bytes[i];
    std::memset(tile.data, 0, sizeof tile.data);
  }
  current_tile_shapes() = &shapes;
}

inline void release_tiles() { current_tile_shapes() = nullptr; }

// A register that has a shape; without one the processor raises an invalid instruction.
inline EmulatedTile& emulated_tile(int index) {
  EmulatedTile& tile = emulated_tiles()[index];
  if (current_tile_shapes() == nullptr || tile.rows == 0) __builtin_trap();
  return tile;
}

// Those of a product, which fit each other.
struct EmulatedProduct {
  EmulatedTile& c;
  const EmulatedTile &a, &b;

  EmulatedProduct(int c_index, int a_index, int b_index)
      : c(emulated_tile(c_index)), a(emulated_tile(a_index)), b(emulated_tile(b_index)) {
    if (a.rows != c.rows || b.bytes != c.bytes || b.rows * 4 != a.bytes) __builtin_trap();
  }
};

constexpr int kTileColumns = kMostTileBytes / 4;

// Not inlined, for speed does not matter here and the kernels would be slow to compile.
[[gnu::noinline]] inline void emulate_load(int index, const void* from, size_t stride) {
  EmulatedTile& tile = emulated_tile(index);
  std::memset(tile.data, 0, sizeof tile.data);
  for (int row = 0; row < tile.rows; ++row) {
    std::memcpy(tile.data[row], static_cast<const uint8_t*>(from) + row * stride, tile.bytes);
  }
}

[[gnu::noinline]] inline void emulate_store(int index, void* to, size_t stride) {
  const EmulatedTile& tile = emulated_tile(index);
  for (int row = 0; row < tile.rows; ++row) {
    std::memcpy(static_cast<uint8_t*>(to) + row * stride, tile.data[row], tile.bytes);
  }
}

template <class Weight>
[[gnu::noinline]] inline void emulate_dot_bytes(const EmulatedProduct& tiles) {
  for (int m = 0; m < tiles.c.rows; ++m) {
    int32_t sums[kTileColumns];
    std::memcpy(sums, tiles.c.data[m], sizeof sums);
    for (int k = 0; k < 4 * tiles.b.rows; ++k) {
      const int left = static_cast<int8_t>(tiles.a.data[m][k]);
      const uint8_t* right = tiles.b.data[k / 4] + k % 4;
      for (int n = 0; n < kTileColumns; ++n) sums[n] += left * static_cast<Weight>(right[4 * n]);
    }
    std::memcpy(tiles.c.data[m], sums, sizeof sums);
  }
}

// Denormal numbers become 0 of their sign.
inline float flushed(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7f800000u) == 0) bits &= 0x80000000u;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline float emulated_bf16(const uint8_t* from) {
  uint16_t half;
  std::memcpy(&half, from, sizeof half);
  const uint32_t bits = uint32_t{half} << 16;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return flushed(x);
}

[[gnu::noinline]] inline void emulate_dot_bf16(const EmulatedProduct& tiles) {
  for (int m = 0; m < tiles.c.rows; ++m) {
    // The product of two bfloat16 is exact in float32, so that a sum of it rounds once, as the instruction's does. Of
    // products beyond the range of normal numbers that does not hold.
    float first[kTileColumns] = {}, second[kTileColumns] = {};
    for (int k = 0; k < tiles.b.rows; ++k) {
      const uint8_t *left = tiles.a.data[m] + 4 * k, *right = tiles.b.data[k];
      for (int n = 0; n < kTileColumns; ++n) {
        first[n] = flushed(first[n] + emulated_bf16(left) * emulated_bf16(right + 4 * n));
        second[n] = flushed(second[n] + emulated_bf16(left + 2) * emulated_bf16(right + 4 * n + 2));
      }
    }
    for (int n = 0; n < kTileColumns; ++n) {
      float sum;
      std::memcpy(&sum, tiles.c.data[m] + 4 * n, sizeof sum);
      sum = flushed(flushed(sum) + flushed(first[n] + second[n]));
      std::memcpy(tiles.c.data[m] + 4 * n, &sum, sizeof sum);
    }
  }
}

template <int T>
inline void tile_zero() {
  std::memset(emulated_tile(T).data, 0, sizeof(EmulatedTile::data));
}

template <int T>
inline void tile_load(const void* from, size_t stride) {
  emulate_load(T, from, stride);
}

template <int T>
inline void tile_store(void* to, size_t stride) {
  emulate_store(T, to, stride);
}

template <int C, int A, int B>
inline void tile_dot_signed() {
  emulate_dot_bytes<int8_t>({C, A, B});
}

template <int C, int A, int B>
inline void tile_dot_unsigned() {
  emulate_dot_bytes<uint8_t>({C, A, B});
}

template <int C, int A, int B>
inline void tile_dot_bf16() {
  emulate_dot_bf16({C, A, B});
}

#endif  // the emulation

// Reads and writes of memory do not move across this call. Without it a compiler gathers those between tile instructions.
inline void keep_order() { asm volatile("" ::: "memory"); }

}  // namespace eagre

#endif  // EAGRE_HAS_TILE_REGISTERS
