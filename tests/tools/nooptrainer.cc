// A trainer that does nothing: hello, end, exit.json. Usage: PROGRAM --attempt-dir DIR
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "common/base/crc32c.h"

namespace {

// Closes the object in `text` with its checksum and a newline; returns the length.
int Seal(char* text, int used, int size) {
  const uint32_t crc = switchyard::Crc32c({text, static_cast<size_t>(used)});
  return used + std::snprintf(text + used, static_cast<size_t>(size - used),
                              ",\"crc32c\":\"%08x\"}\n", crc);
}

bool Put(const char* path, const char* text, int size) {
  const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  return fd >= 0 && write(fd, text, static_cast<size_t>(size)) == size && close(fd) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || std::strcmp(argv[1], "--attempt-dir") != 0 || chdir(argv[2]) != 0) return 64;
  const char* slash = std::strrchr(argv[2], '/');
  unsigned long long epoch = 0;
  unsigned rank = 0;
  if (std::sscanf(slash == nullptr ? argv[2] : slash + 1, "%llu-%u", &epoch, &rank) != 2) return 64;

  char events[512];
  int used = std::snprintf(events, sizeof(events),
                           "{\"v\":1,\"seq\":1,\"t\":\"hello\",\"epoch\":\"%llu\",\"rank\":%u",
                           epoch, rank);
  used = Seal(events, used, sizeof(events));
  char* end = events + used;
  const int room = static_cast<int>(sizeof(events)) - used;
  const int end_used =
      std::snprintf(end, static_cast<size_t>(room), "{\"v\":1,\"seq\":2,\"t\":\"end\",\"code\":0");
  used += Seal(end, end_used, room);
  if (!Put("events.jsonl", events, used)) return 70;

  char record[512];
  int size = std::snprintf(record, sizeof(record),
                           "{\"v\":1,\"epoch\":\"%llu\",\"rank\":%u,\"code\":0,\"class\":\"ok\","
                           "\"complete\":true,\"last_seq\":2,\"final_step\":0,\"reason\":\"\"",
                           epoch, rank);
  size = Seal(record, size, sizeof(record));
  if (!Put("exit.json.tmp", record, size) || std::rename("exit.json.tmp", "exit.json") != 0) {
    return 70;
  }
  return 0;
}
