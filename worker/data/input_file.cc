#include "worker/data/input_file.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <memory>

#include "common/base/file.h"
#include "common/base/strings.h"

namespace switchyard::data {
namespace {

InputIdentity IdentityOf(const struct stat& info) {
  return {.kind = S_ISREG(info.st_mode)   ? InputIdentity::Kind::kRegular
                  : S_ISDIR(info.st_mode) ? InputIdentity::Kind::kDirectory
                                          : InputIdentity::Kind::kOther,
          .device = static_cast<uint64_t>(info.st_dev),
          .inode = static_cast<uint64_t>(info.st_ino),
          .size = static_cast<uint64_t>(info.st_size)};
}

Status NotRegular(const std::string& path, InputIdentity::Kind kind) {
  return InvalidArgument(
      kind == InputIdentity::Kind::kDirectory
          ? StrCat(EscapeForTerminal(path), " is a folder, expected a file")
          : StrCat(EscapeForTerminal(path), " is not a regular file (device, pipe or socket)"));
}

int OpenForReading(const std::string& path) {
  // O_NONBLOCK: a pipe that takes the file's place between the look and the open must not park us.
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  open_how how{};
  how.flags = kFlags;
  how.resolve = RESOLVE_NO_MAGICLINKS;
  const long fd = ::syscall(SYS_openat2, AT_FDCWD, path.c_str(), &how, sizeof(how));
  // Old kernels and some sandboxes do not have the call.
  if (fd < 0 && (errno == ENOSYS || errno == EPERM)) return ::open(path.c_str(), kFlags);
  return static_cast<int>(fd);
}

}  // namespace

Result<InputIdentity> IdentifyInput(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    return ErrnoStatus("cannot read", EscapeForTerminal(path), errno);
  }
  return IdentityOf(info);
}

Result<std::string> ReadInput(const std::string& path, uint64_t max_bytes) {
  // Looked at first: opening a device can do things.
  SWITCHYARD_ASSIGN_OR_RETURN(InputIdentity identity, IdentifyInput(path));
  if (identity.kind != InputIdentity::Kind::kRegular) return NotRegular(path, identity.kind);
  const UniqueFd fd(OpenForReading(path));
  if (!fd.is_valid()) return ErrnoStatus("cannot open", EscapeForTerminal(path), errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) {
    return ErrnoStatus("cannot read", EscapeForTerminal(path), errno);
  }
  identity = IdentityOf(info);
  if (identity.kind != InputIdentity::Kind::kRegular) return NotRegular(path, identity.kind);
  const auto too_large = [&](std::string_view have) {
    return ResourceExhausted(
        StrCat(EscapeForTerminal(path), " has ", have, " bytes, expected at most ", max_bytes));
  };
  if (identity.size > max_bytes) return too_large(std::to_string(identity.size));
  std::string data(identity.size + 1, '\0');
  size_t used = 0;
  while (true) {
    // One byte more than the size: the end shows without a further round.
    if (used == data.size()) data.resize(data.size() + (size_t{1} << 16));
    const ssize_t got = ::read(fd.get(), data.data() + used, data.size() - used);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus("cannot read", EscapeForTerminal(path), errno);
    if (got == 0) break;
    used += static_cast<size_t>(got);
    if (used > max_bytes) return too_large(StrCat("more than ", max_bytes));
  }
  data.resize(used);
  return data;
}

Result<std::string> Gunzip(std::string_view packed, std::string_view label) {
  const auto bad = [&](std::string_view what) {
    return DataLoss(StrCat(EscapeForTerminal(label), ": ", what));
  };
  if (packed.size() < 2 || packed.substr(0, 2) != "\x1f\x8b") {
    return bad(packed.empty() ? "is empty, expected a gzip stream"
                              : "does not begin as gzip (bytes 1f 8b) although its name says so");
  }
  z_stream stream{};
  constexpr int kGzipOnly = 15 + 16;
  if (inflateInit2(&stream, kGzipOnly) != Z_OK) return Internal("zlib cannot start");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> guard(&stream, inflateEnd);

  std::string out;
  size_t consumed = 0;
  constexpr size_t kChunk = size_t{1} << 18;
  while (true) {
    const size_t given =
        std::min<size_t>(packed.size() - consumed, std::numeric_limits<uInt>::max() / 2);
    // zlib does not write through next_in.
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data() + consumed));
    stream.avail_in = static_cast<uInt>(given);
    const size_t used = out.size();
    out.resize(used + kChunk);
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + used);
    stream.avail_out = static_cast<uInt>(kChunk);
    const int code = inflate(&stream, Z_NO_FLUSH);
    consumed += given - stream.avail_in;
    out.resize(used + kChunk - stream.avail_out);
    if (out.size() > kMaxTextBytes) {
      return ResourceExhausted(StrCat(EscapeForTerminal(label), ": unpacks to more than ",
                                      kMaxTextBytes, " bytes, the most that is read of a file"));
    }
    if (out.size() > kBombFloorBytes && out.size() / kBombRatio > consumed) {
      return ResourceExhausted(StrCat(EscapeForTerminal(label), ": ", consumed,
                                      " packed bytes gave ", out.size(), ", over ", kBombRatio,
                                      " to one: refused as a gzip bomb"));
    }
    if (code == Z_STREAM_END) {
      const std::string_view rest = packed.substr(consumed);
      if (rest.find_first_not_of('\0') == std::string_view::npos) return out;
      if (rest.substr(0, 2) != "\x1f\x8b") {
        return bad(StrCat(rest.size(), " bytes behind the gzip stream are not gzip"));
      }
      if (inflateReset(&stream) != Z_OK) return Internal("zlib cannot start again");
      continue;
    }
    if (code == Z_OK && (consumed < packed.size() || stream.avail_out == 0)) continue;
    if (code == Z_OK || code == Z_BUF_ERROR) {
      return bad(StrCat("the gzip stream is cut off after ", packed.size(), " bytes (", out.size(),
                        " unpacked)"));
    }
    return bad(StrCat("the gzip stream is corrupt near byte ", consumed, " (",
                      stream.msg != nullptr ? stream.msg : "no reason given", ")"));
  }
}

Result<std::string> ReadTextInput(const std::string& path) {
  SWITCHYARD_ASSIGN_OR_RETURN(std::string data, ReadInput(path));
  if (!path.ends_with(".gz")) return data;
  return Gunzip(data, path);
}

}  // namespace switchyard::data
