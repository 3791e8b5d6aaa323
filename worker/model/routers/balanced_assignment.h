#pragma once

#include <cstdint>
#include <vector>

namespace switchyard::model {

// The assignment of every row to one column with the largest total score, where the first
// rows mod columns columns take one row more than the others. `scores` is [rows, columns],
// row-major and finite. Successive best augmenting paths over the columns (Ford and Fulkerson's
// transportation problem); equal scores: a fixed, arbitrary choice.
std::vector<int64_t> AssignBalanced(const std::vector<double>& scores, int64_t rows,
                                    int64_t columns);

}  // namespace switchyard::model
