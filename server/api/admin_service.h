#pragma once

#include <memory>

namespace grpc {
class Service;
}

namespace switchyard::api {

struct ServiceContext;

// State of the coordinator and its workers. Thread-safe. What `context` points to outlives the
// service.
std::unique_ptr<grpc::Service> MakeAdminService(const ServiceContext& context);

}  // namespace switchyard::api
