// Encodings whose numbers are entries of a grid: a word of a row is the index of several neighbouring numbers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "packing/encoding.h"

namespace eagre {

// The grid of an encoding, which is no part of these sources: int8[entries][numbers of an entry], magnitudes or, of IQ1_S
// and IQ1_M, -1, 0 and 1. It is copied. Returns false where the encoding has none, or one of another size.
bool take_grid(Encoding encoding, const int8_t* grid, int64_t num_bytes);

// The decoder of an encoding with a grid; null for another encoding, or where its grid has not been taken.
Decode grid_decoder_of(Encoding encoding);

}  // namespace eagre
