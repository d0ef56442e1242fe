#include "nodes/thread_nodes.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>

#include "nodes/system_file.h"

namespace eagre {
namespace {

constexpr int kMostThreads = 1024;

// Cores' worth of time that a container's control group (version 2) grants, or 0 where it sets no limit.
int granted_cores() {
#ifdef __linux__
  const std::string limit = read_system_file("/sys/fs/cgroup/cpu.max");  // "200000 100000", or "max 100000"
  char* behind;
  const double quota = std::strtod(limit.c_str(), &behind), period = std::strtod(behind, nullptr);
  if (quota > 0 && period > 0) return std::max(1, static_cast<int>(quota / period));
#endif
  return 0;
}

int default_num_threads(const Topology& topology) {
  if (const char* text = std::getenv("EAGRE_THREADS")) {
    if (const int wanted = wanted_threads(text); wanted > 0) return wanted;
  }
  int cores = static_cast<int>(topology.size());
  if (const int granted = granted_cores(); granted > 0) cores = std::min(cores, granted);
  return std::clamp(cores > 0 ? cores : static_cast<int>(std::thread::hardware_concurrency()), 1, kMostThreads);
}

}  // namespace

int wanted_threads(const char* text) {
  char* behind;
  const long wanted = std::strtol(text, &behind, 10);  // the largest number there is, where the text has a larger one
  if (behind == text || *behind != '\0' || wanted < 1) return 0;
  return static_cast<int>(std::min<long>(wanted, kMostThreads));
}

ThreadNodes::ThreadNodes(int num_threads, const Topology& topology) : num_threads_(std::max(1, num_threads)) {
  const int64_t num_cores = static_cast<int64_t>(topology.size());
  for (int thread = 0; thread < num_threads_; ++thread) {
    const int node = num_cores == 0 ? 0 : topology[thread * num_cores / num_threads_].node;
    if (nodes_.empty() || nodes_.back().number != node) nodes_.push_back({node, thread, thread, {}});
    ++nodes_.back().end;
  }
  for (Node& node : nodes_) {
    for (const Core& core : topology) {
      if (core.node != node.number) continue;
      node.processors.insert(node.processors.end(), core.processors.begin(), core.processors.end());
    }
  }
}

const ThreadNodes& ThreadNodes::shared() {
  static const ThreadNodes& nodes = *new ThreadNodes([] {  // never destroyed, as the pool
    const Topology topology = own_topology();
    return ThreadNodes(default_num_threads(topology), topology);
  }());
  return nodes;
}

}  // namespace eagre
