#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "server/api/core.h"
#include "server/scheduler/event.h"
#include "server/store/rows.h"

namespace switchyard::v1 {
class AppendLogRequest;
class AppendRequest;
class Attempt;
class Checkpoint;
class HeartbeatRequest;
class HeartbeatResponse;
class RegisterRequest;
class Run;
class SeriesSummary;
class Sweep;
class Worker;
}  // namespace switchyard::v1

// Messages to our own types and back. FromProto checks presence, forms and ranges: kInvalidArgument
// names the field.
namespace switchyard::api {

Result<Uuid> ParseUuid(std::string_view text, std::string_view field);
// kInvalidArgument: not one of the actions.
Result<scheduler::Verb> VerbOf(int action);
// A request id may be empty: such a call is not remembered.
Status CheckRequestId(const std::string& request_id);
// Text of foreign origin: valid UTF-8 of at most `max_bytes`.
Status CheckText(const std::string& text, std::string_view field, size_t max_bytes = 4096);
// 0: `standard`; at most `max`.
size_t PageSize(uint32_t asked, size_t standard, size_t max);

Result<scheduler::Register> FromProto(const v1::RegisterRequest& request);
Result<scheduler::Heartbeat> FromProto(const v1::HeartbeatRequest& request);
// Without lines: they come from the batch.
Result<scheduler::Append> FromProto(const v1::AppendRequest& request);
Result<scheduler::AppendLog> FromProto(const v1::AppendLogRequest& request);

void ToProto(const Desired& desired, v1::HeartbeatResponse* out);
void ToProto(const store::SweepInfo& info, v1::Sweep* out);
void ToProto(const store::RunInfo& info, v1::Run* out);
void ToProto(const store::AttemptInfo& info, v1::Attempt* out);
void ToProto(const scheduler::CheckpointRow& row, v1::Checkpoint* out);
void ToProto(const scheduler::SummaryRow& row, v1::SeriesSummary* out);
void ToProto(const WorkerInfo& info, v1::Worker* out);

}  // namespace switchyard::api
