// The rows of a step as recurrent layers read them, and the sequences that they belong to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace eagre {

// A row of a step, with the entries of its states.
struct RecurrentRow {
  int32_t first_token;  // among the step's tokens
  int32_t num_tokens;
  int32_t start;  // position in the sequence; at 0 the states are zeros
  int32_t slot;   // the entry of its states
  int32_t load;   // the entry to begin with, instead; 0: none
  int32_t save;   // the entry that gets a copy; 0: none
  int32_t num_before_save;  // tokens of the row
};

// The rows of one slot, from the first to the end.
struct Sequence {
  size_t first, end;
};

// Rows of one slot stand behind one another, in the order of the text. The caller holds the pool.
inline const std::vector<Sequence>& sequences_of(const std::vector<RecurrentRow>& rows) {
  static std::vector<Sequence>& sequences = *new std::vector<Sequence>;
  sequences.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i > 0 && rows[i].slot == rows[i - 1].slot) {
      sequences.back().end = i + 1;
    } else {
      sequences.push_back({i, i + 1});
    }
  }
  return sequences;
}

}  // namespace eagre
