// On which memory nodes the memory lies that every step reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "nodes/thread_nodes.h"

namespace eagre {

// Neighbouring tiles of a packed matrix whose memory nobody has touched yet.
struct FreshTiles {
  int64_t offset, stride;     // bytes: of the first tile in its array, and from tile to tile
  int64_t num_tiles;
  int64_t first;              // the number of the first of them in the matrix
  int64_t num_results;        // of a product, which tile i and tile i + num_results of a gated one make together
};

// The bytes of such tiles' array that the threads of a node read, from the first to the end, of a gated product's partners
// too.
std::vector<std::pair<int64_t, int64_t>> bytes_of(const ThreadNodes& threads, const ThreadNodes::Node& node,
                                                  const FreshTiles& tiles);

// Has threads on each node touch the tiles first that the pool's threads of that node multiply, so that the system takes
// their memory there. It needs no permission, as mbind does, keeps huge pages whole, whose first byte decides, and leaves
// it to the policy of numactl where there is one. Does nothing where all threads are of one node. `per_node`: threads.
void touch_tiles(const ThreadNodes& threads, std::byte* array, int64_t num_bytes, const FreshTiles* tiles, int64_t count,
                 int per_node);

// Has the system take memory that nobody has touched from all nodes of the threads in turn: what any thread may read.
// A policy of the process, such as numactl's, stays. Returns 0, or the error's number where the system refuses; does
// nothing where all threads are of one node.
int interleave(const ThreadNodes& threads, void* begin, size_t num_bytes);

// What `interleave` would return.
int interleave_error(const ThreadNodes& threads);

}  // namespace eagre
