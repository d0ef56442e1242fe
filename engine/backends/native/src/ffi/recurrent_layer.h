// What the targets of recurrent layers have in common: the rows with their states, and the weights of one layer.
#pragma once

#include <cstdint>
#include <vector>

#include "ffi/handler.h"
#include "ffi/step.h"
#include "recurrence/rows.h"

namespace eagre {

constexpr int64_t kSlot = 2, kLoad = 4, kSave = 5, kSaveEnd = 6, kNumColumns = 7;  // as base/token_layout.py has them

// The real rows of a step, with the entries of their states.
inline ffi::Error read_rows(const S32& rows, const StepRows& step, int64_t num_entries,
                            std::vector<RecurrentRow>& found) {
  const int64_t stride = rows.dimensions()[1];
  if (stride < kNumColumns) return invalid("rows have another shape");
  found.clear();
  for (const StepRow& row : step.rows()) {
    const int32_t* columns = rows.typed_data() + row.row * stride;
    const RecurrentRow of_row{row.first_token, row.num_tokens, row.start,
                              columns[kSlot],  columns[kLoad], columns[kSave],
                              columns[kSaveEnd] - row.start};
    for (const int32_t entry : {of_row.slot, of_row.load, of_row.save}) {
      if (entry < 0 || entry >= num_entries) return invalid("there is no such entry of states");
    }
    if (of_row.save > 0 && (of_row.num_before_save < 1 || of_row.num_before_save > of_row.num_tokens)) {
      return invalid("a row saves its states outside its tokens");
    }
    found.push_back(of_row);
  }
  return ffi::Error::Success();
}

// The layer's part of float32[layers][...].
inline ffi::Error of_layer(const F32& stack, int64_t layer, int64_t size, const float*& part) {
  const auto shape = stack.dimensions();
  if (shape.size() < 2 || layer >= shape[0] || static_cast<int64_t>(stack.element_count()) != shape[0] * size) {
    return invalid("weights of a recurrence have another shape");
  }
  part = stack.typed_data() + layer * size;
  return ffi::Error::Success();
}

// As of_layer; null where the stack is empty.
inline ffi::Error of_layer_or_none(const F32& stack, int64_t layer, int64_t size, const float*& part) {
  part = nullptr;
  return stack.element_count() == 0 ? ffi::Error::Success() : of_layer(stack, layer, size, part);
}

}  // namespace eagre
