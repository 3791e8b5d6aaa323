#include "server/store/pack.h"

#include <zstd.h>

#include <memory>

#include "common/base/check.h"
#include "common/base/strings.h"

namespace switchyard::store {
namespace {

constexpr int kLevel = 1;

struct FreeContext {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

}  // namespace

Packer& Packer::Put(uint64_t value) {
  while (value >= 0x80) {
    out_.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out_.push_back(static_cast<char>(value));
  return *this;
}

Packer& Packer::Put(std::string_view text) {
  Put(uint64_t{text.size()});
  out_.append(text);
  return *this;
}

Result<uint64_t> Unpacker::Uint() {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    if (rest_.empty()) return DataLoss("packed list ends early");
    const auto byte = static_cast<uint8_t>(rest_[0]);
    rest_.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  return DataLoss("packed list holds an overlong number");
}

Result<std::string> Unpacker::Text() {
  SWITCHYARD_ASSIGN_OR_RETURN(const uint64_t size, Uint());
  if (rest_.size() < size) return DataLoss("packed list ends early");
  std::string text(rest_.substr(0, size));
  rest_.remove_prefix(size);
  return text;
}

std::string PackUints(std::span<const uint64_t> values) {
  Packer packer;
  for (const uint64_t value : values) packer.Put(value);
  return std::move(packer).Take();
}

std::string PackUints(std::span<const uint32_t> values) {
  Packer packer;
  for (const uint32_t value : values) packer.Put(uint64_t{value});
  return std::move(packer).Take();
}

std::string PackTexts(std::span<const std::string> texts) {
  Packer packer;
  for (const std::string& text : texts) packer.Put(std::string_view(text));
  return std::move(packer).Take();
}

Result<std::vector<uint64_t>> UnpackUints(std::string_view bytes) {
  std::vector<uint64_t> values;
  for (Unpacker unpacker(bytes); !unpacker.is_done();) {
    SWITCHYARD_ASSIGN_OR_RETURN(const uint64_t value, unpacker.Uint());
    values.push_back(value);
  }
  return values;
}

Result<std::vector<uint32_t>> UnpackUints32(std::string_view bytes) {
  std::vector<uint32_t> values;
  for (Unpacker unpacker(bytes); !unpacker.is_done();) {
    SWITCHYARD_ASSIGN_OR_RETURN(const uint64_t value, unpacker.Uint());
    values.push_back(static_cast<uint32_t>(value));
  }
  return values;
}

Result<std::vector<std::string>> UnpackTexts(std::string_view bytes) {
  std::vector<std::string> texts;
  for (Unpacker unpacker(bytes); !unpacker.is_done();) {
    SWITCHYARD_ASSIGN_OR_RETURN(std::string text, unpacker.Text());
    texts.push_back(std::move(text));
  }
  return texts;
}

std::string Compress(std::string_view data, std::string_view dictionary) {
  static thread_local const std::unique_ptr<ZSTD_CCtx, FreeContext> context(ZSTD_createCCtx());
  std::string out(ZSTD_compressBound(data.size()), '\0');
  const size_t size =
      ZSTD_compress_usingDict(context.get(), out.data(), out.size(), data.data(), data.size(),
                              dictionary.data(), dictionary.size(), kLevel);
  SWITCHYARD_CHECK(ZSTD_isError(size) == 0) << ZSTD_getErrorName(size);
  out.resize(size);
  return out;
}

Result<std::string> Decompress(std::string_view data, std::string_view dictionary,
                               uint64_t max_bytes) {
  static thread_local const std::unique_ptr<ZSTD_DCtx, FreeContext> context(ZSTD_createDCtx());
  const unsigned long long full = ZSTD_getFrameContentSize(data.data(), data.size());
  if (full == ZSTD_CONTENTSIZE_ERROR || full == ZSTD_CONTENTSIZE_UNKNOWN || full > max_bytes) {
    return DataLoss(StrCat("compressed document of ", data.size(), " bytes is damaged or too big"));
  }
  std::string out(full, '\0');
  const size_t size = ZSTD_decompress_usingDict(context.get(), out.data(), out.size(), data.data(),
                                                data.size(), dictionary.data(), dictionary.size());
  if (ZSTD_isError(size) != 0 || size != full) {
    return DataLoss(StrCat("compressed document is damaged: ",
                           ZSTD_isError(size) != 0 ? ZSTD_getErrorName(size) : "short"));
  }
  return out;
}

}  // namespace switchyard::store
