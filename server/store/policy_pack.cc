#include "server/store/policy_pack.h"

#include "server/store/pack.h"

namespace switchyard::store {
namespace {

using scheduler::EarlyFailure;
using scheduler::EndSignature;
using scheduler::PoisonEvidence;
using scheduler::ResourceNeed;
using scheduler::RunPolicy;
using scheduler::WorkerBlame;

// Reads in the order of packing; after the first fault every value is 0 or empty.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : unpacker_(bytes) {}

  uint64_t Uint() { return Keep(unpacker_.Uint()); }
  std::string Text() { return Keep(unpacker_.Text()); }
  bool is_done() const { return !ok() || unpacker_.is_done(); }
  const Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }

 private:
  template <typename T>
  T Keep(Result<T> value) {
    if (!status_.ok()) return {};
    if (!value.ok()) {
      status_ = value.status();
      return {};
    }
    return *std::move(value);
  }

  Unpacker unpacker_;
  Status status_;
};

}  // namespace

std::string PackPolicy(const RunPolicy& policy) {
  if (policy == RunPolicy{}) return {};
  Packer out;
  out.Put(static_cast<uint64_t>(policy.profile)).Put(policy.memory_bytes);
  out.Put(uint64_t{policy.exclusive}).Put(uint64_t{policy.is_maximized});
  out.Put(uint64_t{policy.crash_budget}).Put(uint64_t{policy.user_budget});
  out.Put(uint64_t{policy.keep_last}).Put(uint64_t{policy.keep_best});
  out.Put(uint64_t{policy.user_codes.size()});
  for (const int32_t code : policy.user_codes) out.Put(uint64_t{static_cast<uint32_t>(code)});
  out.Put(uint64_t{policy.alternatives.size()});
  for (const ResourceNeed& need : policy.alternatives) {
    out.Put(static_cast<uint64_t>(need.slots.kind)).Put(uint64_t{need.slots.count});
    out.Put(need.memory_bytes);
  }
  out.Put(uint64_t{policy.labels.size()});
  for (const std::string& label : policy.labels) out.Put(std::string_view(label));
  out.Put(uint64_t{policy.user_texts.size()});
  for (const std::string& text : policy.user_texts) out.Put(std::string_view(text));
  out.Put(std::string_view(policy.objective)).Put(uint64_t{policy.is_objective_last});
  out.Put(uint64_t{policy.keep_steps.size()});
  for (const uint64_t step : policy.keep_steps) out.Put(step);
  out.Put(std::string_view(policy.start_store));
  return std::move(out).Take();
}

Result<RunPolicy> UnpackPolicy(std::string_view bytes) {
  RunPolicy policy;
  if (bytes.empty()) return policy;
  Reader in(bytes);
  policy.profile = static_cast<scheduler::Profile>(in.Uint());
  policy.memory_bytes = in.Uint();
  policy.exclusive = in.Uint() != 0;
  policy.is_maximized = in.Uint() != 0;
  policy.crash_budget = static_cast<uint32_t>(in.Uint());
  policy.user_budget = static_cast<uint32_t>(in.Uint());
  policy.keep_last = static_cast<uint32_t>(in.Uint());
  policy.keep_best = static_cast<uint32_t>(in.Uint());
  for (uint64_t n = in.Uint(); n > 0 && in.ok(); --n) {
    policy.user_codes.push_back(static_cast<int32_t>(static_cast<uint32_t>(in.Uint())));
  }
  for (uint64_t n = in.Uint(); n > 0 && in.ok(); --n) {
    ResourceNeed need;
    need.slots.kind = static_cast<scheduler::SlotKind>(in.Uint());
    need.slots.count = static_cast<uint32_t>(in.Uint());
    need.memory_bytes = in.Uint();
    policy.alternatives.push_back(need);
  }
  for (uint64_t n = in.Uint(); n > 0 && in.ok(); --n) policy.labels.push_back(in.Text());
  // Rows of older coordinators end here.
  if (in.is_done()) return in.ok() ? Result<RunPolicy>(std::move(policy)) : in.status();
  for (uint64_t n = in.Uint(); n > 0 && in.ok(); --n) policy.user_texts.push_back(in.Text());
  if (in.is_done()) return in.ok() ? Result<RunPolicy>(std::move(policy)) : in.status();
  policy.objective = in.Text();
  policy.is_objective_last = in.Uint() != 0;
  for (uint64_t n = in.Uint(); n > 0 && in.ok(); --n) policy.keep_steps.push_back(in.Uint());
  policy.start_store = in.Text();
  if (!in.ok()) return in.status();
  return policy;
}

std::string PackEvidence(const PoisonEvidence& evidence) {
  if (evidence == PoisonEvidence{}) return {};
  Packer out;
  out.Put(uint64_t{evidence.crashes}).Put(uint64_t{evidence.signatures.size()});
  for (const EndSignature& end : evidence.signatures) {
    out.Put(std::string_view(end.text)).Put(end.step).Put(end.progress_step);
  }
  out.Put(uint64_t{evidence.workers.size()});
  for (const WorkerBlame& blame : evidence.workers) {
    out.Put(blame.worker.value.high).Put(blame.worker.value.low);
    out.Put(uint64_t{blame.infra_ends}).Put(uint64_t{blame.crashes});
  }
  return std::move(out).Take();
}

Result<PoisonEvidence> UnpackEvidence(std::string_view bytes) {
  PoisonEvidence evidence;
  if (bytes.empty()) return evidence;
  Reader in(bytes);
  evidence.crashes = static_cast<uint32_t>(in.Uint());
  for (uint64_t n = in.Uint(); n > 0 && in.ok(); --n) {
    EndSignature end;
    end.text = in.Text();
    end.step = in.Uint();
    end.progress_step = in.Uint();
    evidence.signatures.push_back(std::move(end));
  }
  for (uint64_t n = in.Uint(); n > 0 && in.ok(); --n) {
    WorkerBlame blame;
    blame.worker.value.high = in.Uint();
    blame.worker.value.low = in.Uint();
    blame.infra_ends = static_cast<uint32_t>(in.Uint());
    blame.crashes = static_cast<uint32_t>(in.Uint());
    evidence.workers.push_back(blame);
  }
  if (!in.ok()) return in.status();
  return evidence;
}

std::string PackEarlyFailures(const std::vector<EarlyFailure>& failures) {
  Packer out;
  for (const EarlyFailure& failure : failures) {
    out.Put(std::string_view(failure.signature)).Put(uint64_t{failure.count});
  }
  return std::move(out).Take();
}

Result<std::vector<EarlyFailure>> UnpackEarlyFailures(std::string_view bytes) {
  std::vector<EarlyFailure> failures;
  for (Unpacker in(bytes); !in.is_done();) {
    EarlyFailure failure;
    SWITCHYARD_ASSIGN_OR_RETURN(failure.signature, in.Text());
    SWITCHYARD_ASSIGN_OR_RETURN(const uint64_t count, in.Uint());
    failure.count = static_cast<uint32_t>(count);
    failures.push_back(std::move(failure));
  }
  return failures;
}

}  // namespace switchyard::store
