#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace switchyard::dist {

enum class ProcessGroupKind { kGloo, kNccl };

struct ProcessGroupOptions {
  // kNccl needs HasGpu().
  ProcessGroupKind kind = ProcessGroupKind::kGloo;
  // Where rank 0 keeps the store that the members meet at; an address of rank 0's host. Rank 0
  // listens on this address only.
  std::string store_host = "127.0.0.1";
  uint16_t store_port = 0;
  // Rank 0: a listening socket to use instead of opening `store_port`; taken over. -1: none.
  int store_listen_fd = -1;
  // Gloo: the own address that the other members can reach.
  std::string own_host = "127.0.0.1";
  // NCCL: number of the device.
  int device = 0;
  int rank = 0;
  int size = 1;
  // For meeting, and for each collective call.
  Milliseconds timeout{60000};
};

// The members of one attempt, able to talk. All of them make the same calls in the same order with
// tensors of the same shapes; a call returns when this member's part is done. After an error the
// group is spent: end the process. One thread at a time.
//
// Errors: kInvalidArgument (a tensor that is not contiguous, a rank out of range), kUnavailable
// (a member is gone or late, with what the transport says).
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // `tensor` becomes the sum over all members.
  virtual Status AllReduceSum(at::Tensor& tensor) = 0;
  // `tensor` becomes that of member `root`.
  virtual Status Broadcast(at::Tensor& tensor, int root) = 0;
  // Rows of `input` go to the members, input_rows[m] to member m in order; `output` gets
  // output_rows[m] rows from member m.
  virtual Status AllToAll(at::Tensor& output, at::Tensor& input, std::vector<int64_t> output_rows,
                          std::vector<int64_t> input_rows) = 0;
  virtual Status Barrier() = 0;
};

// Meets the other members and returns when all are there. kInvalidArgument, kFailedPrecondition (no
// GPU parts for NCCL), kUnavailable (somebody did not come in time).
Result<std::unique_ptr<ProcessGroup>> MakeProcessGroup(const ProcessGroupOptions& options);

}  // namespace switchyard::dist
