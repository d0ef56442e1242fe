// Which memory node each thread of a pool is of.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "nodes/topology.h"

namespace eagre {

// What EAGRE_THREADS says, 1,024 at most, or 0 where it is no whole number from 1.
int wanted_threads(const char* text);

// Threads in the order of nodes, each node with as many of them as it has of the cores, so that their memory's bandwidths
// are used in proportion. Neighbouring tasks, of which a thread has a share, are then of neighbouring threads of one node,
// and what a thread reads in every step may lie there (nodes/node_memory.h).
class ThreadNodes {
 public:
  // Without a topology all threads are of one node.
  explicit ThreadNodes(int num_threads, const Topology& topology = {});

  // Those of this process's pool: as many threads as cores that it may use, or EAGRE_THREADS of them.
  static const ThreadNodes& shared();

  struct Node {
    int number;                   // the system's
    int first, end;               // its threads, at least one
    std::vector<int> processors;  // that the process may use
  };

  int num_threads() const { return num_threads_; }
  const std::vector<Node>& nodes() const { return nodes_; }
  bool are_several() const { return nodes_.size() > 1; }

  // Those of so many tasks or tiles, in order, with which the threads of a node begin.
  std::pair<int64_t, int64_t> share(int64_t num_tasks, const Node& node) const {
    return {num_tasks * node.first / num_threads_, num_tasks * node.end / num_threads_};
  }

 private:
  int num_threads_;
  std::vector<Node> nodes_;
};

}  // namespace eagre
