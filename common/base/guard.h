#pragma once

// A guard is a condition that carries a proof of the protocol. The simulator shows that each one is
// needed: it removes a guard (a mutant) and must then find a broken invariant (docs/simulation.md).
//
// SWITCHYARD_GUARD(X03, condition) is exactly `(condition)`. Only in the simulator's own build,
// with SWITCHYARD_MUTANTS, can guard X03 be removed at run time: then it holds always.
#ifdef SWITCHYARD_MUTANTS

#include <cstdint>

namespace switchyard::mutant {

// Bit n: guard Xn is removed.
inline uint64_t removed = 0;

inline bool IsRemoved(uint32_t number) { return (removed >> number & 1) != 0; }

// clang-format off
enum Guard : uint32_t {
  X01 = 1, X02, X03, X04, X05, X06, X07, X08, X09, X10, X11, X12, X13, X14, X15, X16, X17, X18, X19,
  X20, X21, X22, X23, X24, X25, X26, X27, X28, X29, X30, X31, X32, X33, X34, X35, X36, X37, X38, X39,
  X40, X41, X42, X43,
};
// clang-format on

}  // namespace switchyard::mutant

#define SWITCHYARD_GUARD(id, condition) \
  (::switchyard::mutant::IsRemoved(::switchyard::mutant::id) || (condition))

#else

#define SWITCHYARD_GUARD(id, condition) (condition)

#endif
