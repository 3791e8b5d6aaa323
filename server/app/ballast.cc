#include "server/app/ballast.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/base/strings.h"

namespace switchyard::app {

uint64_t Ballast::BytesFor(uint64_t disk_bytes) {
  return std::min<uint64_t>(uint64_t{256} << 20, disk_bytes / 16);
}

Status Ballast::Fill() {
  if (is_whole()) return OkStatus();
  const int fd = open(path_.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) return Unavailable(StrCat("opening ", path_, ": ", std::strerror(errno)));
  // Allocates blocks; a sparse file would keep nothing.
  const int error = posix_fallocate(fd, 0, static_cast<off_t>(bytes_));
  close(fd);
  if (error != 0) {
    unlink(path_.c_str());
    const std::string text =
        StrCat("no room for ", bytes_, " bytes of ballast at ", path_, ": ", std::strerror(error));
    return error == ENOSPC ? ResourceExhausted(text) : Unavailable(text);
  }
  is_whole_ = true;
  return OkStatus();
}

void Ballast::Free() {
  if (bytes_ == 0) return;
  unlink(path_.c_str());
  is_whole_ = false;
}

}  // namespace switchyard::app
