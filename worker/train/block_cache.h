#pragma once

namespace switchyard::train {

// From here on the CPU's large tensors lie in blocks of their own, which are kept when they are
// freed and given to the next tensor of about their size; unused ones go back to the system once
// they are more than those in use. Where layers free and take the same sizes over and over while
// something small stays behind each, as with recomputed activations, the C library's heap grows by
// every one of them. Once per process, before the first large tensor; the second call does nothing.
void KeepLargeBlocks();

}  // namespace switchyard::train
