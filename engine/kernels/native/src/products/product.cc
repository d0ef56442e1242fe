#include "products/product.h"

#include <algorithm>
#include <cstring>

#include "isa/isa.h"
#include "runtime/scratch.h"

namespace eagre {
namespace {

// So many groups are unpacked at a time, so that they and the rows' groups stay in the first cache.
constexpr int kChunkGroups = 24;
constexpr int kStoredTiles = 4;        // neighbours whose results are stored together
constexpr int kTasksPerThread = 8;     // enough that a thread that the system puts aside is not waited for long
constexpr int kVectorsOfBytes = kGroup * kTile / 64;
constexpr int kPrefetchBytes = 4096;   // ahead in the stream of weights: what the hardware prefetches ends at each page

// A group of a tile as the integer kernel takes it.
struct alignas(64) UnpackedGroup {
  uint8_t numbers[kGroup * kTile];
  float scales[kTile];
  float minima[kTile];
};

template <Format F>
struct IntegerGroup {
  Words numbers[kVectorsOfBytes];
  Floats scales, minima;

  void load_packed(const std::byte* block) {
    scales = load_halves(block);
    if constexpr (has_minima(F)) minima = load_halves(block + kHalves);
    const std::byte* from = block + numbers_offset(F);
    if constexpr (is_nibbles(F)) {
      for (int i = 0; i < kVectorsOfBytes / 2; ++i) {
        const Words both = load_words(from + 64 * i);
        numbers[i] = low_nibbles(both);
        numbers[i + kVectorsOfBytes / 2] = high_nibbles(both);
      }
    } else {
      for (int i = 0; i < kVectorsOfBytes; ++i) numbers[i] = load_words(from + 64 * i);
    }
  }

  void load_unpacked(const UnpackedGroup& group) {
    for (int i = 0; i < kVectorsOfBytes; ++i) numbers[i] = load_words(group.numbers + 64 * i);
    scales = load(group.scales);
    if constexpr (has_minima(F)) minima = load(group.minima);
  }

  void store_unpacked(UnpackedGroup& group) const {
    for (int i = 0; i < kVectorsOfBytes; ++i) store_words(group.numbers + 64 * i, numbers[i]);
    store(group.scales, scales);
    if constexpr (has_minima(F)) store(group.minima, minima);
  }
};

// What one kernel call works on: some groups of one tile and one block of rows.
struct Span {
  const std::byte* blocks;        // the tile's packed blocks of these groups, or
  const UnpackedGroup* unpacked;  // these, where they are not null
  const std::byte* values;        // the rows', [group][row][...]
  const float* scales;            // [group][row]
  const int32_t* sums;            // [group][row]
  int num_groups;
};

template <Format F, int R>
void accumulate_integers(const Span& span, float* totals) {
  Floats total[R];
  for (int r = 0; r < R; ++r) total[r] = load(totals + r * kTile);
  const int8_t* values = reinterpret_cast<const int8_t*>(span.values);
  const float* scales = span.scales;
  const int32_t* sums = span.sums;
  for (int g = 0; g < span.num_groups; ++g, values += R * kGroup, scales += R, sums += R) {
    IntegerGroup<F> group;
    if (is_nibbles(F) && span.unpacked != nullptr) {
      group.load_unpacked(span.unpacked[g]);
    } else {
      const std::byte* block = span.blocks + g * block_bytes(F);
      for (size_t line = 0; line < block_bytes(F); line += 64) prefetch(block + kPrefetchBytes + line);
      group.load_packed(block);
    }
    EAGRE_UNROLL(16)
    for (int r = 0; r < R; ++r) {
      Ints dot = broadcast_int(has_minima(F) ? 0 : sums[r]);
      EAGRE_UNROLL(8)
      for (int i = 0; i < kVectorsOfBytes; ++i) {
        dot = dot4<is_nibbles(F)>(dot, group.numbers[i], values + r * kGroup + 4 * i);
      }
      total[r] = fma(to_floats(dot), mul(group.scales, broadcast(scales[r])), total[r]);
      if constexpr (has_minima(F)) {
        float sum;
        std::memcpy(&sum, &sums[r], sizeof sum);
        total[r] = fma(group.minima, broadcast(sum), total[r]);
      }
    }
  }
  for (int r = 0; r < R; ++r) store(totals + r * kTile, total[r]);
}

template <Format F, int R>
void accumulate_floats(const Span& span, float* totals) {
  constexpr int kPerVector = F == Format::kBfloat16 ? 2 : 1;  // inputs that one vector of weights holds
  Floats total[R];
  for (int r = 0; r < R; ++r) total[r] = load(totals + r * kTile);
  const std::byte* weights = span.blocks;
  const std::byte* values = span.values;
  constexpr int kGroupBytes = kGroup * 4 / kPerVector;
  for (int g = 0; g < span.num_groups; ++g, values += R * kGroupBytes) {
    for (int i = 0; i < kGroup / kPerVector; ++i, weights += 64) {
      prefetch(weights + kPrefetchBytes);
      const Words w = load_words(weights);
      EAGRE_UNROLL(16)
      for (int r = 0; r < R; ++r) {
        const std::byte* x = values + r * kGroupBytes + i * 4;
        if constexpr (F == Format::kBfloat16) {
          total[r] = dot2(total[r], w, x);
        } else {
          total[r] = fma(as_floats(w), broadcast(*reinterpret_cast<const float*>(x)), total[r]);
        }
      }
    }
  }
  for (int r = 0; r < R; ++r) store(totals + r * kTile, total[r]);
}

template <Format F, int R>
void accumulate(const Span& span, float* totals) {
  if constexpr (is_integer(F)) {
    accumulate_integers<F, R>(span, totals);
  } else {
    accumulate_floats<F, R>(span, totals);
  }
}

template <Format F>
void accumulate_rows(int rows, const Span& span, float* totals) {
  switch (rows) {
    case 1: return accumulate<F, 1>(span, totals);
    case 2: return accumulate<F, 2>(span, totals);
    case 4: return accumulate<F, 4>(span, totals);
    case 8: return accumulate<F, 8>(span, totals);
    case 12: return accumulate<F, 12>(span, totals);
    default: return accumulate<F, kBlockRows>(span, totals);
  }
}

// Sums of one tile and all rows are added to totals: [rows][kTile].
template <Format F>
void multiply_tile(const PackedRows& x, const std::byte* blocks, UnpackedGroup* unpacked, float* totals) {
  const int num_groups = x.num_groups(), num_blocks = x.num_blocks();
  const bool unpacks = is_nibbles(F) && num_blocks > 1;
  const int chunk = num_blocks > 1 ? kChunkGroups : num_groups;
  for (int first = 0; first < num_groups; first += chunk) {
    const int count = std::min(chunk, num_groups - first);
    const std::byte* from = blocks + first * block_bytes(F);
    if constexpr (is_nibbles(F)) {
      for (int g = 0; unpacks && g < count; ++g) {
        const std::byte* block = from + g * block_bytes(F);
        for (size_t line = 0; line < block_bytes(F); line += 64) prefetch(block + kPrefetchBytes + line);
        IntegerGroup<F> group;
        group.load_packed(block);
        group.store_unpacked(unpacked[g]);
      }
    }
    for (int block = 0; block < num_blocks; ++block) {
      const int rows = x.rows_of(block);
      const size_t at = size_t{1} * first * rows;
      Span span{from, unpacks ? unpacked : nullptr, x.values(block) + at * x.group_bytes(), nullptr, nullptr,
                count};
      if constexpr (is_integer(F)) {
        span.scales = x.scales(block) + at;
        span.sums = x.sums(block) + at;
      }
      accumulate_rows<F>(rows, span, totals + size_t{1} * block * kBlockRows * kTile);
    }
  }
}

void multiply_any_tile(const PackedRows& x, const Matrix& w, int64_t tile, UnpackedGroup* unpacked, float* totals) {
  const std::byte* blocks = w.blocks + tile * w.num_groups * block_bytes(w.format);
  switch (w.format) {
    case Format::kFloat32: return multiply_tile<Format::kFloat32>(x, blocks, unpacked, totals);
    case Format::kBfloat16: return multiply_tile<Format::kBfloat16>(x, blocks, unpacked, totals);
    case Format::kInt8: return multiply_tile<Format::kInt8>(x, blocks, unpacked, totals);
    case Format::kInt8Min: return multiply_tile<Format::kInt8Min>(x, blocks, unpacked, totals);
    case Format::kInt4: return multiply_tile<Format::kInt4>(x, blocks, unpacked, totals);
    case Format::kInt4Min: return multiply_tile<Format::kInt4Min>(x, blocks, unpacked, totals);
  }
}

// What the sums of a tile begin with: the biases of its outputs, from `first` on.
void start_totals(const PackedRows& x, const Output& y, const float* bias, int64_t first, float* totals) {
  const int num_blocks = x.num_blocks(), padded = (num_blocks - 1) * kBlockRows + x.rows_of(num_blocks - 1);
  if (bias == nullptr) {
    std::memset(totals, 0, sizeof(float) * kTile * padded);
    return;
  }
  float of_tile[kTile] = {};  // the last tile may reach beyond the outputs
  std::copy_n(bias + first, std::min<int64_t>(kTile, y.num_outputs - first), of_tile);
  for (int row = 0; row < padded; ++row) store(totals + row * kTile, load(of_tile));
}

// Stores the results of neighbouring tiles row by row: stored tile by tile, many rows would be as many short writes to
// distant lines. totals: [count][rows][kTile]; partners likewise, or null.
template <Finish F>
void store_tiles(const PackedRows& x, const Output& y, int64_t first, int count, size_t totals_size,
                 const float* totals, const float* partners) {
  for (int row = 0; row < x.num_rows(); ++row) {
    for (int i = 0; i < count; ++i) {
      const int64_t column = (first + i) * kTile;
      const size_t from = i * totals_size + size_t{1} * row * kTile;
      Floats value = finish<F>(load(totals + from), y.scale, y.softcap);
      if (partners != nullptr) value = mul(value, load(partners + from));
      const int64_t at = y.index[row] * y.num_outputs + column;
      const int width = static_cast<int>(std::min<int64_t>(kTile, y.num_outputs - column));
      if (width == kTile) {
        if (y.addend != nullptr) value = add(value, load(y.addend + at));
        store(y.values + at, value);
        continue;
      }
      float part[kTile];
      store(part, value);
      for (int j = 0; j < width; ++j) y.values[at + j] = part[j] + (y.addend != nullptr ? y.addend[at + j] : 0.0f);
    }
  }
}

using StoreTiles = decltype(&store_tiles<Finish::kNone>);

StoreTiles store_tiles_of(Finish finish) {
  switch (finish) {
    case Finish::kNone: return store_tiles<Finish::kNone>;
    case Finish::kSilu: return store_tiles<Finish::kSilu>;
    case Finish::kGeluTanh: return store_tiles<Finish::kGeluTanh>;
    case Finish::kGeluErf: return store_tiles<Finish::kGeluErf>;
    case Finish::kScaled: return store_tiles<Finish::kScaled>;
    case Finish::kCapped: return store_tiles<Finish::kCapped>;
  }
  return store_tiles<Finish::kNone>;
}

}  // namespace

void multiply(Pool& pool, const PackedRows& x, const Matrix& weights, const Output& y) {
  static Scratch& unpacked_memory = *new Scratch;  // the caller holds the pool
  static Scratch& totals_memory = *new Scratch;
  const int threads = pool.num_threads(), parts = y.is_gated ? 2 : 1;
  const size_t totals_size = size_t{1} * x.num_blocks() * kBlockRows * kTile;
  UnpackedGroup* unpacked = unpacked_memory.take<UnpackedGroup>(size_t{1} * threads * kChunkGroups);
  float* totals = totals_memory.take<float>(threads * 2 * kStoredTiles * totals_size);

  const StoreTiles store_results = store_tiles_of(y.finish);
  const float* partner_bias = y.bias == nullptr ? nullptr : y.bias + y.num_outputs;
  const int64_t num_results = weights.num_tiles / parts;
  const int64_t fair = num_results / (threads * kTasksPerThread);
  const int64_t per_task =
      std::max({int64_t{1}, fair / kStoredTiles * kStoredTiles, std::min(fair, int64_t{kStoredTiles})});
  pool.run((num_results + per_task - 1) / per_task, [&](int64_t task, int thread) {
    UnpackedGroup* mine = unpacked + thread * kChunkGroups;
    float* sums = totals + thread * 2 * kStoredTiles * totals_size;
    float* partners = sums + kStoredTiles * totals_size;
    const int64_t end = std::min(num_results, (task + 1) * per_task);
    for (int64_t first = task * per_task; first < end; first += kStoredTiles) {
      const int count = static_cast<int>(std::min<int64_t>(kStoredTiles, end - first));
      for (int i = 0; i < count; ++i) {
        const int64_t tile = first + i;
        start_totals(x, y, y.bias, tile * kTile, sums + i * totals_size);
        multiply_any_tile(x, weights, tile * parts, mine, sums + i * totals_size);
        if (!y.is_gated) continue;
        start_totals(x, y, partner_bias, tile * kTile, partners + i * totals_size);
        multiply_any_tile(x, weights, tile * parts + 1, mine, partners + i * totals_size);
      }
      store_results(x, y, first, count, totals_size, sums, y.is_gated ? partners : nullptr);
    }
  });
}

}  // namespace eagre
