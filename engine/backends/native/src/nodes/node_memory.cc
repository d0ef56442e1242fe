#include "nodes/node_memory.h"

#ifdef __linux__
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#endif

#include <algorithm>
#include <system_error>
#include <thread>
#include <vector>

namespace eagre {

std::vector<std::pair<int64_t, int64_t>> bytes_of(const ThreadNodes& threads, const ThreadNodes::Node& node,
                                                  const FreshTiles& tiles) {
  std::vector<std::pair<int64_t, int64_t>> bytes;
  if (tiles.num_results <= 0) return bytes;
  const auto [begin, end] = threads.share(tiles.num_results, node);
  for (int64_t half = 0; half < tiles.first + tiles.num_tiles; half += tiles.num_results) {
    const int64_t first = std::max(half + begin, tiles.first), last = std::min(half + end, tiles.first + tiles.num_tiles);
    if (first >= last) continue;
    const int64_t from = tiles.offset + (first - tiles.first) * tiles.stride;
    bytes.emplace_back(from, from + (last - first) * tiles.stride);
  }
  return bytes;
}

#ifdef __linux__
namespace {

constexpr int64_t kPage = 4096;  // bytes; of larger ones each is touched several times
constexpr int kDefault = 0, kInterleave = 3, kLocal = 4;  // policies of memory, as set_mempolicy(2) numbers them

void keep_to(const std::vector<int>& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int processor : processors) CPU_SET(processor, &set);
  sched_setaffinity(0, sizeof set, &set);  // where it is refused the thread touches from anywhere
}

}  // namespace

void touch_tiles(const ThreadNodes& threads, std::byte* array, int64_t num_bytes, const FreshTiles* tiles, int64_t count,
                 int per_node) {
  if (!threads.are_several()) return;
  std::vector<std::thread> touching;
  for (const ThreadNodes::Node& node : threads.nodes()) {
    for (int begin = 0; begin < per_node; ++begin) {
      const auto touch_some = [&, begin] {
        keep_to(node.processors);
        for (int64_t i = begin; i < count; i += per_node) {
          for (const auto& [from, to] : bytes_of(threads, node, tiles[i])) {
            for (int64_t at = from; at < std::min(to, num_bytes); at += kPage) {
              *static_cast<volatile std::byte*>(array + at) = std::byte{0};
            }
          }
        }
      };
      try {
        touching.emplace_back(touch_some);
      } catch (const std::system_error&) {
        break;  // the system grants no more threads: what is not touched here lies where it is packed
      }
    }
  }
  for (std::thread& thread : touching) thread.join();
}

int interleave(const ThreadNodes& threads, void* begin, size_t num_bytes) {
  if (!threads.are_several()) return 0;
  int policy = kDefault;
  if (syscall(SYS_get_mempolicy, &policy, nullptr, 0, nullptr, 0) != 0) return errno;
  if (policy != kDefault && policy != kLocal) return 0;
  constexpr int kBits = 8 * sizeof(unsigned long);
  unsigned long mask[1024 / kBits] = {};
  for (const ThreadNodes::Node& node : threads.nodes()) mask[node.number / kBits] |= 1ul << node.number % kBits;
  const unsigned long most = sizeof mask * 8;
  return syscall(SYS_mbind, begin, num_bytes, kInterleave, mask, most, 0) == 0 ? 0 : errno;
}

int interleave_error(const ThreadNodes& threads) {
  if (!threads.are_several()) return 0;
  void* const page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return errno;
  const int error = interleave(threads, page, kPage);
  munmap(page, kPage);
  return error;
}

#else

void touch_tiles(const ThreadNodes&, std::byte*, int64_t, const FreshTiles*, int64_t, int) {}
int interleave(const ThreadNodes&, void*, size_t) { return 0; }
int interleave_error(const ThreadNodes&) { return 0; }

#endif

}  // namespace eagre
