#pragma once

#include <functional>

namespace switchyard::model {

// Runs `now`, and keeps none of the tensors that its operations save for the backward pass. The
// first of them that the backward pass asks for makes `again` run there: the same operations on the
// same values in the same order. What these save takes the place of what was not kept, until the
// backward pass is done with it; their results are thrown away. The graph is the one of `now`, so
// that gradients have the bits of a pass that keeps everything.
//
// `again` owns what it reads and lives as long as the graph. Throws what `now` throws; the backward
// pass throws what `again` throws, and c10::Error when it saved other tensors than `now` did. One
// call must not run inside another.
void Recompute(const std::function<void()>& now, std::function<void()> again);

}  // namespace switchyard::model
