// Products cut into small ones whose sums are kept in registers, for which their counts must be constants.
#pragma once

#include <type_traits>

namespace eagre {

// Calls body(constant of the count) for a count from 1 to kMost.
template <int kMost, class Body>
inline void with_count(int count, const Body& body) {
  if constexpr (kMost == 1) {
    body(std::integral_constant<int, 1>());
  } else if (count >= kMost) {
    body(std::integral_constant<int, kMost>());
  } else {
    with_count<kMost - 1>(count, body);
  }
}

// Calls body(first row, rows, first column, columns) for all small products; rows and columns are constants. most_columns
// says how many columns a product of so many rows has at most, where a column is what fills a register. One column that
// would be left is added to the last product where `kJoins` says so: its few sums would wait for their last additions.
template <int kMostRows, int (*most_columns)(int), bool kJoins, class Body>
inline void for_each_part(int num_rows, int num_columns, const Body& body) {
  const auto with_most_rows = [&](auto most_rows) {
    constexpr int kRows = most_rows(), kColumns = most_columns(kRows);
    const auto with_all_rows = [&](int column, auto columns) {
      for (int row = 0; row < num_rows; row += kRows) {
        with_count<kRows>(num_rows - row, [&](auto rows) { body(row, rows, column, columns); });
      }
    };
    for (int column = 0; column < num_columns; column += kColumns) {
      if constexpr (kJoins) {
        if (num_columns - column == kColumns + 1) {
          return with_all_rows(column, std::integral_constant<int, kColumns + 1>());
        }
      }
      with_count<kColumns>(num_columns - column, [&](auto columns) { with_all_rows(column, columns); });
    }
  };
  if constexpr (most_columns(1) == most_columns(kMostRows)) {
    with_most_rows(std::integral_constant<int, kMostRows>());
  } else {
    with_count<kMostRows>(num_rows, with_most_rows);
  }
}

}  // namespace eagre
