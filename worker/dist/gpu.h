#pragma once

#include "common/base/status.h"

namespace switchyard::dist {

// Loads the CUDA and NCCL parts (libswitchyard_gpu.so, in the executable's folder, ../lib or
// ../lib/switchyard of it) and asks for devices. One program so serves hosts with and without a
// GPU.
//
// Call it before the first use of torch: torch looks for CUDA once. The first call decides; later
// ones return its outcome. Thread-safe. kNotFound: this build has no GPU parts, or the host has no
// device; kFailedPrecondition: the parts do not load, with the loader's reason. In either case CPU
// work goes on.
Status LoadGpuSupport();

// LoadGpuSupport has succeeded, so there is at least one usable CUDA device.
bool HasGpu();

}  // namespace switchyard::dist
