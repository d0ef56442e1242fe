#include "products/low_rank.h"

#include <type_traits>

#include "isa/isa.h"

namespace eagre {
namespace {

constexpr int kChains = 2;  // of sums, so that one need not wait for the last
// What is read so far ahead is asked for early: each matrix is short, and the processor's own guesses end with its pages.
constexpr int64_t kVectorsAhead = 32;
constexpr int64_t kTilesAhead = 4;  // of outputs, whose sums begin before the weights of the first are multiplied
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
  for (int row = 0; row < num_rows; ++row) {
    if (row % kBlockRows == 0) first_runs_.push_back(runs_.size());
    const int32_t slot = adapters[row].slot;
    if (slot < 0 || pairs_.ranks[slot] == 0) continue;
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
    const Number* rows = reinterpret_cast<const Number*>(x.values(pairs_.numbers, block)) + run.row % kBlockRows * kGroup;
    with_count(run.count, [&](auto count) {
      multiply_down<decltype(count)::value>(down + tile * pairs_.num_inputs * kTile, rows, x.rows_of(block), x.num_groups(),
                                            adapters + run.row, inner + run.row * num_columns + tile * kTile, num_columns);
    });
  });
}

void AdapterSums::compute(Pool& pool, const PackedRows& x, const LowRank& pairs, const RowAdapter* adapters) {
  pairs_ = pairs;
  find_runs(x.num_rows(), adapters);
  if (pairs.numbers == Activations::kFloat32) return compute_of<float>(pool, x, adapters);
  compute_of<uint16_t>(pool, x, adapters);
}

template <class Number>
void AdapterSums::add_of(int64_t tile, int first_row, int num_rows, float* totals) const {
  const int64_t num_columns = pairs_.num_parts * pairs_.rank, tile_size = pairs_.rank * kTile;
  int64_t part = 0;
  while (pairs_.ends[part] <= tile * kTile) ++part;
  const Number* inner = reinterpret_cast<const Number*>(inner_) + part * pairs_.rank;
  const size_t begin = first_runs_[first_row / kBlockRows];
  const size_t end = first_runs_[(first_row + num_rows + kBlockRows - 1) / kBlockRows];
  for (size_t i = begin; i < end; ++i) {
    const Run& run = runs_[i];
    const Number* up = reinterpret_cast<const Number*>(pairs_.up + run.slot * pairs_.up_stride) + tile * tile_size;
    // What lies behind the adapter's rank is 0, up to that of all.
    const int64_t rank = pairs_.ranks[run.slot], step = kChains * kPerLane<Number>;
    const int64_t num_vectors = (rank + step - 1) / step * kChains;
    if (i == begin || run.slot != runs_[i - 1].slot) {
      for (int64_t v = 0; v < num_vectors; ++v) prefetch_later(up + kTilesAhead * tile_size + v * kPerVector<Number>);
    }
    with_count(run.count, [&](auto count) {
      multiply_up<decltype(count)::value>(up, inner + run.row * num_columns, num_columns, num_vectors,
                                          totals + (run.row - first_row) * kTile);
    });
  }
}

void AdapterSums::add(int64_t tile, int first_row, int num_rows, float* totals) const {
  if (pairs_.numbers == Activations::kFloat32) return add_of<float>(tile, first_row, num_rows, totals);
  add_of<uint16_t>(tile, first_row, num_rows, totals);
}

}  // namespace eagre
