#pragma once

#include <memory>

namespace grpc {
class Service;
}

namespace switchyard::api {

struct ServiceContext;

// What agents call. Batches are decoded on gRPC's threads, in parallel. Thread-safe. What `context`
// points to outlives the service.
std::unique_ptr<grpc::Service> MakeWorkerService(const ServiceContext& context);

}  // namespace switchyard::api
