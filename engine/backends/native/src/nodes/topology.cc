#include "nodes/topology.h"

#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "nodes/system_file.h"

namespace eagre {
namespace {

constexpr int kMostNodes = 1024;  // as many as any Linux has

// A file with a list such as "0-3,8", as pairs of first and last.
std::vector<std::pair<int, int>> read_ranges(const std::string& path) {
  std::vector<std::pair<int, int>> ranges;
  const std::string text = read_system_file(path);
  for (const char* at = text.c_str();;) {
    char* behind;
    const long first = std::strtol(at, &behind, 10);
    if (behind == at) return ranges;
    long last = first;
    if (*behind == '-') {
      at = behind + 1;
      last = std::strtol(at, &behind, 10);
      if (behind == at) return ranges;
    }
    ranges.emplace_back(static_cast<int>(first), static_cast<int>(last));
    if (*behind != ',') return ranges;
    at = behind + 1;
  }
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
    std::string siblings = read_system_file(folder + "/cpu/cpu" + number + "/topology/thread_siblings_list");
    if (siblings.empty()) siblings = number + "\n";  // where the system does not say, a core of its own
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
