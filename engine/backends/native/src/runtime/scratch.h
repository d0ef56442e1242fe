// Memory that a kernel keeps from call to call.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace eagre {

// The memory is aligned to a cache line. It grows and never shrinks, and its contents are lost when it grows. Static
// objects of this class are never destroyed, because a thread of the runtime may still be inside a kernel at exit.
class Scratch {
 public:
  template <class T>
  T* take(size_t count) {
    const size_t wanted = (count * sizeof(T) + kLine - 1) / kLine * kLine;
    if (wanted > size_) {
      memory_.reset();
      size_ = 0;
      memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kLine, wanted)));
      if (memory_ == nullptr) throw std::bad_alloc();
      size_ = wanted;
    }
    return reinterpret_cast<T*>(memory_.get());
  }

 private:
  static constexpr size_t kLine = 64;
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t size_ = 0;
};

}  // namespace eagre
