#pragma once

// For tests only.
namespace switchyard::model {

// On: CPU tensors too go through the ATen operations that serve other devices. Process-wide; not to
// be changed between a forward pass and its backward pass.
void ForceAtenPath(bool is_forced);

}  // namespace switchyard::model
