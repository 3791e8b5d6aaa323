#include "worker/model/hf/config_fields.h"

#include <cmath>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/base/strings.h"

namespace switchyard::model {
namespace {

using Json = nlohmann::json;

constexpr size_t kBytesMax = 1 << 20;

}  // namespace

struct ConfigFields::Document {
  Json object;
  std::set<std::string, std::less<>> asked;

  // Null when absent.
  const Json& At(std::string_view name) {
    static const Json kNull;
    asked.emplace(name);
    const auto found = object.find(std::string(name));
    return found == object.end() ? kNull : *found;
  }
};

ConfigFields::ConfigFields(std::unique_ptr<Document> document, std::string label)
    : document_(std::move(document)), label_(std::move(label)) {}
ConfigFields::~ConfigFields() = default;

Result<std::unique_ptr<ConfigFields>> ConfigFields::Parse(std::string_view text,
                                                          std::string_view label) {
  if (text.size() > kBytesMax) {
    return InvalidArgument(
        StrCat(label, ": ", text.size(), " bytes, expected at most ", kBytesMax));
  }
  std::vector<std::set<std::string>> keys;
  std::string twice;
  const auto watch = [&](int /*depth*/, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second &&
        twice.empty()) {
      twice = value.get<std::string>();
    }
    return true;
  };
  auto document = std::make_unique<Document>();
  try {
    document->object = Json::parse(text.begin(), text.end(), watch);
  } catch (const Json::exception& error) {
    return InvalidArgument(StrCat(label, ": not valid JSON: ", EscapeForTerminal(error.what())));
  }
  if (!twice.empty()) {
    return InvalidArgument(
        StrCat(label, ": the key '", EscapeForTerminal(twice), "' appears twice, expected once"));
  }
  if (!document->object.is_object()) {
    return InvalidArgument(StrCat(label, ": not a JSON object, expected one of model settings"));
  }
  return std::unique_ptr<ConfigFields>(new ConfigFields(std::move(document), std::string(label)));
}

std::string ConfigFields::Shown(std::string_view name) const {
  const auto found = document_->object.find(std::string(name));
  if (found == document_->object.end()) return "missing";
  std::string text = found->dump(-1, ' ', true, Json::error_handler_t::replace);
  constexpr size_t kLongest = 80;
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

bool ConfigFields::Has(std::string_view name) const { return !document_->At(name).is_null(); }

uint32_t ConfigFields::Count(std::string_view name, uint32_t min, uint32_t max) {
  const Json& value = document_->At(name);
  if (value.is_number_unsigned() && value.get<uint64_t>() >= min && value.get<uint64_t>() <= max) {
    return value.get<uint32_t>();
  }
  Fail(name, StrCat("is ", Shown(name), ", expected a whole number from ", min, " to ", max));
  return min;
}

uint32_t ConfigFields::CountOr(std::string_view name, uint32_t min, uint32_t max,
                               uint32_t otherwise) {
  return Has(name) ? Count(name, min, max) : otherwise;
}

double ConfigFields::Number(std::string_view name) {
  const Json& value = document_->At(name);
  if (value.is_number() && std::isfinite(value.get<double>())) return value.get<double>();
  Fail(name, StrCat("is ", Shown(name), ", expected a number"));
  return 0;
}

double ConfigFields::NumberOr(std::string_view name, double otherwise) {
  return Has(name) ? Number(name) : otherwise;
}

bool ConfigFields::FlagOr(std::string_view name, bool otherwise) {
  if (!Has(name)) return otherwise;
  const Json& value = document_->At(name);
  if (value.is_boolean()) return value.get<bool>();
  Fail(name, StrCat("is ", Shown(name), ", expected true or false"));
  return otherwise;
}

std::string ConfigFields::TextOr(std::string_view name, std::string_view otherwise) {
  if (!Has(name)) return std::string(otherwise);
  const Json& value = document_->At(name);
  if (value.is_string()) return value.get<std::string>();
  Fail(name, StrCat("is ", Shown(name), ", expected a text"));
  return std::string(otherwise);
}

std::vector<uint32_t> ConfigFields::Counts(std::string_view name) {
  std::vector<uint32_t> out;
  if (!Has(name)) return out;
  const Json& value = document_->At(name);
  bool is_list = value.is_array();
  if (is_list) {
    for (const Json& item : value) {
      is_list = is_list && item.is_number_unsigned() && item.get<uint64_t>() <= UINT32_MAX;
      if (is_list) out.push_back(item.get<uint32_t>());
    }
  }
  if (!is_list) Fail(name, StrCat("is ", Shown(name), ", expected a list of whole numbers"));
  return out;
}

std::vector<std::string> ConfigFields::Texts(std::string_view name) {
  std::vector<std::string> out;
  if (!Has(name)) return out;
  const Json& value = document_->At(name);
  bool is_list = value.is_array();
  if (is_list) {
    for (const Json& item : value) {
      is_list = is_list && item.is_string();
      if (is_list) out.push_back(item.get<std::string>());
    }
  }
  if (!is_list) Fail(name, StrCat("is ", Shown(name), ", expected a list of texts"));
  return out;
}

std::unique_ptr<ConfigFields> ConfigFields::Object(std::string_view name) {
  if (!Has(name)) return nullptr;
  const Json& value = document_->At(name);
  if (!value.is_object()) {
    Fail(name, StrCat("is ", Shown(name), ", expected an object"));
    return nullptr;
  }
  auto document = std::make_unique<Document>();
  document->object = value;
  return std::unique_ptr<ConfigFields>(
      new ConfigFields(std::move(document), StrCat(label_, ": ", name)));
}

void ConfigFields::Fail(std::string_view name, std::string_view what) {
  faults_.push_back(StrCat(label_, ": ", name, " ", what));
}

void ConfigFields::Adopt(ConfigFields& inner) {
  faults_.insert(faults_.end(), inner.faults_.begin(), inner.faults_.end());
  inner.faults_.clear();
}

void ConfigFields::Ignore(std::string_view name) { document_->asked.emplace(name); }

void ConfigFields::FailUnread() {
  for (const auto& [name, value] : document_->object.items()) {
    if (document_->asked.contains(name)) continue;
    if (value.is_null() || (value.is_boolean() && !value.get<bool>())) continue;
    faults_.push_back(StrCat(label_, ": ", EscapeForTerminal(name), " is ", Shown(name),
                             ", which this importer does not know; it may change what the model "
                             "computes"));
  }
}

Status ConfigFields::status() const {
  if (faults_.empty()) return OkStatus();
  return InvalidArgument(StrJoin(faults_, "\n"));
}

}  // namespace switchyard::model
