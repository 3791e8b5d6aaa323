#pragma once

#include <memory>

namespace grpc {
class Service;
}

namespace switchyard::api {

struct ServiceContext;

// Summaries and curves. Reads only. Thread-safe. What `context` points to outlives the service.
std::unique_ptr<grpc::Service> MakeResultsService(const ServiceContext& context);

}  // namespace switchyard::api
