#include "products/experts.h"

#include <algorithm>
#include <numeric>

#include "isa/isa.h"
#include "layout/packed_rows.h"
#include "products/product.h"
#include "runtime/scratch.h"
#include "tiles/tile_kernel.h"

namespace eagre {
namespace {

// Experts are computed in waves, in the order of their numbers, so that the rows between the products stay few.
constexpr int kWaveExperts = 16;
constexpr int kWavePairs = 1024;
constexpr int64_t kColumns = 256;  // that one task adds up

// The pairs of a token and an expert that it picks, sorted by expert.
struct Pairs {
  std::vector<int32_t> starts;  // [experts + 1]
  std::vector<int32_t> tokens;
  std::vector<float> shares;

  void sort(const ExpertRows& rows, size_t num_experts) {
    starts.assign(num_experts + 1, 0);
    for (int32_t token : rows.tokens) {
      for (int i = 0; i < rows.num_picked; ++i) ++starts[rows.picks[int64_t{token} * rows.num_picked + i] + 1];
    }
    std::partial_sum(starts.begin(), starts.end(), starts.begin());
    tokens.resize(starts.back());
    shares.resize(starts.back());
    std::vector<int32_t> next(starts.begin(), starts.end() - 1);
    for (int32_t token : rows.tokens) {
      for (int i = 0; i < rows.num_picked; ++i) {
        const int64_t from = int64_t{token} * rows.num_picked + i;
        const int32_t at = next[rows.picks[from]]++;
        tokens[at] = token;
        shares[at] = rows.shares[from];
      }
    }
  }

  int count(int expert) const { return starts[expert + 1] - starts[expert]; }
};

// What is kept from call to call; the caller holds the pool.
struct Memory {
  Pairs pairs;
  RowPacker packed[kWaveExperts];
  Scratch inner, results, unpacked, totals;
  std::vector<int32_t> order;  // 0, 1, 2, ...: rows of a wave go where they came from
};

// Some tiles of one expert's product.
struct Task {
  int slot;
  int64_t begin, end;
};

// Some rows of one expert, to be packed.
struct PackTask {
  int slot, task;
};

class Wave {
 public:
  Wave(Pool& pool, const ExpertRows& rows, Memory& memory) : pool_(pool), rows_(rows), memory_(memory) {}

  bool is_full() const { return num_experts_ == kWaveExperts || num_pairs_ >= kWavePairs; }
  bool is_empty() const { return num_experts_ == 0; }

  void take(int number, const Expert& expert) {
    if (is_empty()) first_pair_ = memory_.pairs.starts[number];
    experts_[num_experts_] = &expert;
    starts_[num_experts_++] = num_pairs_;
    num_pairs_ += memory_.pairs.count(number);
    starts_[num_experts_] = num_pairs_;
  }

  void run() {
    float* inner = memory_.inner.take<float>(num_pairs_ * rows_.inner);
    float* results = memory_.results.take<float>(num_pairs_ * rows_.hidden);
    for (int32_t i = static_cast<int32_t>(memory_.order.size()); i < num_pairs_; ++i) memory_.order.push_back(i);
    const int32_t* const tokens = memory_.pairs.tokens.data() + first_pair_;
    pack(&Expert::gate_up, rows_.x, [&](int slot) { return tokens + starts_[slot]; }, [](int64_t) {});
    multiply(&Expert::gate_up, &Expert::gate_up_bias, inner, rows_.inner, rows_.finish, rows_.is_gated);
    // A share may multiply what goes into a product as well as what comes out of it.
    const auto multiply_by_share = [&](int64_t pair) {
      const Floats share = broadcast(memory_.pairs.shares[first_pair_ + pair]);
      float* row = inner + pair * rows_.inner;
      for (int64_t i = 0; i < rows_.inner; i += kTile) store(row + i, mul(load(row + i), share));
    };
    pack(&Expert::down, inner, [&](int slot) { return order(slot); }, multiply_by_share);
    multiply(&Expert::down, nullptr, results, rows_.hidden, Finish::kNone, false);
    add_up(results);
    num_experts_ = 0;
    num_pairs_ = 0;
  }

 private:
  int num_rows(int slot) const { return static_cast<int>(starts_[slot + 1] - starts_[slot]); }
  const int32_t* order(int slot) const { return memory_.order.data() + starts_[slot]; }

  // Packs the rows of all experts of the wave for one of their matrices: of a slot's expert those of `values` that
  // index_of(slot) names. Its pairs are given to `prepare` before, one by one.
  template <class IndexOf, class Prepare>
  void pack(Matrix Expert::*matrix, const float* values, const IndexOf& index_of, const Prepare& prepare) {
    pack_tasks_.clear();
    int64_t num_groups = 0;
    for (int i = 0; i < num_experts_; ++i) {
      RowPacker& packed = memory_.packed[i];
      packed.begin(pool_.num_threads(), {values, index_of(i), num_rows(i), {}}, experts_[i]->*matrix);
      num_groups += int64_t{1} * packed.num_rows() * packed.num_groups();
      for (int task = 0; task < packed.num_tasks(); ++task) pack_tasks_.push_back({i, task});
    }
    const auto pack_one = [&](int64_t index, int thread) {
      const auto [slot, task] = pack_tasks_[index];
      const int64_t first = starts_[slot] + task * RowPacker::kRowsAtOnce;
      const int64_t end = std::min<int64_t>(first + RowPacker::kRowsAtOnce, starts_[slot + 1]);
      for (int64_t pair = first; pair < end; ++pair) prepare(pair);
      memory_.packed[slot].pack_task(task, thread);
    };
    const int64_t num_tasks = static_cast<int64_t>(pack_tasks_.size());
    if (num_groups <= RowPacker::kGroupsInline) {
      for (int64_t index = 0; index < num_tasks; ++index) pack_one(index, 0);
    } else {
      pool_.run(num_tasks, pack_one);
    }
    for (int i = 0; i < num_experts_; ++i) memory_.packed[i].end();
  }

  // One product of all experts of the wave, whose rows have been packed.
  void multiply(Matrix Expert::*matrix, const float* Expert::*biases, float* values, int64_t num_outputs, Finish finish,
                bool is_gated) {
    tasks_.clear();
    size_t largest = 0;
    for (int i = 0; i < num_experts_; ++i) {
      count_product(experts_[i]->*matrix, num_rows(i));
      largest = std::max(largest, totals_size(memory_.packed[i]));
    }
    // What lies on a memory node, of all experts, comes together, as the threads of that node do.
    for (const ThreadNodes::Node& node : pool_.nodes().nodes()) {
      for (int i = 0; i < num_experts_; ++i) {
        const auto [first, end] = pool_.nodes().share((experts_[i]->*matrix).num_tiles / (is_gated ? 2 : 1), node);
        for (int64_t begin = first; begin < end; begin += kStoredTiles) {
          tasks_.push_back({i, begin, std::min(end, begin + kStoredTiles)});
        }
      }
    }
    const int threads = pool_.num_threads();
    UnpackedGroup* unpacked = memory_.unpacked.take<UnpackedGroup>(size_t{1} * threads * kChunkGroups);
    float* totals = memory_.totals.take<float>(threads * largest);
    pool_.run(static_cast<int64_t>(tasks_.size()), [&](int64_t index, int thread) {
      const Task& task = tasks_[index];
      const float* const bias = biases == nullptr ? nullptr : experts_[task.slot]->*biases;
      const Output y{values, order(task.slot), num_outputs, bias, finish, rows_.scale, rows_.softcap, is_gated, nullptr};
      multiply_tiles(memory_.packed[task.slot], experts_[task.slot]->*matrix, y, task.begin, task.end,
                     unpacked + thread * kChunkGroups, totals + thread * largest);
    });
  }

  // Pairs are in the order of experts, and so is each token's sum. The results have their shares already, biases do not.
  void add_up(const float* results) {
    pool_.run((rows_.hidden + kColumns - 1) / kColumns, [&](int64_t task, int) {
      const int64_t begin = task * kColumns, end = std::min(rows_.hidden, begin + kColumns);
      for (int slot = 0; slot < num_experts_; ++slot) {
        const float* const bias = experts_[slot]->down_bias;
        for (int64_t pair = starts_[slot]; pair < starts_[slot + 1]; ++pair) {
          float* to = rows_.y + memory_.pairs.tokens[first_pair_ + pair] * rows_.hidden;
          const float* from = results + pair * rows_.hidden;
          const Floats share = broadcast(memory_.pairs.shares[first_pair_ + pair]);
          for (int64_t i = begin; i < end; i += kTile) {
            Floats result = load(from + i);
            if (bias != nullptr) result = fma(load(bias + i), share, result);
            store(to + i, add(result, load(to + i)));
          }
        }
      }
    });
  }

  Pool& pool_;
  const ExpertRows& rows_;
  Memory& memory_;
  const Expert* experts_[kWaveExperts] = {};
  int num_experts_ = 0;
  int64_t starts_[kWaveExperts + 1] = {};  // of each expert's pairs, in the wave
  int64_t first_pair_ = 0, num_pairs_ = 0;
  std::vector<Task> tasks_;
  std::vector<PackTask> pack_tasks_;
};

}  // namespace

void add_experts(Pool& pool, const ExpertRows& rows, const std::vector<Expert>& experts) {
  static Memory& memory = *new Memory;  // the caller holds the pool
  memory.pairs.sort(rows, experts.size());
  Wave wave(pool, rows, memory);
  for (size_t number = 0; number < experts.size(); ++number) {
    if (memory.pairs.count(static_cast<int>(number)) == 0) continue;
    wave.take(static_cast<int>(number), experts[number]);
    if (wave.is_full()) wave.run();
  }
  if (!wave.is_empty()) wave.run();
}

}  // namespace eagre
