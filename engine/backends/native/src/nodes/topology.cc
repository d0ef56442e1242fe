#include "nodes/topology.h"

#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <utility>

namespace eagre {
namespace {

constexpr int kMostNodes = 1024;  // as many as any Linux has

// A file with a list such as "0-3,8", as pairs of first and last.
std::vector<std::pair<int, int>> read_ranges(const std::string& path) {
  std::vector<std::pair<int, int>> ranges;
  std::ifstream file(path);
  int first;
  while (file >> first) {
    int last = first;
    if (file.peek() == '-') {
      file.get();
      if (!(file >> last)) break;
    }
    ranges.emplace_back(first, last);
    if (file.peek() == ',') file.get();
  }
  return ranges;
}

// The node of each processor that belongs to one.
std::map<int, int> read_nodes(const std::string& folder, const std::vector<int>& processors) {
  std::map<int, int> nodes;
  for (const auto& [first_node, last_node] : read_ranges(folder + "/online")) {
    for (int node = std::max(0, first_node); node <= std::min(last_node, kMostNodes - 1); ++node) {
      for (const auto& [first, last] : read_ranges(folder + "/node" + std::to_string(node) + "/cpulist")) {
        for (const int processor : processors) {
          if (first <= processor && processor <= last) nodes.emplace(processor, node);
        }
      }
    }
  }
  return nodes;
}

}  // namespace

Topology read_topology(const std::string& folder, const std::vector<int>& processors) {
  const std::map<int, int> nodes = read_nodes(folder + "/node", processors);
  std::map<std::pair<int, std::string>, Core> cores;
  for (const int processor : processors) {
    const std::string number = std::to_string(processor);
    std::string siblings = number;  // where the system does not say, a core of its own
    std::ifstream(folder + "/cpu/cpu" + number + "/topology/thread_siblings_list") >> siblings;
    const auto found = nodes.find(processor);
    const int node = found == nodes.end() ? 0 : found->second;
    Core& core = cores[{node, siblings}];
    core.node = node;
    core.processors.push_back(processor);
  }
  Topology topology;
  for (auto& [key, core] : cores) topology.push_back(std::move(core));
  std::sort(topology.begin(), topology.end(), [](const Core& a, const Core& b) {
    return std::pair(a.node, a.processors[0]) < std::pair(b.node, b.processors[0]);
  });
  return topology;
}

#ifdef __linux__

Topology own_topology() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return {};
  std::vector<int> processors;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &set)) processors.push_back(processor);
  }
  const char* folder = std::getenv("EAGRE_TOPOLOGY_FOLDER");
  return read_topology(folder == nullptr ? "/sys/devices/system" : folder, processors);
}

#else

Topology own_topology() { return {}; }

#endif

}  // namespace eagre
