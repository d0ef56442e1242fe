// A token drawn from weights with one random number.
#pragma once

#include <cstdint>

namespace eagre {

// The token at which the running sum of a padded row's weights passes the share `uniform`, in [0, 1), of their total. A
// token of weight 0 is chosen only where there is no other.
int64_t draw(const float* weights, int64_t count, float uniform);

}  // namespace eagre
