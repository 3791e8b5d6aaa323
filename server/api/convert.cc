#include "server/api/convert.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "common/base/strings.h"
#include "common/spec/validate.h"
#include "switchyard/v1/admin_service.pb.h"
#include "switchyard/v1/run_service.pb.h"
#include "switchyard/v1/sweep_service.pb.h"
#include "switchyard/v1/worker_service.pb.h"

namespace switchyard::api {
namespace {

namespace pb = ::switchyard::v1;

constexpr size_t kRecordsMax = 10000;
constexpr size_t kSlotsMax = 1024;
constexpr size_t kLabelsMax = 64;
// Sequence numbers stay in what a signed column holds.
constexpr uint64_t kSeqMax = uint64_t{1} << 62;
constexpr size_t kReasonMax = 4096;
constexpr size_t kOutputTailMax = 16 << 10;

std::optional<scheduler::EndClass> EndClassOf(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(scheduler::EndClass::kTimeout); ++i) {
    const auto end_class = static_cast<scheduler::EndClass>(i);
    if (Name(end_class) == name) return end_class;
  }
  return std::nullopt;
}

// Text that comes with a fact is cut, not refused: with the report its worker would lose its
// contact, and all of its runs with it.
std::string Shortened(const std::string& text, size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  size_t cut = bytes_max;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xc0) == 0x80) --cut;
  return text.substr(0, cut);
}

Result<scheduler::MemberReport> FromProto(const pb::MemberReport& report) {
  scheduler::MemberReport out;
  SWITCHYARD_ASSIGN_OR_RETURN(out.run.value, ParseUuid(report.run_id(), "observed.run_id"));
  switch (report.state()) {
    case pb::MEMBER_STATE_LAUNCHING:
      out.state = scheduler::RecordState::kLaunching;
      break;
    case pb::MEMBER_STATE_RUNNING:
      out.state = scheduler::RecordState::kRunning;
      break;
    case pb::MEMBER_STATE_EXITED:
      out.state = scheduler::RecordState::kExited;
      break;
    case pb::MEMBER_STATE_REFUSED:
      out.state = scheduler::RecordState::kRefused;
      break;
    case pb::MEMBER_STATE_WEDGED:
      out.state = scheduler::RecordState::kWedged;
      break;
    default:
      return InvalidArgument(
          StrCat("observed.state ", static_cast<int>(report.state()), " is not known"));
  }
  const auto end_class = EndClassOf(report.end_class());
  if (!end_class.has_value()) {
    return InvalidArgument(
        StrCat("observed.end_class '", EscapeForTerminal(report.end_class()), "' is not known"));
  }
  if (report.last_seq() > kSeqMax) return InvalidArgument("observed.last_seq is too large");
  out.ordinal = report.ordinal();
  out.epoch = {report.epoch()};
  out.rank = report.rank();
  out.exit_code = report.exit_code();
  out.signal = report.signal();
  out.end_class = *end_class;
  out.complete = report.complete();
  out.evidence = Shortened(report.evidence(), kReasonMax);
  out.last_seq = report.last_seq();
  out.reason = Shortened(report.reason(), kReasonMax);
  const std::string& tail = report.output_tail();
  out.output_tail = tail.substr(tail.size() - std::min(tail.size(), kOutputTailMax));
  out.final_step = report.final_step();
  return out;
}

}  // namespace

Result<Uuid> ParseUuid(std::string_view text, std::string_view field) {
  Result<Uuid> id = Uuid::Parse(text);
  if (!id.ok() || id->is_nil()) {
    return InvalidArgument(
        StrCat(field, " '", EscapeForTerminal(text.substr(0, 64)), "' is not a uuid"));
  }
  return id;
}

Result<scheduler::Verb> VerbOf(int action) {
  if (action < pb::ACTION_CANCEL || action > pb::ACTION_PRIORITY) {
    return InvalidArgument(StrCat("action ", action, " is not known"));
  }
  return static_cast<scheduler::Verb>(action);
}

Status CheckRequestId(const std::string& request_id) {
  if (request_id.empty()) return OkStatus();
  return ParseUuid(request_id, "request_id").status();
}

Status CheckText(const std::string& text, std::string_view field, size_t max_bytes) {
  if (text.size() > max_bytes) {
    return InvalidArgument(
        StrCat(field, " has ", text.size(), " bytes, at most ", max_bytes, " are taken"));
  }
  if (!IsValidUtf8(text)) return InvalidArgument(StrCat(field, " is not UTF-8"));
  return OkStatus();
}

size_t PageSize(uint32_t asked, size_t standard, size_t max) {
  return asked == 0 ? standard : std::min<size_t>(asked, max);
}

Result<scheduler::Register> FromProto(const pb::RegisterRequest& request) {
  scheduler::Register out;
  scheduler::WorkerRow& row = out.worker;
  if (request.proto_min() > 1 || request.proto_max() < 1) {
    return FailedPrecondition(StrCat("protocol 1 is spoken here, the worker speaks ",
                                     request.proto_min(), " to ", request.proto_max()));
  }
  SWITCHYARD_ASSIGN_OR_RETURN(row.id.value, ParseUuid(request.worker_id(), "worker_id"));
  if (request.incarnation() == 0 || request.incarnation() > kSeqMax) {
    return InvalidArgument("incarnation must be at least 1");
  }
  if (!spec::IsValidName(request.pool().empty() ? "default" : request.pool())) {
    return InvalidArgument(
        StrCat("pool '", EscapeForTerminal(request.pool().substr(0, 64)), "' is not a name"));
  }
  SWITCHYARD_RETURN_IF_ERROR(CheckText(request.instance_id(), "instance_id", 256));
  SWITCHYARD_RETURN_IF_ERROR(CheckText(request.host(), "host", 256));
  SWITCHYARD_RETURN_IF_ERROR(CheckText(request.version(), "version", 128));
  SWITCHYARD_RETURN_IF_ERROR(CheckText(request.metrics_address(), "metrics_address", 256));
  SWITCHYARD_RETURN_IF_ERROR(CheckText(request.checkpoint_store(), "checkpoint_store", 128));
  if (request.slots_size() == 0 || request.slots_size() > static_cast<int>(kSlotsMax)) {
    return InvalidArgument(
        StrCat("a worker has 1 to ", kSlotsMax, " slots, not ", request.slots_size()));
  }
  for (const pb::Slot& slot : request.slots()) {
    if (slot.kind() != pb::SLOT_KIND_CPU && slot.kind() != pb::SLOT_KIND_GPU) {
      return InvalidArgument(StrCat("slots.kind ", static_cast<int>(slot.kind()), " is not known"));
    }
    SWITCHYARD_RETURN_IF_ERROR(CheckText(slot.uuid(), "slots.uuid", 128));
    const bool is_twice = std::ranges::any_of(
        row.slots, [&](const scheduler::SlotRow& other) { return other.index == slot.index(); });
    if (is_twice) return InvalidArgument(StrCat("slot ", slot.index(), " is listed twice"));
    row.slots.push_back({.index = slot.index(),
                         .kind = slot.kind() == pb::SLOT_KIND_GPU ? scheduler::SlotKind::kGpu
                                                                  : scheduler::SlotKind::kCpu,
                         .uuid = slot.uuid()});
  }
  if (request.labels_size() > static_cast<int>(kLabelsMax)) {
    return InvalidArgument(StrCat("at most ", kLabelsMax, " labels are taken"));
  }
  for (const std::string& label : request.labels()) {
    SWITCHYARD_RETURN_IF_ERROR(CheckText(label, "labels", 256));
    row.labels.push_back(label);
  }
  row.incarnation = request.incarnation();
  row.instance_id = request.instance_id();
  row.pool = request.pool().empty() ? "default" : request.pool();
  row.host = request.host();
  row.version = request.version();
  row.metrics_address = request.metrics_address();
  row.checkpoint_store = request.checkpoint_store();
  row.threads_per_slot = std::max(1u, request.threads_per_slot());
  row.memory_bytes = std::min(request.memory_bytes(), kSeqMax);
  out.seen_generation = request.seen_generation();
  out.seen_boot = request.seen_boot();
  out.nonce = NewUuidV4().ToString();
  return out;
}

Result<scheduler::Heartbeat> FromProto(const pb::HeartbeatRequest& request) {
  scheduler::Heartbeat out;
  SWITCHYARD_ASSIGN_OR_RETURN(out.worker.value, ParseUuid(request.worker_id(), "worker_id"));
  if (request.observed_size() > static_cast<int>(kRecordsMax)) {
    return InvalidArgument(StrCat("at most ", kRecordsMax, " records are taken"));
  }
  out.nonce = request.nonce();
  out.incarnation = request.incarnation();
  out.hb_seq = request.hb_seq();
  out.sent_boottime_ns = request.sent_boottime_ns();
  out.applied = {.generation = request.applied_rev().generation(),
                 .boot = request.applied_rev().boot(),
                 .n = request.applied_rev().n()};
  for (const pb::MemberReport& report : request.observed()) {
    SWITCHYARD_ASSIGN_OR_RETURN(scheduler::MemberReport member, FromProto(report));
    out.observed.push_back(std::move(member));
  }
  if (request.deleted_checkpoints_size() > static_cast<int>(kRecordsMax)) {
    return InvalidArgument(StrCat("at most ", kRecordsMax, " deleted checkpoints are taken"));
  }
  for (const pb::CheckpointRef& ref : request.deleted_checkpoints()) {
    SWITCHYARD_ASSIGN_OR_RETURN(const Uuid run,
                                ParseUuid(ref.run_id(), "deleted_checkpoints.run_id"));
    out.deleted.push_back({.run = {run}, .epoch = {ref.epoch()}, .step = ref.step()});
  }
  out.is_leaving = request.host().draining();
  out.leaving_grace_ms = request.host().drain_grace_ms();
  out.random = NewUuidV4().low;
  return out;
}

Result<scheduler::Append> FromProto(const pb::AppendRequest& request) {
  scheduler::Append out;
  SWITCHYARD_ASSIGN_OR_RETURN(out.run.value, ParseUuid(request.run_id(), "run_id"));
  SWITCHYARD_ASSIGN_OR_RETURN(out.worker.value, ParseUuid(request.worker_id(), "worker_id"));
  if (request.first_seq() == 0 || request.first_seq() > kSeqMax) {
    return InvalidArgument(StrCat("first_seq ", request.first_seq(), " is not a number from 1"));
  }
  if (request.n() == 0 || request.n() > kSeqMax) {
    return InvalidArgument(StrCat("n ", request.n(), " is not a number from 1"));
  }
  if (request.codec() != pb::BATCH_CODEC_PLAIN && request.codec() != pb::BATCH_CODEC_ZSTD) {
    return InvalidArgument(StrCat("codec ", static_cast<int>(request.codec()), " is not known"));
  }
  out.ordinal = request.ordinal();
  out.epoch = {request.epoch()};
  out.rank = request.rank();
  out.first_seq = request.first_seq();
  out.n = request.n();
  out.random = out.worker.value.low ^ (request.first_seq() * 0x9e3779b97f4a7c15ULL);
  return out;
}

Result<scheduler::AppendLog> FromProto(const pb::AppendLogRequest& request) {
  scheduler::AppendLog out;
  SWITCHYARD_ASSIGN_OR_RETURN(out.run.value, ParseUuid(request.run_id(), "run_id"));
  SWITCHYARD_ASSIGN_OR_RETURN(out.worker.value, ParseUuid(request.worker_id(), "worker_id"));
  if (request.stream() != pb::LOG_STREAM_STDOUT && request.stream() != pb::LOG_STREAM_STDERR) {
    return InvalidArgument(StrCat("stream ", static_cast<int>(request.stream()), " is not known"));
  }
  if (request.offset() > kSeqMax) return InvalidArgument("offset is too large");
  out.ordinal = request.ordinal();
  out.epoch = {request.epoch()};
  out.rank = request.rank();
  out.stream = request.stream() == pb::LOG_STREAM_STDOUT ? scheduler::LogStream::kStdout
                                                         : scheduler::LogStream::kStderr;
  out.offset = request.offset();
  out.size = request.data().size();
  return out;
}

void ToProto(const Desired& desired, pb::HeartbeatResponse* out) {
  out->mutable_rev()->set_generation(desired.rev.generation);
  out->mutable_rev()->set_boot(desired.rev.boot);
  out->mutable_rev()->set_n(desired.rev.n);
  out->set_echo_incarnation(desired.echo_incarnation);
  out->set_echo_hb_seq(desired.echo_hb_seq);
  out->set_echo_sent_boottime_ns(desired.echo_sent_boottime_ns);
  out->set_heartbeat_ms(desired.heartbeat_ms);
  out->set_workers(desired.workers);
  for (const WantedAttempt& wanted : desired.want) {
    pb::WantedAttempt* one = out->add_want();
    one->set_run_id(wanted.run.value.ToString());
    one->set_ordinal(wanted.ordinal);
    one->set_epoch(wanted.epoch.value);
    one->set_rank(wanted.rank);
    one->set_run_spec(wanted.run_spec);
    pb::AttemptSpec* attempt = one->mutable_attempt();
    attempt->ParseFromString(wanted.attempt_spec);
    attempt->set_run_id(one->run_id());
    attempt->set_run_key(wanted.run_key);
    attempt->set_ordinal(wanted.ordinal);
    attempt->set_epoch(wanted.epoch.value);
    attempt->set_rank(wanted.rank);
    for (const uint32_t slot : wanted.slots) attempt->add_slots(slot);
    attempt->set_device(std::string(Name(wanted.kind)));
    attempt->set_resume_checkpoint(wanted.resume_path);
    one->set_intent(static_cast<pb::Intent>(wanted.intent));
    one->set_grace_ms(wanted.grace_ms);
    one->set_lease_ms(static_cast<uint32_t>(
        std::min<uint64_t>(wanted.lease_ms, std::numeric_limits<uint32_t>::max())));
  }
  for (const scheduler::AttemptRef& ref : desired.gc) {
    pb::AttemptRef* one = out->add_gc();
    one->set_epoch(ref.epoch.value);
    one->set_rank(ref.rank);
  }
  for (const scheduler::CheckpointRow& row : desired.gc_checkpoints) {
    pb::CheckpointRef* one = out->add_delete_checkpoints();
    one->set_run_id(row.run.value.ToString());
    one->set_epoch(row.epoch.value);
    one->set_step(row.step);
    one->set_store(row.store);
  }
}

void ToProto(const store::SweepInfo& info, pb::Sweep* out) {
  using scheduler::RunState;
  const auto count = [&](RunState state) { return info.status.counts[static_cast<size_t>(state)]; };
  out->set_id(info.row.id.value.ToString());
  out->set_name(info.row.name);
  out->set_project(info.row.project);
  out->set_state(static_cast<pb::SweepState>(info.status.state));
  out->set_cells(info.row.cells);
  out->set_runs(std::max(info.row.runs, info.status.proposed) + info.status.retried);
  pb::RunCounts* counts = out->mutable_counts();
  const bool is_proposed = info.status.is_closed || IsTerminal(info.status.state);
  if (!info.row.is_drawn || !is_proposed) {
    counts->set_waiting(info.row.runs - std::min(info.row.runs, info.status.proposed));
  }
  counts->set_queued(count(RunState::kQueued) + count(RunState::kBackoff));
  counts->set_active(count(RunState::kActive));
  counts->set_succeeded(count(RunState::kSucceeded));
  counts->set_failed(count(RunState::kFailed) + count(RunState::kQuarantined));
  counts->set_cancelled(count(RunState::kCancelled));
  counts->set_other(count(RunState::kPaused) + count(RunState::kStoppedEarly));
  out->set_created_ms(info.row.created_ms);
  out->mutable_objective()->ParseFromString(info.row.objective);
  for (const std::string& axis : info.row.axes) out->add_axes(axis);
  if (!info.row.spec.empty()) out->mutable_spec()->ParseFromString(info.row.spec);
  out->set_spec_hash(info.row.spec_hash);
  out->set_reason(info.status.reason);
  if (info.row.parent.has_value()) out->set_parent_id(info.row.parent->value.ToString());
  out->set_slot_ms(info.status.slot_ms);
}

void ToProto(const scheduler::SummaryRow& row, pb::SeriesSummary* out) {
  out->set_name(row.series);
  out->set_last(row.last);
  out->set_last_step(row.last_step);
  out->set_has_best(row.has_best);
  out->set_best(row.best);
  out->set_best_step(row.best_step);
  out->set_count(row.count);
  out->set_non_finite(row.non_finite);
}

void ToProto(const store::RunInfo& info, pb::Run* out) {
  out->set_id(info.row.id.value.ToString());
  out->set_name(StrCat(info.sweep_name, '/', info.link.number));
  out->set_sweep_id(info.link.sweep.value.ToString());
  out->set_number(info.link.number);
  out->set_project(info.row.project);
  out->set_state(static_cast<pb::RunState>(info.status.state));
  for (const auto& [axis, value] : info.link.columns) {
    pb::AxisValue* column = out->add_columns();
    column->set_axis(axis);
    column->set_value(value);
  }
  out->set_seed(info.row.seed);
  out->set_run_key(info.row.run_key);
  out->set_attempts(info.status.attempts);
  out->set_step(info.step);
  out->set_steps_total(info.row.steps_total);
  out->set_reason(info.status.reason);
  out->set_created_ms(info.row.created_ms);
  out->set_started_ms(info.status.started_ms);
  out->set_ended_ms(info.status.ended_ms);
  for (const scheduler::SummaryRow& summary : info.summaries) {
    ToProto(summary, out->add_summary());
  }
  if (!info.worker.value.is_nil()) {
    out->set_worker(info.worker_host.empty() ? info.worker.value.ToString() : info.worker_host);
  }
  out->set_router(info.row.router);
  out->set_priority(info.status.priority);
  if (info.row.parent.has_value()) out->set_parent_id(info.row.parent->value.ToString());
}

void ToProto(const store::AttemptInfo& info, pb::Attempt* out) {
  out->set_ordinal(info.row.ordinal);
  out->set_epoch(info.row.epoch.value);
  out->set_state(static_cast<pb::AttemptState>(info.status.state));
  out->set_worker(info.worker_host.empty() ? info.row.worker.value.ToString() : info.worker_host);
  for (const scheduler::MemberRow& member : info.members) {
    for (const uint32_t slot : member.slots) out->add_slots(slot);
  }
  out->set_end_class(std::string(Name(info.status.end_class)));
  out->set_reason(info.status.reason);
  out->set_created_ms(info.row.created_ms);
  out->set_ended_ms(info.status.ended_ms);
  if (!info.streams.empty()) out->set_acked_seq(info.streams.front().acked);
  out->set_final_step(info.status.final_step);
}

void ToProto(const scheduler::CheckpointRow& row, pb::Checkpoint* out) {
  out->set_epoch(row.epoch.value);
  out->set_step(row.step);
  out->set_state(std::string(Name(row.state)));
  out->set_digest(row.digest);
  out->set_size_bytes(row.bytes);
  out->set_path(row.path);
  out->set_pinned(row.pinned);
}

void ToProto(const WorkerInfo& info, pb::Worker* out) {
  out->set_id(info.row.id.value.ToString());
  out->set_host(info.row.host);
  out->set_pool(info.row.pool);
  out->set_state(info.state);
  for (const scheduler::SlotRow& slot : info.row.slots) {
    pb::Slot* one = out->add_slots();
    one->set_index(slot.index);
    one->set_kind(slot.kind == scheduler::SlotKind::kGpu ? pb::SLOT_KIND_GPU : pb::SLOT_KIND_CPU);
    one->set_uuid(slot.uuid);
  }
  out->set_slots_busy(info.slots_busy);
  out->set_last_contact_ms_ago(info.last_contact_ms_ago);
  out->set_version(info.row.version);
  out->set_metrics_address(info.row.metrics_address);
  for (const RunId run : info.runs) out->add_runs(run.value.ToString());
  for (const std::string& label : info.row.labels) out->add_labels(label);
  out->set_cordon_reason(info.row.cordon_reason);
  out->set_memory_bytes(info.row.memory_bytes);
  out->set_drain_deadline_ms(info.row.drain_deadline_ms);
}

}  // namespace switchyard::api
