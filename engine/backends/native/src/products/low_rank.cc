#include "products/low_rank.h"

#include <algorithm>
#include <type_traits>

#include "isa/isa.h"

namespace eagre {
namespace {

constexpr int kChains = 2;  // of sums, so that one need not wait for the last
// What is read so far ahead is asked for early: each matrix is short, and the processor's own guesses end with its pages.
constexpr int64_t kVectorsAhead = 32;
constexpr int64_t kLine = 64;
constexpr int64_t kTilesAhead = 4;  // of outputs, as many as are computed together
// Rows that read a matrix together, as many as there are registers for their sums.
#ifdef __AVX512F__
constexpr int kMostRows = 8;
#else
constexpr int kMostRows = 2;
#endif

template <class Number>
constexpr int64_t kPerLane = sizeof(float) / sizeof(Number);  // inputs of a lane
template <class Number>
constexpr int64_t kPerVector = kTile * kPerLane<Number>;

// Adds the products of a lane's inputs at `x` with a vector of weights.
inline Floats multiply_add(Floats sum, const float* weights, const float* x) {
  return fma(broadcast(*x), load(weights), sum);
}
inline Floats multiply_add(Floats sum, const uint16_t* weights, const uint16_t* x) {
  return dot2(sum, load_words(weights), x);
}

// Adds the products of `count` vectors of weights, an even number, with as many inputs of each of some rows.
template <int kRows, class Number>
inline void add_vectors(Floats (&sums)[kRows][kChains], const Number* weights, const Number* x, int64_t stride,
                        int64_t count) {
  for (int64_t i = 0; i < count; i += kChains) {
    EAGRE_UNROLL(2)
    for (int chain = 0; chain < kChains; ++chain) {
      const Number* own = weights + (i + chain) * kPerVector<Number>;
      EAGRE_UNROLL(8)
      for (int row = 0; row < kRows; ++row) {
        sums[row][chain] = multiply_add(sums[row][chain], own, x + row * stride + (i + chain) * kPerLane<Number>);
      }
    }
  }
}

template <int kRows>
inline void clear(Floats (&sums)[kRows][kChains]) {
  EAGRE_UNROLL(8)
  for (int row = 0; row < kRows; ++row) {
    for (int chain = 0; chain < kChains; ++chain) sums[row][chain] = zeros();
  }
}

inline void store_numbers(float* to, Floats x) { store(to, x); }
inline void store_numbers(uint16_t* to, Floats x) { store_bf16(to, x); }

// A tile of columns of `down` for some rows of a block, of which there are `rows` in all; each result times the scale of
// its row, `stride` numbers from one row's to the next one's.
template <int kRows, class Number>
void multiply_down(const Number* tile, const Number* x, int rows, int num_groups, const RowAdapter* adapters,
                   Number* inner, int64_t stride) {
  constexpr int64_t kVectors = kGroup / kPerLane<Number>;  // of a group
  Floats sums[kRows][kChains];
  clear<kRows>(sums);
  for (int group = 0; group < num_groups; ++group, x += int64_t{1} * rows * kGroup, tile += kVectors * kPerVector<Number>) {
    for (int64_t i = 0; i < kVectors; ++i) prefetch(tile + (kVectorsAhead + i) * kPerVector<Number>);
    add_vectors<kRows>(sums, tile, x, kGroup, kVectors);
  }
  EAGRE_UNROLL(8)
  for (int row = 0; row < kRows; ++row) {
    store_numbers(inner + row * stride, mul(broadcast(adapters[row].scale), add(sums[row][0], sums[row][1])));
  }
}

// Adds a tile of outputs of some rows to their totals.
template <int kRows, class Number>
void multiply_up(const Number* tile, const Number* inner, int64_t stride, int64_t num_vectors, float* totals) {
  Floats sums[kRows][kChains];
  clear<kRows>(sums);
  add_vectors<kRows>(sums, tile, inner, stride, num_vectors);
  EAGRE_UNROLL(8)
  for (int row = 0; row < kRows; ++row) {
    float* to = totals + row * kTile;
    store(to, add(load(to), add(sums[row][0], sums[row][1])));
  }
}

constexpr int kBytesPerVector = kTile * 4;
constexpr int kGroupVectors = kGroup / 4;
constexpr int kRankVectors = kTile / 4;  // of a tile of `up`, for 16 of the rank

// Adds to each row's sums the products of `count` vectors of bytes with as many times four of its own.
template <int kRows>
inline void add_bytes_of(Ints (&sums)[kRows], const uint8_t* weights, const int8_t* x, int64_t stride, int count) {
  for (int i = 0; i < count; ++i) {
    const Words own = load_words(weights + i * kBytesPerVector);
    EAGRE_UNROLL(8)
    for (int row = 0; row < kRows; ++row) sums[row] = dot4<false>(sums[row], own, x + row * stride + 4 * i);
  }
}

// What is made of 16 neighbouring columns of `down` in a row.
struct InnerBytes {
  int8_t* bytes;
  float* scale;
  int32_t* zero;
};

// A scale that is NaN where a number is not finite reaches all outputs.
inline void store_inner(const InnerBytes& to, Floats x) {
  const float most = largest(abs(x));
  const Floats rounded = round_to_integer(mul(x, broadcast(most > 0.0f ? 127.0f / most : 0.0f)));
  store_bytes(to.bytes, rounded);
  *to.scale = most / 127.0f + sum(mul(x, zeros()));
  int total = 0;
  for (int i = 0; i < kTile; ++i) total += to.bytes[i];
  *to.zero = -128 * total;
}

// A tile of columns of `down` for some rows of a block, from the step's `first_row` on.
template <int kRows>
void multiply_down_bytes(const uint8_t* tile, const PackedRows& x, int first_row, const RowAdapter* adapters,
                         const InnerBytes* to) {
  const int block = first_row / kBlockRows, within = first_row % kBlockRows, rows = x.rows_of(block);
  const int8_t* values = reinterpret_cast<const int8_t*>(x.values(Activations::kInt8, block)) + within * kGroup;
  const float* scales = x.scales(block) + within;
  const int32_t* zero_sums = x.sums(Sums::kZero128, block) + within;
  const Floats weight_scales = load(reinterpret_cast<const float*>(tile));
  const uint8_t* const weights = tile + kBytesPerVector;
  Floats totals[kRows];
  EAGRE_UNROLL(8)
  for (int row = 0; row < kRows; ++row) totals[row] = zeros();
  for (int group = 0; group < x.num_groups(); ++group) {
    const int at = group * rows;
    const uint8_t* const own = weights + group * kGroupVectors * kBytesPerVector;
    for (int i = 0; i < kGroupVectors; ++i) prefetch(own + (kVectorsAhead + i) * kBytesPerVector);
    Ints sums[kRows];
    EAGRE_UNROLL(8)
    for (int row = 0; row < kRows; ++row) sums[row] = broadcast_int(zero_sums[at + row]);
    add_bytes_of<kRows>(sums, own, values + int64_t{1} * at * kGroup, kGroup, kGroupVectors);
    EAGRE_UNROLL(8)
    for (int row = 0; row < kRows; ++row) totals[row] = fma(to_floats(sums[row]), broadcast(scales[at + row]), totals[row]);
  }
  for (int i = 0; i < x.num_offset_groups(); ++i) {
    const int group = x.offset_groups()[i];
    for (int row = 0; row < kRows; ++row) {
      const int of_step = first_row + row;
      if ((x.offset_marks(group, of_step / kMarkRows) >> of_step % kMarkRows & 1) == 0) continue;
      static constexpr int8_t kOnes[kGroup] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                               1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
      Ints sums[1] = {broadcast_int(-128 * kGroup)};
      add_bytes_of<1>(sums, weights + group * kGroupVectors * kBytesPerVector, kOnes, 0, kGroupVectors);
      totals[row] = fma(to_floats(sums[0]), broadcast(x.offsets(group, of_step / kMarkRows)[of_step % kMarkRows]), totals[row]);
    }
  }
  for (int row = 0; row < kRows; ++row) {
    store_inner(to[row], mul(broadcast(adapters[row].scale), mul(totals[row], weight_scales)));
  }
}

// Adds neighbouring tiles of outputs of some rows to their totals, of the inner bytes of `num_tiles` times 16 of the rank.
template <int kRows>
void multiply_up_bytes(const uint8_t* tile, int64_t tile_size, int count, const int8_t* inner, const float* scales,
                       const int32_t* zero_sums, int64_t stride, int64_t num_tiles, float* totals, size_t between) {
  const int64_t tiles_of_row = stride / kTile;
  for (int t = 0; t < count; ++t, tile += tile_size, totals += between) {
    const Floats weight_scales = load(reinterpret_cast<const float*>(tile));
    const uint8_t* weights = tile + kBytesPerVector;
    Floats added[kRows];
    EAGRE_UNROLL(8)
    for (int row = 0; row < kRows; ++row) added[row] = zeros();
    for (int64_t i = 0; i < num_tiles; ++i, weights += kRankVectors * kBytesPerVector) {
      Ints sums[kRows];
      EAGRE_UNROLL(8)
      for (int row = 0; row < kRows; ++row) sums[row] = broadcast_int(zero_sums[row * tiles_of_row + i]);
      add_bytes_of<kRows>(sums, weights, inner + i * kTile, stride, kRankVectors);
      EAGRE_UNROLL(8)
      for (int row = 0; row < kRows; ++row) {
        added[row] = fma(to_floats(sums[row]), broadcast(scales[row * tiles_of_row + i]), added[row]);
      }
    }
    EAGRE_UNROLL(8)
    for (int row = 0; row < kRows; ++row) {
      float* to = totals + row * kTile;
      store(to, fma(added[row], weight_scales, load(to)));
    }
  }
}

// Calls `body` with the number of a run's rows as a constant.
template <class Body>
inline void with_count(int count, const Body& body) {
  switch (count) {
    case 1: return body(std::integral_constant<int, 1>());
    case 2: return body(std::integral_constant<int, 2>());
#ifdef __AVX512F__
    case 3: return body(std::integral_constant<int, 3>());
    case 4: return body(std::integral_constant<int, 4>());
    case 5: return body(std::integral_constant<int, 5>());
    case 6: return body(std::integral_constant<int, 6>());
    case 7: return body(std::integral_constant<int, 7>());
    case 8: return body(std::integral_constant<int, 8>());
#endif
  }
}

}  // namespace

void AdapterSums::find_runs(int num_rows, const RowAdapter* adapters) {
  runs_.clear();
  first_runs_.clear();
  slots_.clear();
  for (int row = 0; row < num_rows; ++row) {
    if (row % kBlockRows == 0) first_runs_.push_back(runs_.size());
    const int32_t slot = adapters[row].slot;
    if (slot < 0 || pairs_.ranks[slot] == 0) continue;
    if (slots_.empty() || slots_.back() != slot) slots_.push_back(slot);
    const bool goes_on = runs_.size() > first_runs_.back() && runs_.back().slot == slot &&
                         runs_.back().row + runs_.back().count == row && runs_.back().count < kMostRows;
    if (goes_on) {
      ++runs_.back().count;
    } else {
      runs_.push_back({row, 1, slot});
    }
  }
  first_runs_.push_back(runs_.size());
}

template <bool kIsNext>
void AdapterSums::prefetch_up(int32_t slot, int64_t begin, int64_t end) const {
  const std::byte* up = pairs_.up + slot * pairs_.up_stride;
  const int64_t tile_size = up_tile_bytes();
  for (int64_t at = begin * tile_size; at < end * tile_size; at += kLine) {
    if constexpr (kIsNext) {
      eagre::prefetch(up + at);
    } else {
      prefetch_later(up + at);
    }
  }
}

void AdapterSums::prefetch_first(int32_t slot, int64_t tile) const {
  const int64_t tiles_of_part = pairs_.rank / kTile, part = tile / tiles_of_part;
  if (tile % tiles_of_part != 0) return;
  const int64_t begin = part == 0 ? 0 : pairs_.ends[part - 1] / kTile;
  prefetch_up<false>(slot, begin, std::min(begin + kTilesAhead, pairs_.ends[part] / kTile));
}

template <class Number>
void AdapterSums::compute_of(Pool& pool, const PackedRows& x, const RowAdapter* adapters) {
  const int64_t num_columns = pairs_.num_parts * pairs_.rank, tiles_of_part = pairs_.rank / kTile;
  const int64_t num_tiles = pairs_.num_parts * tiles_of_part;
  Number* inner = memory_.take<Number>(static_cast<size_t>(x.num_rows() * num_columns));
  inner_ = reinterpret_cast<const std::byte*>(inner);
  pool.run(static_cast<int64_t>(runs_.size()) * num_tiles, [&](int64_t task, int) {
    const Run& run = runs_[task / num_tiles];
    const int64_t tile = task % num_tiles;
    if (tile % tiles_of_part * kTile >= pairs_.ranks[run.slot]) return;
    const int block = run.row / kBlockRows;
    const Number* down = reinterpret_cast<const Number*>(pairs_.down + run.slot * pairs_.down_stride);
    prefetch_first(run.slot, tile);
    const Number* rows = reinterpret_cast<const Number*>(x.values(pairs_.numbers, block)) + run.row % kBlockRows * kGroup;
    with_count(run.count, [&](auto count) {
      multiply_down<decltype(count)::value>(down + tile * pairs_.num_inputs * kTile, rows, x.rows_of(block), x.num_groups(),
                                            adapters + run.row, inner + run.row * num_columns + tile * kTile, num_columns);
    });
  });
}

void AdapterSums::compute_of_bytes(Pool& pool, const PackedRows& x, const RowAdapter* adapters) {
  const int64_t num_columns = pairs_.num_parts * pairs_.rank, tiles_of_part = pairs_.rank / kTile;
  const int64_t num_tiles = pairs_.num_parts * tiles_of_part;
  const int64_t tile_size = (1 + pairs_.num_inputs / 4) * kBytesPerVector;
  int8_t* inner = memory_.take<int8_t>(static_cast<size_t>(x.num_rows() * num_columns));
  float* scales = scales_memory_.take<float>(static_cast<size_t>(x.num_rows() * num_tiles));
  int32_t* zero_sums = zeros_memory_.take<int32_t>(static_cast<size_t>(x.num_rows() * num_tiles));
  inner_ = reinterpret_cast<const std::byte*>(inner);
  inner_scales_ = scales;
  inner_zeros_ = zero_sums;
  pool.run(static_cast<int64_t>(runs_.size()) * num_tiles, [&](int64_t task, int) {
    const Run& run = runs_[task / num_tiles];
    const int64_t tile = task % num_tiles;
    if (tile % tiles_of_part * kTile >= pairs_.ranks[run.slot]) return;
    const uint8_t* down = reinterpret_cast<const uint8_t*>(pairs_.down + run.slot * pairs_.down_stride) + tile * tile_size;
    prefetch_first(run.slot, tile);
    InnerBytes to[kMostRows];
    for (int row = 0; row < run.count; ++row) {
      const int64_t of_step = run.row + row, at = of_step * num_tiles + tile;
      to[row] = {inner + of_step * num_columns + tile * kTile, scales + at, zero_sums + at};
    }
    with_count(run.count, [&](auto count) {
      multiply_down_bytes<decltype(count)::value>(down, x, run.row, adapters + run.row, to);
    });
  });
}

void AdapterSums::compute(Pool& pool, const PackedRows& x, const LowRank& pairs, const RowAdapter* adapters) {
  pairs_ = pairs;
  find_runs(x.num_rows(), adapters);
  if (pairs.numbers == Activations::kInt8) return compute_of_bytes(pool, x, adapters);
  if (pairs.numbers == Activations::kFloat32) return compute_of<float>(pool, x, adapters);
  compute_of<uint16_t>(pool, x, adapters);
}

int64_t AdapterSums::part_of(int64_t tile) const {
  int64_t part = 0;
  while (pairs_.ends[part] <= tile * kTile) ++part;
  return part;
}

int64_t AdapterSums::up_tile_bytes() const {
  if (pairs_.numbers == Activations::kInt8) return (1 + pairs_.rank / 4) * kBytesPerVector;
  return pairs_.rank * kTile * (pairs_.numbers == Activations::kFloat32 ? 4 : 2);
}

template <class Body>
void AdapterSums::for_each_run(int64_t tile, int count, int first_row, int num_rows, const Body& body) const {
  const size_t begin = first_runs_[first_row / kBlockRows];
  const size_t end = first_runs_[(first_row + num_rows + kBlockRows - 1) / kBlockRows];
  for (size_t i = begin; i < end; ++i) {
    if (i + 1 < runs_.size()) prefetch_up<true>(runs_[i + 1].slot, tile, tile + count);
    body(runs_[i]);
  }
}

template <class Number>
void AdapterSums::add_of(int64_t tile, int count, int first_row, int num_rows, float* totals, size_t between) const {
  const int64_t num_columns = pairs_.num_parts * pairs_.rank, tile_size = pairs_.rank * kTile;
  const Number* inner = reinterpret_cast<const Number*>(inner_) + part_of(tile) * pairs_.rank;
  for_each_run(tile, count, first_row, num_rows, [&](const Run& run) {
    const Number* up = reinterpret_cast<const Number*>(pairs_.up + run.slot * pairs_.up_stride) + tile * tile_size;
    // What lies behind the adapter's rank is 0, up to that of all.
    const int64_t rank = pairs_.ranks[run.slot], step = kChains * kPerLane<Number>;
    const int64_t num_vectors = (rank + step - 1) / step * kChains;
    with_count(run.count, [&](auto rows) {
      for (int t = 0; t < count; ++t) {
        multiply_up<decltype(rows)::value>(up + t * tile_size, inner + run.row * num_columns, num_columns, num_vectors,
                                           totals + t * between + (run.row - first_row) * kTile);
      }
    });
  });
}

void AdapterSums::add_of_bytes(int64_t tile, int count, int first_row, int num_rows, float* totals, size_t between) const {
  const int64_t num_columns = pairs_.num_parts * pairs_.rank, tiles_of_row = num_columns / kTile;
  const int64_t tile_size = up_tile_bytes(), first_column = part_of(tile) * pairs_.rank;
  const int8_t* inner = reinterpret_cast<const int8_t*>(inner_) + first_column;
  for_each_run(tile, count, first_row, num_rows, [&](const Run& run) {
    const uint8_t* up = reinterpret_cast<const uint8_t*>(pairs_.up + run.slot * pairs_.up_stride) + tile * tile_size;
    const int64_t num_tiles = (pairs_.ranks[run.slot] + kTile - 1) / kTile;
    const int64_t at = run.row * tiles_of_row + first_column / kTile;
    with_count(run.count, [&](auto rows) {
      multiply_up_bytes<decltype(rows)::value>(up, tile_size, count, inner + run.row * num_columns, inner_scales_ + at,
                                               inner_zeros_ + at, num_columns, num_tiles,
                                               totals + (run.row - first_row) * kTile, between);
    });
  });
}

void AdapterSums::add(int64_t tile, int count, int first_row, int num_rows, float* totals, size_t between) const {
  // Neighbouring tiles may be of different parts.
  for (int done = 0, some; done < count; done += some) {
    const int64_t first = tile + done;
    some = static_cast<int>(std::min<int64_t>(count - done, pairs_.ends[part_of(first)] / kTile - first));
    float* const to = totals + done * between;
    if (pairs_.numbers == Activations::kInt8) {
      add_of_bytes(first, some, first_row, num_rows, to, between);
    } else if (pairs_.numbers == Activations::kFloat32) {
      add_of<float>(first, some, first_row, num_rows, to, between);
    } else {
      add_of<uint16_t>(first, some, first_row, num_rows, to, between);
    }
  }
}

void AdapterSums::prefetch(int64_t begin, int64_t end) const {
  const int64_t num_tiles = pairs_.ends[pairs_.num_parts - 1] / kTile;
  for (const int32_t slot : slots_) prefetch_up<false>(slot, begin + kTilesAhead, std::min(end + kTilesAhead, num_tiles));
}

}  // namespace eagre
