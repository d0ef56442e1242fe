// The cores that this process may use, and the memory nodes to which they belong.
#pragma once

#include <string>
#include <vector>

namespace eagre {

struct Core {
  int node;                     // the system's number of the memory node that is near to it
  std::vector<int> processors;  // its hardware threads that may be used; they share its vector units
};

// Cores in the order of their nodes, and those of a node in the order of their processors.
using Topology = std::vector<Core>;

// Of the processors of these numbers, as a folder laid out as Linux's /sys/devices/system tells. A processor of which it
// tells nothing is a core by itself, of node 0.
Topology read_topology(const std::string& folder, const std::vector<int>& processors);

// Of this process's own processors, where the system tells which they are; empty elsewhere. EAGRE_TOPOLOGY_FOLDER names
// another folder, with which tests play machines that they do not have.
Topology own_topology();

}  // namespace eagre
