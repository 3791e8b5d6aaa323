#include "worker/dist/process_group.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/check.h"
#include "worker/dist/gpu.h"

namespace switchyard::dist {
namespace {

using ::testing::HasSubstr;

// A listening socket on a free loopback port.
int ListenOnLoopback(uint16_t* port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  SWITCHYARD_CHECK(::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
  SWITCHYARD_CHECK(::listen(fd, 8) == 0);
  SWITCHYARD_CHECK(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  *port = ntohs(address.sin_port);
  return fd;
}

// Runs `member` in two processes of one group; each returns what is wrong, or "".
void RunTwoMembers(const std::function<std::string(ProcessGroup&)>& member) {
  uint16_t port = 0;
  const int fd = ListenOnLoopback(&port);
  std::vector<pid_t> children;
  for (int rank = 0; rank < 2; ++rank) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      if (rank != 0) ::close(fd);
      auto group = MakeProcessGroup({.store_port = port,
                                     .store_listen_fd = rank == 0 ? fd : -1,
                                     .rank = rank,
                                     .size = 2,
                                     .timeout = Milliseconds(60000)});
      const std::string fault = group.ok() ? member(**group) : group.status().ToString();
      if (!fault.empty()) std::fprintf(stderr, "rank %d: %s\n", rank, fault.c_str());
      // Rank 0 keeps the store: it leaves last.
      const bool is_together = group.ok() && (*group)->Barrier().ok();
      ::_exit(fault.empty() && is_together ? 0 : 1);
    }
    children.push_back(child);
  }
  ::close(fd);
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  }
}

// Two processes on one host add, copy and exchange tensors over loopback: what gangs stand on.
TEST(ProcessGroup, JoinsTwoProcessesOverLoopback) {
  RunTwoMembers([](ProcessGroup& group) -> std::string {
    const int rank = group.rank();
    at::Tensor sum = at::full({3}, rank + 1.0F);
    if (Status s = group.AllReduceSum(sum); !s.ok()) return s.ToString();
    if (!at::equal(sum, at::full({3}, 3.0F))) return "wrong sum";

    at::Tensor copy = at::full({2}, 10.0F + static_cast<float>(rank));
    if (Status s = group.Broadcast(copy, 1); !s.ok()) return s.ToString();
    if (!at::equal(copy, at::full({2}, 11.0F))) return "wrong broadcast";

    // Member 0 sends 1 row to itself and 2 to member 1; member 1 sends 3 and 1.
    const std::vector<std::vector<int64_t>> rows{{1, 2}, {3, 1}};
    const auto mine = rows[static_cast<size_t>(rank)];
    at::Tensor input = at::full({mine[0] + mine[1], 2}, static_cast<float>(rank));
    const std::vector<int64_t> expected{rows[0][static_cast<size_t>(rank)],
                                        rows[1][static_cast<size_t>(rank)]};
    at::Tensor output = at::zeros({expected[0] + expected[1], 2});
    if (Status s = group.AllToAll(output, input, expected, mine); !s.ok()) return s.ToString();
    if (!at::equal(output.narrow(0, 0, expected[0]), at::full({expected[0], 2}, 0.0F)) ||
        !at::equal(output.narrow(0, expected[0], expected[1]), at::full({expected[1], 2}, 1.0F))) {
      return "wrong exchange";
    }
    at::Tensor wrong = at::zeros({5, 2});
    if (group.AllToAll(wrong, input, expected, mine).code() != Code::kInvalidArgument) {
      return "wrong row counts were taken";
    }
    return "";
  });
}

// A member whose peers never come gives up after its time with the address, instead of hanging.
TEST(ProcessGroup, GivesUpOnPeersThatDoNotCome) {
  uint16_t port = 0;
  const int fd = ListenOnLoopback(&port);
  const auto group = MakeProcessGroup({.store_port = port,
                                       .store_listen_fd = fd,
                                       .rank = 0,
                                       .size = 2,
                                       .timeout = Milliseconds(500)});
  ASSERT_FALSE(group.ok());
  EXPECT_EQ(group.status().code(), Code::kUnavailable);
  EXPECT_THAT(group.status().message(), HasSubstr("127.0.0.1"));
}

// Nonsense is refused before anything is opened.
TEST(ProcessGroup, RefusesNonsense) {
  EXPECT_EQ(MakeProcessGroup({.store_port = 1, .rank = 2, .size = 2}).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(MakeProcessGroup({.store_port = 0}).status().code(), Code::kInvalidArgument);
}

// Without a device NCCL is refused with the reason and the process goes on.
TEST(ProcessGroup, RefusesNcclWithoutAGpu) {
  if (LoadGpuSupport().ok()) GTEST_SKIP() << "this host has a GPU";
  EXPECT_FALSE(HasGpu());
  const auto group =
      MakeProcessGroup({.kind = ProcessGroupKind::kNccl, .store_port = 1, .rank = 0, .size = 1});
  EXPECT_EQ(group.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(group.status().message(), HasSubstr("NCCL needs a GPU"));
}

}  // namespace
}  // namespace switchyard::dist
