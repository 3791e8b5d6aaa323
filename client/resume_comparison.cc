#include "client/resume_comparison.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include <nlohmann/json.hpp>

#include "common/base/strings.h"
#include "common/events/line.h"
#include "worker/data/safetensors.h"

namespace switchyard::client {
namespace {

constexpr const char* kFiles[] = {"model.safetensors", "state.safetensors"};

// What the clock decides, and the facts that every attempt begins with.
bool IsOwnOfAttempt(std::string_view series) {
  return series == "train/step_seconds" || series == "train/tokens_per_second" ||
         series == "train/data_wait_seconds" || series.starts_with("model/");
}

std::string ValueText(const std::vector<uint64_t>& bits) {
  std::string text;
  for (size_t i = 0; i < bits.size() && i < 4; ++i) {
    text += StrCat(i > 0 ? ", " : "", FormatDouble(std::bit_cast<double>(bits[i])));
  }
  return bits.size() > 4 ? text + ", ..." : text;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += StrCat(i > 0 ? ", " : "", shape[i]);
  return text + "]";
}

// "[3, 17]" of the element `index` in row-major order.
std::string IndexText(const std::vector<int64_t>& shape, uint64_t index) {
  std::vector<int64_t> places(shape.size());
  for (size_t i = shape.size(); i-- > 0;) {
    const auto size = static_cast<uint64_t>(shape[i]);
    places[i] = static_cast<int64_t>(index % size);
    index /= size;
  }
  return ShapeText(places);
}

template <typename T>
std::string NumberAt(std::string_view data, uint64_t index) {
  T value;
  std::memcpy(&value, data.data() + index * sizeof(T), sizeof(T));
  if constexpr (std::is_floating_point_v<T>) return FormatDouble(value);
  return StrCat(value);
}

std::string ElementText(const data::TensorView& tensor, uint64_t index) {
  switch (tensor.dtype) {
    case data::DType::kF32:
      return NumberAt<float>(tensor.data, index);
    case data::DType::kF64:
      return NumberAt<double>(tensor.data, index);
    case data::DType::kI64:
      return NumberAt<int64_t>(tensor.data, index);
    default:
      return StrCat("bytes of type ", data::DTypeName(tensor.dtype));
  }
}

// Empty when equal.
std::string Difference(const data::TensorView& left, const data::TensorView& right) {
  if (left.dtype != right.dtype || left.shape != right.shape) {
    return StrCat(data::DTypeName(left.dtype), " ", ShapeText(left.shape), " and ",
                  data::DTypeName(right.dtype), " ", ShapeText(right.shape));
  }
  if (left.data == right.data) return "";
  uint64_t byte = 0;
  while (left.data[byte] == right.data[byte]) ++byte;
  const uint64_t index = byte / data::DTypeBytes(left.dtype);
  return StrCat("element ", IndexText(left.shape, index), " is ", ElementText(left, index), " and ",
                ElementText(right, index));
}

}  // namespace

Status ReportedCurves::Add(std::string_view line) {
  if (line.empty()) return OkStatus();
  SWITCHYARD_ASSIGN_OR_RETURN(const events::ParsedLine parsed, events::ParseLine(line));
  if (parsed.type == "ckpt") {
    const auto json = nlohmann::json::parse(parsed.json, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_unsigned()) {
      return InvalidArgument(StrCat("a ckpt line without its step: ", parsed.json));
    }
    checkpoints_.insert(json["step"].get<uint64_t>());
  }
  if (parsed.type != "m") return OkStatus();
  last_step_ = std::max(last_step_, parsed.step);
  const auto keep = [&](const std::string& name, const std::vector<uint64_t>& bits) {
    if (IsOwnOfAttempt(name)) return;
    const auto [at, is_new] = series_[name].try_emplace(parsed.step, bits);
    if (is_new || at->second == bits || !contradiction_.empty()) return;
    contradiction_ = StrCat(name, " at step ", parsed.step, " was reported as ",
                            ValueText(at->second), " and again as ", ValueText(bits));
  };
  for (const auto& [name, value] : parsed.scalars) keep(name, {std::bit_cast<uint64_t>(value)});
  for (const events::VectorPoint& vector : parsed.vectors) {
    std::vector<uint64_t> bits;
    for (const float value : vector.values) {
      bits.push_back(std::bit_cast<uint64_t>(static_cast<double>(value)));
    }
    keep(vector.name, bits);
  }
  return OkStatus();
}

std::string ReportedCurves::FirstDifference(const ReportedCurves& other) const {
  for (const auto& [name, points] : series_) {
    const auto found = other.series_.find(name);
    if (found == other.series_.end()) return StrCat(name, " is missing in one of them");
    for (const auto& [step, bits] : points) {
      const auto point = found->second.find(step);
      if (point == found->second.end()) {
        return StrCat(name, " has step ", step, " in one of them only");
      }
      if (point->second != bits) {
        return StrCat(name, " at step ", step, " is ", ValueText(bits), " and ",
                      ValueText(point->second));
      }
    }
    for (const auto& [step, bits] : found->second) {
      if (!points.contains(step)) return StrCat(name, " has step ", step, " in one of them only");
    }
  }
  for (const auto& [name, points] : other.series_) {
    if (!series_.contains(name)) return StrCat(name, " is missing in one of them");
  }
  return "";
}

uint64_t ReportedCurves::points() const {
  uint64_t count = 0;
  for (const auto& [name, points] : series_) count += points.size();
  return count;
}

std::map<uint64_t, double> ReportedCurves::Scalars(const std::string& series) const {
  std::map<uint64_t, double> out;
  const auto found = series_.find(series);
  if (found == series_.end()) return out;
  for (const auto& [step, bits] : found->second) {
    if (bits.size() == 1) out[step] = std::bit_cast<double>(bits.front());
  }
  return out;
}

Result<TensorComparison> CompareCheckpoints(const std::string& left, const std::string& right) {
  TensorComparison out;
  for (const char* file : kFiles) {
    SWITCHYARD_ASSIGN_OR_RETURN(const auto a, data::SafetensorsFile::Open(StrCat(left, "/", file)));
    SWITCHYARD_ASSIGN_OR_RETURN(const auto b,
                                data::SafetensorsFile::Open(StrCat(right, "/", file)));
    const auto differ = [&](const std::string& name, const std::string& how) {
      if (out.first_difference.empty()) out.first_difference = StrCat(file, ": ", name, ": ", how);
    };
    for (const data::TensorView& tensor : a->tensors()) {
      ++out.tensors;
      out.bytes += tensor.data.size();
      const data::TensorView* same = b->Find(tensor.name);
      if (same == nullptr) {
        differ(tensor.name, "is missing in the second");
      } else if (std::string how = Difference(tensor, *same); !how.empty()) {
        differ(tensor.name, how);
      }
    }
    for (const data::TensorView& tensor : b->tensors()) {
      if (a->Find(tensor.name) == nullptr) differ(tensor.name, "is missing in the first");
    }
  }
  return out;
}

}  // namespace switchyard::client
