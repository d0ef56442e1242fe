// A token drawn from weights with one random number.
#pragma once

#include <cstdint>

namespace eagre {

// The token at which the running sum of a padded row's weights passes `uniform`, in [0, 1), of their total; never one
// of weight 0, if there is another.
int64_t draw(const float* weights, int64_t count, float uniform);

}  // namespace eagre
