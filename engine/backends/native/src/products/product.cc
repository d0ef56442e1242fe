#include "products/product.h"

#include <algorithm>
#include <cstring>

#include "isa/isa.h"
#include "runtime/kernel_clock.h"
#include "runtime/scratch.h"
#include "runtime/next_matrix_predictor.h"
#include "tiles/tile_kernel.h"

namespace eagre {
namespace {

constexpr int64_t kBytesAhead = 128 << 10;  // of the next product, for each thread; a part of its second cache
constexpr int kLeastBlocksOfPart = 4;       // of rows, because each part reads all weights once more
constexpr size_t kBytesOfPart = 256 << 10;  // of rows, for which all weights are read again
constexpr int kTilesAtOnce = 2;             // some kernels multiply so many together
constexpr int kTasksPerThread = 8;          // enough that a thread that the system puts aside is not waited for long

// What the sums of a tile begin with: the biases of its outputs, from `first` on.
void start_totals(const PackedRows& x, const Output& y, const float* bias, int64_t first, float* totals) {
  const int num_blocks = x.num_blocks(), padded = (num_blocks - 1) * kBlockRows + x.rows_of(num_blocks - 1);
  const int64_t width = std::min<int64_t>(kTile, y.num_outputs - first);  // the last tile may reach beyond the outputs
  if (bias == nullptr) {
    std::memset(totals, 0, sizeof(float) * kTile * padded);
  } else {
    float of_tile[kTile] = {};
    std::copy_n(bias + first, width, of_tile);
    for (int row = 0; row < padded; ++row) store(totals + row * kTile, load(of_tile));
  }
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
      if (partners != nullptr) value = mul(value, finish_partner<F>(load(partners + from), y.softcap));
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
    case Finish::kRelu: return store_tiles<Finish::kRelu>;
    case Finish::kReluSquared: return store_tiles<Finish::kReluSquared>;
    case Finish::kQuickGelu: return store_tiles<Finish::kQuickGelu>;
    case Finish::kClamped: return store_tiles<Finish::kClamped>;
    case Finish::kLimited: return store_tiles<Finish::kLimited>;
    case Finish::kScaled: return store_tiles<Finish::kScaled>;
    case Finish::kCapped: return store_tiles<Finish::kCapped>;
  }
  return store_tiles<Finish::kNone>;
}

// Starts and adds the sums of neighbouring tiles of results, from `first` on, which `to_weights` tiles of weights precede.
// Neighbours may belong to different parts.
void sum_tiles(const PackedRows& x, const Matrix& weights, const Output& y, const float* bias, int64_t first, int count,
               int64_t to_weights, UnpackedGroup* unpacked, float* totals, size_t of_tile) {
  for (int i = 0; i < count; ++i) {
    start_totals(x, y, bias, (first + i) * kTile, totals + i * of_tile);
  }
  if (y.adapted != nullptr) y.adapted->add(to_weights + first, count, y.first_row, x.num_rows(), totals, of_tile);
  for (int done = 0, some; done < count; done += some) {
    int64_t tile = to_weights + first + done;
    const MatrixPart& part = weights.part_of(tile);
    some = static_cast<int>(std::min<int64_t>(count - done, part.num_tiles - tile));
    if (y.adapted != nullptr) {  // while the weights are multiplied memory rests, so that it is asked a little at a time
      some = std::min(some, kTilesAtOnce);
      if (y.first_row == 0) y.adapted->prefetch(to_weights + first + done, to_weights + first + done + some);
    }
    accumulate_tiles(x, part, tile, some, unpacked, totals + done * of_tile, of_tile);
  }
}

// What is read first of the tiles from `first` to `end`, and of as many that lie `to_partners` tiles behind them, where
// that is not 0.
Prefetch beginning(const Matrix& weights, int64_t first, int64_t end, int64_t to_partners) {
  Prefetch ahead;
  if (first >= end) return ahead;
  int64_t own = first, partner = first + to_partners;
  const MatrixPart& part = weights.part_of(own);
  const auto bytes_of = [](const MatrixPart& part, int64_t tile) {
    return reinterpret_cast<const uint8_t*>(part.tile(tile));
  };
  const uint8_t* stretches[Prefetch::kStretches] = {bytes_of(part, own)};
  if (to_partners > 0) {
    const MatrixPart& other = weights.part_of(partner);
    stretches[1] = bytes_of(other, partner);
  }
  ahead.begin(stretches, std::min((end - first) * part.stride, kBytesAhead / (to_partners > 0 ? 2 : 1)));
  return ahead;
}

}  // namespace

size_t totals_size(const PackedRows& x) { return size_t{2} * kStoredTiles * x.num_blocks() * kBlockRows * kTile; }

void multiply_tiles(const PackedRows& x, const Matrix& weights, const Output& y, int64_t begin, int64_t end,
                    UnpackedGroup* unpacked, float* totals) {
  const size_t of_tile = size_t{1} * x.num_blocks() * kBlockRows * kTile;
  const float* partner_bias = y.bias == nullptr ? nullptr : y.bias + y.num_outputs;
  const int64_t num_results = weights.num_tiles / (y.is_gated ? 2 : 1);
  const StoreTiles store_results = store_tiles_of(y.finish);
  float* partners = totals + kStoredTiles * of_tile;
  for (int64_t first = begin; first < end; first += kStoredTiles) {
    const int count = static_cast<int>(std::min<int64_t>(kStoredTiles, end - first));
    sum_tiles(x, weights, y, y.bias, first, count, 0, unpacked, totals, of_tile);
    if (y.is_gated) {
      sum_tiles(x, weights, y, partner_bias, first, count, num_results, unpacked, partners, of_tile);
    }
    store_results(x, y, first, count, of_tile, totals, y.is_gated ? partners : nullptr);
  }
}

void multiply(Pool& pool, const PackedRows& x, const Matrix& weights, const Output& y) {
  static Scratch& unpacked_memory = *new Scratch;  // the caller holds the pool
  static Scratch& totals_memory = *new Scratch;
  const int threads = pool.num_threads();
  UnpackedGroup* unpacked = unpacked_memory.take<UnpackedGroup>(size_t{1} * threads * kChunkGroups);
  float* totals = totals_memory.take<float>(threads * totals_size(x));
  const int64_t num_results = weights.num_tiles / (y.is_gated ? 2 : 1);
  if (num_results == 0) return;
  // Many rows are cut into parts, at least as many as there are threads, whose tasks are neighbours. So a thread multiplies
  // about the rows that it has packed, and what it reads and writes of a part lies in its own second cache.
  const size_t block_bytes = group_bytes(weights.parts[0].activations) * x.num_groups() * kBlockRows;
  int64_t num_parts = std::clamp(x.num_blocks() / kLeastBlocksOfPart, 1, threads);
  if (weights.parts[0].activations != Activations::kInt8) {  // a group of integers is unpacked for many rows
    const int most_blocks = std::max(kLeastBlocksOfPart, static_cast<int>(kBytesOfPart / block_bytes));
    num_parts = std::max<int64_t>(num_parts, (x.num_blocks() + most_blocks - 1) / most_blocks);
  }
  const int64_t fair = num_results * num_parts / (threads * kTasksPerThread);
  // Pairs of tiles, because some kernels multiply two together.
  const int64_t per_task = fair >= kStoredTiles ? fair / kStoredTiles * kStoredTiles : fair >= 2 ? 2 : 1;
  const int64_t tasks_of_part = (num_results + per_task - 1) / per_task, num_tasks = num_parts * tasks_of_part;
  const auto begin_of = [&](int thread) {
    const auto [first_task, end_task] = Pool::share(num_tasks, threads, thread);
    const int64_t first = first_task % tasks_of_part * per_task;
    const int64_t end = std::min(num_results, first + (end_task - first_task) * per_task);
    return beginning(weights, first, end, y.is_gated ? num_results : 0);
  };
  static NextMatrixPredictor& predictor = *new NextMatrixPredictor;
  const Prefetch* next = predictor.predict(weights.parts[0].tiles, threads, begin_of);
  const auto multiply_part = [&](const PackedRows& rows, const Output& to, int64_t first, int thread) {
    multiply_tiles(rows, weights, to, first, std::min(num_results, first + per_task), unpacked + thread * kChunkGroups,
                   totals + thread * totals_size(x));
  };
  const auto multiply_task = [&](int64_t task, int thread) {
    if (num_parts == 1) return multiply_part(x, y, task * per_task, thread);
    const auto [first_block, end_block] = Pool::share(x.num_blocks(), num_parts, task / tasks_of_part);
    Output to = y;
    to.index += first_block * kBlockRows;
    to.first_row = static_cast<int>(first_block) * kBlockRows;
    const PackedRows rows = x.blocks(static_cast<int>(first_block), static_cast<int>(end_block));
    multiply_part(rows, to, task % tasks_of_part * per_task, thread);
  };
  pool.run(num_tasks, multiply_task, next);
}

void count_product(const Matrix& weights, int64_t num_rows) {
  if (!KernelClock::shared().is_running()) return;
  KernelWork& work = current_work();
  work.num_outputs = std::max(work.num_outputs, weights.num_tiles * kTile);
  work.num_inputs = std::max(work.num_inputs, int64_t{weights.num_groups} * kGroup);
  for (int i = 0; i < weights.num_parts; ++i) work.num_bytes += weights.parts[i].stride * weights.parts[i].num_tiles;
  work.num_operations += 2 * num_rows * weights.num_tiles * kTile * weights.num_groups * kGroup;
}

}  // namespace eagre
