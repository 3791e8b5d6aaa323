#pragma once

#include <string>
#include <string_view>

namespace google::protobuf {
class Message;
}
namespace switchyard::v1 {
class RunSpec;
class SweepSpec;
enum RunKind : int;
}  // namespace switchyard::v1

namespace switchyard::spec {

// Raised by a release that changes a trained bit; part of every run's identity.
inline constexpr unsigned kNumericsClass = 1;

// Writes every default out (the model's from the backbone, eval's from train's, the length as steps
// where tokens say it), sorts keyed lists of a run by id, sets numerics_class. Idempotent.
void FillDefaults(v1::RunSpec* run);

// Kinds that have `train`: train and finetune.
bool IsTrained(v1::RunKind kind);

// Our own encoding (fields in number order, fixed widths, UTF-8 as given), the input of hashes:
// protobuf's serialised form is not canonical.
std::string CanonicalEncoding(const google::protobuf::Message& message);

// Lower-case hex SHA-256 of the canonical encoding of a RunSpec with defaults and seed: the run's
// identity. Checkpoints count by step and digest, not by the run that they are of.
std::string RunKey(const v1::RunSpec& run);
// The sweep document's identity: everything in it but notes.
std::string SweepHash(const v1::SweepSpec& sweep);

}  // namespace switchyard::spec
