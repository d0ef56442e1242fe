// Short files in which the system tells of itself.
#pragma once

#include <cstdio>
#include <string>

namespace eagre {

// The text of such a file, or nothing where it cannot be read. The streams of C++ would not do: a library that brings its own
// of them, as those of a wheel do, cannot read numbers by them in a process that has others.
inline std::string read_system_file(const std::string& path) {
  std::string text;
  if (std::FILE* const file = std::fopen(path.c_str(), "r")) {
    char some[4096];
    for (size_t count; (count = std::fread(some, 1, sizeof some, file)) > 0;) text.append(some, count);
    std::fclose(file);
  }
  return text;
}

}  // namespace eagre
