#pragma once

#include <memory>

namespace grpc {
class Service;
}

namespace switchyard::api {

struct ServiceContext;

// Submits, plans, lists and cancels sweeps. Thread-safe. What `context` points to outlives the
// service.
std::unique_ptr<grpc::Service> MakeSweepService(const ServiceContext& context);

}  // namespace switchyard::api
