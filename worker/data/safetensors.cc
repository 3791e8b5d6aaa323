#include "worker/data/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/base/file.h"
#include "common/base/strings.h"

namespace switchyard::data {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = uint64_t{16} << 20;
constexpr size_t kMaxTensors = 100000;
constexpr std::string_view kMetadataKey = "__metadata__";

struct DTypeFacts {
  DType dtype;
  std::string_view name;
  uint64_t bytes;
};
constexpr std::array<DTypeFacts, 15> kDTypes{{
    {DType::kBool, "BOOL", 1},
    {DType::kU8, "U8", 1},
    {DType::kI8, "I8", 1},
    {DType::kI16, "I16", 2},
    {DType::kU16, "U16", 2},
    {DType::kI32, "I32", 4},
    {DType::kU32, "U32", 4},
    {DType::kI64, "I64", 8},
    {DType::kU64, "U64", 8},
    {DType::kF16, "F16", 2},
    {DType::kBF16, "BF16", 2},
    {DType::kF32, "F32", 4},
    {DType::kF64, "F64", 8},
    {DType::kF8E4M3, "F8_E4M3", 1},
    {DType::kF8E5M2, "F8_E5M2", 1},
}};

const DTypeFacts& FactsOf(DType dtype) {
  const auto found = std::find_if(kDTypes.begin(), kDTypes.end(),
                                  [&](const DTypeFacts& facts) { return facts.dtype == dtype; });
  SWITCHYARD_CHECK(found != kDTypes.end());
  return *found;
}

// Foreign text in a message: escaped and short.
std::string Shown(std::string_view text) {
  constexpr size_t kLongest = 120;
  const bool is_long = text.size() > kLongest;
  return StrCat("'", EscapeForTerminal(text.substr(0, kLongest)), is_long ? "..." : "", "'");
}

std::string ShownShape(const std::vector<int64_t>& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += StrCat(i == 0 ? "" : ", ", shape[i]);
  return out + "]";
}

// Bytes of a tensor; nothing when the product does not fit.
std::optional<uint64_t> SizeInBytes(DType dtype, const std::vector<int64_t>& shape) {
  uint64_t product = DTypeBytes(dtype);
  // Every dimension counts for the overflow, also behind a zero: nobody can use such a shape.
  bool is_empty = false;
  for (const int64_t dimension : shape) {
    if (dimension == 0) {
      is_empty = true;
      continue;
    }
    if (__builtin_mul_overflow(product, static_cast<uint64_t>(dimension), &product)) {
      return std::nullopt;
    }
  }
  if (product > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  return is_empty ? 0 : product;
}

struct Entry {
  std::string name;
  std::optional<DType> dtype;
  std::optional<std::vector<int64_t>> shape;
  std::vector<uint64_t> offsets;
  bool has_offsets = false;
};

// Walks the header's JSON without building a document, so that depth and size are bounded by the
// form that the header must have. Every callback returns false at the first fault.
class HeaderHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  const std::string& error() const { return error_; }
  std::vector<Entry>& entries() { return entries_; }
  std::map<std::string, std::string>& metadata() { return metadata_; }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool value) override { return Unexpected(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return Number(value < 0, 0, value); }
  bool number_unsigned(number_unsigned_t value) override { return Number(false, value, 0); }
  bool number_float(number_float_t /*value*/, const string_t& text) override {
    return Unexpected(StrCat("the number ", Shown(text)));
  }
  bool binary(binary_t& /*value*/) override { return Unexpected("binary data"); }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      metadata_[key_] = std::move(value);
      return true;
    }
    if (place_ == Place::kTensor && key_ == "dtype") {
      for (const DTypeFacts& facts : kDTypes) {
        if (facts.name == value) entries_.back().dtype = facts.dtype;
      }
      if (!entries_.back().dtype) {
        std::vector<std::string> names;
        for (const DTypeFacts& facts : kDTypes) names.emplace_back(facts.name);
        return Fail(StrCat("tensor ", Shown(entries_.back().name), ": dtype ", Shown(value),
                           " is unknown; known: ", StrJoin(names, " ")));
      }
      return true;
    }
    return Unexpected(StrCat("the text ", Shown(value)));
  }

  bool start_object(std::size_t /*elements*/) override {
    switch (place_) {
      case Place::kOutside:
        place_ = Place::kTop;
        return true;
      case Place::kTop:
        keys_.clear();
        place_ = key_ == kMetadataKey ? Place::kMetadata : Place::kTensor;
        if (place_ == Place::kTensor) {
          if (entries_.size() == kMaxTensors) {
            return Fail(StrCat("more than ", kMaxTensors, " tensors"));
          }
          entries_.push_back({.name = key_});
        }
        return true;
      case Place::kTensor:
      case Place::kMetadata:
      case Place::kShape:
      case Place::kOffsets:
        return Unexpected("an object");
    }
    return false;
  }

  bool end_object() override {
    if (place_ == Place::kTop) {
      place_ = Place::kOutside;
      return true;
    }
    if (place_ == Place::kTensor) {
      const Entry& entry = entries_.back();
      const char* missing = !entry.dtype         ? "dtype"
                            : !entry.shape       ? "shape"
                            : !entry.has_offsets ? "data_offsets"
                                                 : nullptr;
      if (missing != nullptr) {
        return Fail(StrCat("tensor ", Shown(entry.name), " has no ", missing));
      }
    }
    place_ = Place::kTop;
    return true;
  }

  bool key(string_t& value) override {
    key_ = value;
    if (place_ == Place::kTop) {
      if (!names_.insert(key_).second) {
        return Fail(StrCat("the name ", Shown(key_), " appears twice, expected once"));
      }
      return true;
    }
    if (!keys_.insert(key_).second) {
      return Fail(StrCat(Where(), ": the key ", Shown(key_), " appears twice, expected once"));
    }
    if (place_ == Place::kTensor && key_ != "dtype" && key_ != "shape" && key_ != "data_offsets") {
      return Fail(StrCat(Where(), ": unknown key ", Shown(key_),
                         ", expected dtype, shape and data_offsets"));
    }
    return true;
  }

  bool start_array(std::size_t /*elements*/) override {
    if (place_ == Place::kTensor && key_ == "shape") {
      entries_.back().shape.emplace();
      place_ = Place::kShape;
      return true;
    }
    if (place_ == Place::kTensor && key_ == "data_offsets") {
      entries_.back().has_offsets = true;
      place_ = Place::kOffsets;
      return true;
    }
    return Unexpected("an array");
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && entries_.back().offsets.size() != 2) {
      return Fail(StrCat("tensor ", Shown(entries_.back().name), ": data_offsets has ",
                         entries_.back().offsets.size(), " numbers, expected 2 (begin, end)"));
    }
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::json::exception& error) override {
    if (error_.empty()) {
      error_ = StrCat("the header is not valid JSON at its byte ", position, " (",
                      EscapeForTerminal(error.what()), ")");
    }
    return false;
  }

 private:
  enum class Place { kOutside, kTop, kTensor, kMetadata, kShape, kOffsets };

  bool Fail(std::string message) {
    error_ = std::move(message);
    return false;
  }

  std::string Where() const {
    switch (place_) {
      case Place::kOutside:
      case Place::kTop:
        return "header";
      case Place::kMetadata:
        return std::string(kMetadataKey);
      case Place::kTensor:
      case Place::kShape:
      case Place::kOffsets:
        return StrCat("tensor ", Shown(entries_.back().name));
    }
    return "";
  }

  bool Unexpected(std::string_view what) {
    switch (place_) {
      case Place::kOutside:
        return Fail(StrCat("the header is ", what, ", expected an object of tensors"));
      case Place::kTop:
        return Fail(StrCat("tensor ", Shown(key_), " is ", what,
                           ", expected an object with dtype, shape and data_offsets"));
      case Place::kMetadata:
        return Fail(StrCat(kMetadataKey, ": ", Shown(key_), " is ", what, ", expected a text"));
      case Place::kTensor:
        return Fail(StrCat(Where(), ": ", key_, " is ", what, ", expected ",
                           key_ == "dtype" ? "the name of a type" : "an array of integers"));
      case Place::kShape:
        return Fail(StrCat(Where(), ": shape holds ", what,
                           ", expected integers from 0 to 9223372036854775807"));
      case Place::kOffsets:
        return Fail(StrCat(Where(), ": data_offsets holds ", what,
                           ", expected integers from 0 to 18446744073709551615"));
    }
    return false;
  }

  bool Number(bool is_negative, uint64_t value, int64_t negative_value) {
    if (place_ == Place::kShape && !is_negative &&
        value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      // More dimensions than any tensor library takes.
      constexpr size_t kMaxRank = 64;
      if (entries_.back().shape->size() == kMaxRank) {
        return Fail(StrCat(Where(), ": shape has more than ", kMaxRank, " dimensions"));
      }
      entries_.back().shape->push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ == Place::kOffsets && !is_negative && entries_.back().offsets.size() < 2) {
      entries_.back().offsets.push_back(value);
      return true;
    }
    if (place_ == Place::kOffsets && !is_negative) {
      return Fail(StrCat(Where(), ": data_offsets has more than 2 numbers, expected begin, end"));
    }
    return Unexpected(is_negative ? StrCat("the number ", negative_value)
                                  : StrCat("the number ", value));
  }

  Place place_ = Place::kOutside;
  std::string key_;
  std::set<std::string> names_;
  std::set<std::string> keys_;
  std::vector<Entry> entries_;
  std::map<std::string, std::string> metadata_;
  std::string error_;
};

Status Bad(std::string_view label, std::string_view what) {
  return DataLoss(StrCat(label, ": not a valid safetensors file: ", what));
}

}  // namespace

std::string_view DTypeName(DType dtype) { return FactsOf(dtype).name; }
uint64_t DTypeBytes(DType dtype) { return FactsOf(dtype).bytes; }

Result<SafetensorsContent> ParseSafetensors(std::string_view bytes, std::string_view label) {
  if (bytes.size() < kLengthBytes) {
    return Bad(label, StrCat("it has ", bytes.size(), " bytes, expected at least ", kLengthBytes,
                             " (the length of the header)"));
  }
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    header_bytes |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  const uint64_t limit = std::min<uint64_t>(kMaxHeaderBytes, bytes.size() - kLengthBytes);
  if (header_bytes > limit) {
    return Bad(label, StrCat("the header claims ", header_bytes, " bytes, expected at most ", limit,
                             limit == kMaxHeaderBytes ? " (16 MiB)" : " (what the file holds)"));
  }
  const std::string_view header = bytes.substr(kLengthBytes, header_bytes);
  if (header.empty() || header.front() != '{') {
    return Bad(label, header.empty() ? "the header is empty, expected a JSON object"
                                     : StrCat("the header begins with ", Shown(header.substr(0, 1)),
                                              ", expected {"));
  }
  if (!IsValidUtf8(header)) return Bad(label, "the header is not valid UTF-8");

  HeaderHandler handler;
  if (!nlohmann::json::sax_parse(header.begin(), header.end(), &handler)) {
    return Bad(label, handler.error());
  }

  std::vector<Entry>& entries = handler.entries();
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.offsets < b.offsets; });
  const std::string_view data = bytes.substr(kLengthBytes + header_bytes);
  SafetensorsContent content;
  content.metadata = std::move(handler.metadata());
  content.tensors.reserve(entries.size());
  uint64_t end_before = 0;
  std::string name_before;
  for (Entry& entry : entries) {
    const uint64_t begin = entry.offsets[0];
    const uint64_t end = entry.offsets[1];
    const std::string where =
        StrCat("tensor ", Shown(entry.name), ": data_offsets [", begin, ", ", end, "] ");
    if (end < begin) return Bad(label, StrCat(where, "end before they begin"));
    if (end > data.size()) {
      return Bad(label, StrCat(where, "end past the data, which has ", data.size(), " bytes"));
    }
    const std::optional<uint64_t> size = SizeInBytes(*entry.dtype, *entry.shape);
    if (!size) {
      return Bad(label, StrCat("tensor ", Shown(entry.name), ": the size of shape ",
                               ShownShape(*entry.shape), " of ", DTypeName(*entry.dtype),
                               " does not fit 63 bits"));
    }
    if (*size != end - begin) {
      return Bad(label,
                 StrCat(where, "hold ", end - begin, " bytes, expected ", *size, " for shape ",
                        ShownShape(*entry.shape), " of ", DTypeName(*entry.dtype)));
    }
    if (begin != end_before) {
      return Bad(label,
                 StrCat(where, begin < end_before ? "overlap tensor " : "leave a hole after ",
                        begin < end_before    ? Shown(name_before)
                        : name_before.empty() ? "the header"
                                              : StrCat("tensor ", Shown(name_before)),
                        ", expected them to begin at ", end_before));
    }
    end_before = end;
    name_before = entry.name;
    content.tensors.push_back({.name = std::move(entry.name),
                               .dtype = *entry.dtype,
                               .shape = std::move(*entry.shape),
                               .data = data.substr(begin, end - begin)});
  }
  if (end_before != data.size()) {
    return Bad(label, StrCat("the last tensor ends at byte ", end_before,
                             " of the data, expected its end at ", data.size()));
  }
  return content;
}

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path,
                                                               uint64_t max_bytes) {
  // O_NONBLOCK: a fifo must not park us; regular files do not care.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.is_valid()) return ErrnoStatus("cannot open", path, errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus("cannot stat", path, errno);
  if (!S_ISREG(info.st_mode)) {
    return InvalidArgument(StrCat(path, ": not a regular file, expected a safetensors file"));
  }
  const auto size = static_cast<uint64_t>(info.st_size);
  if (size > max_bytes) {
    return ResourceExhausted(StrCat(path, ": ", size, " bytes, expected at most ", max_bytes));
  }
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile);
  file->path_ = path;
  if (size > 0) {
    void* mapping = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (mapping == MAP_FAILED) return ErrnoStatus("cannot map", path, errno);
    file->mapping_ = mapping;
    file->size_ = size;
  }
  SWITCHYARD_ASSIGN_OR_RETURN(
      file->content_,
      ParseSafetensors({static_cast<const char*>(file->mapping_), file->size_}, path));
  for (size_t i = 0; i < file->content_.tensors.size(); ++i) {
    file->by_name_.emplace(file->content_.tensors[i].name, i);
  }
  return file;
}

SafetensorsFile::~SafetensorsFile() {
  if (mapping_ != nullptr) ::munmap(mapping_, size_);
}

const TensorView* SafetensorsFile::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &content_.tensors[found->second];
}

namespace {

Status WriteTo(int fd, const std::string& path, std::string_view header,
               const std::vector<const TensorView*>& tensors) {
  char length[kLengthBytes];
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  }
  SWITCHYARD_RETURN_IF_ERROR(WriteAll(fd, {length, kLengthBytes}, path));
  SWITCHYARD_RETURN_IF_ERROR(WriteAll(fd, header, path));
  for (const TensorView* tensor : tensors) {
    SWITCHYARD_RETURN_IF_ERROR(WriteAll(fd, tensor->data, path));
  }
  if (::fsync(fd) != 0) return ErrnoStatus("cannot sync", path, errno);
  return OkStatus();
}

std::string ParentOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

Status WriteSafetensors(const std::string& path, const std::vector<TensorView>& tensors,
                        const std::map<std::string, std::string>& metadata, WriteMode mode) {
  if (tensors.size() > kMaxTensors) {
    return InvalidArgument(
        StrCat(path, ": ", tensors.size(), " tensors, expected at most ", kMaxTensors));
  }
  std::vector<const TensorView*> sorted;
  sorted.reserve(tensors.size());
  for (const TensorView& tensor : tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(),
            [](const TensorView* a, const TensorView* b) { return a->name < b->name; });

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) {
    for (const auto& [key, value] : metadata) {
      if (!IsValidUtf8(key) || !IsValidUtf8(value)) {
        return InvalidArgument(
            StrCat(path, ": metadata ", Shown(key), " is not valid UTF-8 in key or value"));
      }
    }
    header[std::string(kMetadataKey)] = metadata;
  }
  // Appended by hand: ordered_json looks every key up by a linear scan.
  std::string text = metadata.empty() ? "{" : header.dump();
  if (!metadata.empty()) text.pop_back();
  uint64_t offset = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    const TensorView& tensor = *sorted[i];
    if (!IsValidUtf8(tensor.name) || tensor.name == kMetadataKey) {
      return InvalidArgument(StrCat(path, ": ", Shown(tensor.name), " cannot name a tensor"));
    }
    if (i > 0 && sorted[i - 1]->name == tensor.name) {
      return InvalidArgument(StrCat(path, ": two tensors are named ", Shown(tensor.name)));
    }
    const bool has_negative = std::any_of(tensor.shape.begin(), tensor.shape.end(),
                                          [](int64_t dimension) { return dimension < 0; });
    const std::optional<uint64_t> size =
        has_negative ? std::nullopt : SizeInBytes(tensor.dtype, tensor.shape);
    if (!size || *size != tensor.data.size()) {
      return InvalidArgument(StrCat(path, ": tensor ", Shown(tensor.name), " has ",
                                    tensor.data.size(), " bytes, which does not match shape ",
                                    ShownShape(tensor.shape), " of ", DTypeName(tensor.dtype)));
    }
    const nlohmann::ordered_json entry = {
        {"dtype", std::string(DTypeName(tensor.dtype))},
        {"shape", tensor.shape},
        {"data_offsets", {offset, offset + *size}},
    };
    text += StrCat(text.size() > 1 ? "," : "", nlohmann::ordered_json(tensor.name).dump(), ":",
                   entry.dump());
    offset += *size;
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > kMaxHeaderBytes) {
    return InvalidArgument(
        StrCat(path, ": the header takes ", text.size(), " bytes, expected at most 16 MiB"));
  }

  const std::string target = mode == WriteMode::kAtomic ? StrCat(path, ".tmp") : path;
  Status written;
  {
    const UniqueFd fd(
        ::open(target.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644));
    if (!fd.is_valid()) return ErrnoStatus("cannot create", target, errno);
    written = WriteTo(fd.get(), target, text, sorted);
  }
  if (written.ok() && mode == WriteMode::kAtomic) {
    if (::rename(target.c_str(), path.c_str()) != 0) {
      written = ErrnoStatus("cannot rename to", path, errno);
    } else {
      return SyncDirectory(ParentOf(path));
    }
  }
  // A torn file must not lie about under a name that somebody may read.
  if (!written.ok()) ::unlink(target.c_str());
  return written;
}

}  // namespace switchyard::data
