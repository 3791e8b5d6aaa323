#include "common/events/exit_record.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "common/base/crc32c.h"
#include "common/base/file.h"
#include "common/base/strings.h"

namespace switchyard::events {
namespace {

constexpr std::string_view kTrailerStart = ",\"crc32c\":\"";
constexpr size_t kTrailerBytes = kTrailerStart.size() + 8 + 3;  // `"}` and a newline
// In JSON a byte takes up to six.
constexpr size_t kReasonBytesMax = 4096;

std::string Trailer(std::string_view body) {
  char digits[9];
  std::snprintf(digits, sizeof(digits), "%08x", Crc32c(body));
  return StrCat(kTrailerStart, static_cast<const char*>(digits), "\"}\n");
}

template <typename T>
bool Take(const nlohmann::json& object, const char* key, T* out) {
  const auto it = object.find(key);
  if (it == object.end()) return false;
  if constexpr (std::is_same_v<T, bool>) {
    if (!it->is_boolean()) return false;
  } else if constexpr (std::is_integral_v<T>) {
    if (!it->is_number_unsigned()) return false;
  } else {
    if (!it->is_string()) return false;
  }
  *out = it->get<T>();
  return true;
}

// A reason is for a person, and an end must be recorded however much there is to say: cut between
// characters.
std::string Shortened(const std::string& text) {
  if (text.size() <= kReasonBytesMax) return text;
  size_t cut = kReasonBytesMax;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xc0) == 0x80) --cut;
  return text.substr(0, cut);
}

}  // namespace

Status WriteExitRecord(const std::string& path, const ExitRecord& record) {
  if (record.code < 0 || record.code > 255) {
    return InvalidArgument(StrCat("exit code ", record.code, " is not in [0, 255]"));
  }
  nlohmann::ordered_json object = {{"v", 1},
                                   {"epoch", std::to_string(record.epoch)},
                                   {"rank", record.rank},
                                   {"code", record.code},
                                   {"class", record.end_class},
                                   {"complete", record.complete},
                                   {"last_seq", record.last_seq},
                                   {"final_step", record.final_step},
                                   {"reason", Shortened(record.reason)}};
  if (!record.objective_json.empty()) {
    auto objective = nlohmann::ordered_json::parse(record.objective_json, nullptr, false);
    if (!objective.is_object()) return InvalidArgument("objective_json is not a JSON object");
    object["objective"] = std::move(objective);
  }
  // Foreign text in `reason` may be ill-formed: replaced, since the end must be recorded.
  std::string text = object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.pop_back();
  text += Trailer(text);
  if (text.size() > kExitRecordBytesMax) {
    return InvalidArgument(
        StrCat("exit record has ", text.size(), " bytes, at most ", kExitRecordBytesMax));
  }
  const std::string temporary = path + ".tmp";
  UniqueFd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd.is_valid()) return ErrnoStatus("cannot create", temporary, errno);
  SWITCHYARD_RETURN_IF_ERROR(WriteAll(fd.get(), text, temporary));
  if (rename(temporary.c_str(), path.c_str()) != 0)
    return ErrnoStatus("cannot rename to", path, errno);
  return OkStatus();
}

Result<ExitRecord> ReadExitRecord(const std::string& path, uint64_t epoch, uint32_t rank) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd.is_valid() && errno == ENOENT) return NotFound(StrCat("there is no ", path));
  if (!fd.is_valid()) return DataLoss(StrCat(path, " cannot be opened as a file"));
  struct stat info {};
  if (fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode) ||
      static_cast<uint64_t>(info.st_size) > kExitRecordBytesMax ||
      static_cast<size_t>(info.st_size) <= kTrailerBytes) {
    return DataLoss(StrCat(path, " is not a file of at most ", kExitRecordBytesMax, " bytes"));
  }
  std::string text(static_cast<size_t>(info.st_size), '\0');
  if (pread(fd.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return DataLoss(StrCat(path, " cannot be read whole"));
  }
  const std::string_view body = std::string_view(text).substr(0, text.size() - kTrailerBytes);
  if (text.substr(body.size()) != Trailer(body)) {
    return DataLoss(StrCat(path, " does not end with its checksum"));
  }
  const auto object = nlohmann::json::parse(text, nullptr, false);
  if (!object.is_object()) return DataLoss(StrCat(path, " is not a JSON object"));
  ExitRecord record;
  uint64_t version = 0;
  uint64_t code = 0;
  uint64_t found_rank = 0;
  std::string found_epoch;
  if (!Take(object, "v", &version) || version != 1 || !Take(object, "code", &code) || code > 255 ||
      !Take(object, "rank", &found_rank) || !Take(object, "epoch", &found_epoch) ||
      !Take(object, "class", &record.end_class) || !Take(object, "complete", &record.complete) ||
      !Take(object, "last_seq", &record.last_seq) ||
      !Take(object, "final_step", &record.final_step) || !Take(object, "reason", &record.reason)) {
    return DataLoss(StrCat(path, " lacks a member of an exit record"));
  }
  if (ParseUint64(found_epoch) != epoch || found_rank != rank) {
    return DataLoss(StrCat(path, " is of epoch ", EscapeForTerminal(found_epoch.substr(0, 32)),
                           " rank ", found_rank, ", expected ", epoch, " rank ", rank));
  }
  record.code = static_cast<int>(code);
  record.epoch = epoch;
  record.rank = rank;
  if (const auto objective = object.find("objective"); objective != object.end()) {
    if (!objective->is_object())
      return DataLoss(StrCat(path, " has an objective that is no object"));
    record.objective_json = objective->dump();
  }
  return record;
}

}  // namespace switchyard::events
