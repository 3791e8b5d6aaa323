#pragma once

#include <memory>

namespace grpc {
class Service;
}

namespace switchyard::api {

struct ServiceContext;

// Lists, explains and cancels runs, and reads their output. Thread-safe. What `context` points to
// outlives the service.
std::unique_ptr<grpc::Service> MakeRunService(const ServiceContext& context);

}  // namespace switchyard::api
