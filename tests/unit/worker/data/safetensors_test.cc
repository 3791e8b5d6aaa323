#include "worker/data/safetensors.h"

#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/strings.h"
#include "tests/unit/worker/data/testing.h"

namespace switchyard::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

// A file of `header` and `data`; `length` overrides the header's length.
std::string File(std::string_view header, std::string_view data,
                 std::optional<uint64_t> length = std::nullopt) {
  std::string out(8, '\0');
  const uint64_t n = length.value_or(header.size());
  std::memcpy(out.data(), &n, 8);
  return StrCat(out, header, data);
}

const std::string k16(16, 'x');

// Every dtype, a scalar and an empty tensor survive a round trip through a file bit by bit, in the
// order of names, with the metadata: a checkpoint must give back what it was given.
TEST(Safetensors, GivesBackWhatWasWritten) {
  const TempFolder folder;
  const std::string bytes(64, '\xa5');
  std::vector<TensorView> tensors;
  for (const DType dtype :
       {DType::kBool, DType::kU8, DType::kI8, DType::kI16, DType::kU16, DType::kI32, DType::kU32,
        DType::kI64, DType::kU64, DType::kF16, DType::kBF16, DType::kF32, DType::kF64,
        DType::kF8E4M3, DType::kF8E5M2}) {
    tensors.push_back({.name = StrCat("t.", DTypeName(dtype)),
                       .dtype = dtype,
                       .shape = {1, 3},
                       .data = std::string_view(bytes).substr(0, 3 * DTypeBytes(dtype))});
  }
  tensors.push_back({.name = "scalar", .dtype = DType::kF32, .shape = {}, .data = "abcd"});
  tensors.push_back({.name = "empty \"\u00e9\"", .dtype = DType::kF64, .shape = {0, 7}});
  const std::string path = folder.Path("model.safetensors");
  for (const WriteMode mode : {WriteMode::kAtomic, WriteMode::kInPlace}) {
    ASSERT_EQ(WriteSafetensors(path, tensors, {{"format", "pt"}, {"step", "12"}}, mode),
              OkStatus());
    auto file = SafetensorsFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    EXPECT_THAT((*file)->metadata(), ElementsAre(Pair("format", "pt"), Pair("step", "12")));
    ASSERT_EQ((*file)->tensors().size(), tensors.size());
    for (const TensorView& want : tensors) {
      const TensorView* got = (*file)->Find(want.name);
      ASSERT_NE(got, nullptr) << want.name;
      EXPECT_EQ(got->dtype, want.dtype);
      EXPECT_EQ(got->shape, want.shape);
      EXPECT_EQ(got->data, want.data);
    }
    EXPECT_EQ((*file)->Find("absent"), nullptr);
    EXPECT_EQ((*file)->tensors().front().name, "empty \"\u00e9\"");
  }
  EXPECT_FALSE(std::ifstream(path + ".tmp").good());
}

// A file without tensors, with and without metadata, is valid: an optimizer may have no state yet.
TEST(Safetensors, HoldsNoTensorsToo) {
  const TempFolder folder;
  const std::string path = folder.Path("empty.safetensors");
  ASSERT_EQ(WriteSafetensors(path, {}, {}), OkStatus());
  EXPECT_EQ(ReadAll(path), File("{}      ", ""));
  ASSERT_EQ(WriteSafetensors(path, {}, {{"a", "b"}}), OkStatus());
  auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_THAT((*file)->tensors(), IsEmpty());
  EXPECT_THAT((*file)->metadata(), ElementsAre(Pair("a", "b")));
}

// The order of the arguments does not reach the file: equal states give equal bytes.
TEST(Safetensors, WritesEqualBytesForAnyOrderOfArguments) {
  const TempFolder folder;
  const TensorView a{.name = "a", .dtype = DType::kF32, .shape = {1}, .data = "aaaa"};
  const TensorView b{.name = "b", .dtype = DType::kF16, .shape = {1}, .data = "bb"};
  ASSERT_EQ(WriteSafetensors(folder.Path("1"), {a, b}, {}), OkStatus());
  ASSERT_EQ(WriteSafetensors(folder.Path("2"), {b, a}, {}), OkStatus());
  EXPECT_EQ(ReadAll(folder.Path("1")), ReadAll(folder.Path("2")));
}

// What cannot be read back is not written, and an older file of the name stays.
TEST(Safetensors, RefusesToWriteWhatCouldNotBeRead) {
  const TempFolder folder;
  const std::string path = folder.Write("kept", "old");
  const TensorView ok{.name = "a", .dtype = DType::kF32, .shape = {1}, .data = "aaaa"};
  TensorView wrong = ok;
  wrong.shape = {2};
  EXPECT_THAT(WriteSafetensors(path, {wrong}, {}).message(), HasSubstr("does not match shape [2]"));
  wrong.shape = {-1};
  EXPECT_EQ(WriteSafetensors(path, {wrong}, {}).code(), Code::kInvalidArgument);
  wrong = ok;
  wrong.name = "__metadata__";
  EXPECT_EQ(WriteSafetensors(path, {wrong}, {}).code(), Code::kInvalidArgument);
  wrong.name = "\xff";
  EXPECT_EQ(WriteSafetensors(path, {wrong}, {}).code(), Code::kInvalidArgument);
  EXPECT_THAT(WriteSafetensors(path, {ok, ok}, {}).message(), HasSubstr("two tensors are named"));
  EXPECT_EQ(WriteSafetensors(path, {ok}, {{"k", "\xff"}}).code(), Code::kInvalidArgument);
  EXPECT_EQ(ReadAll(path), "old");
  EXPECT_EQ(WriteSafetensors(folder.Path("no/such/folder/x"), {ok}, {}).code(), Code::kNotFound);
}

struct Malformed {
  const char* name;
  std::string content;
  const char* message;
};

// Each malformed file is refused with what is wrong: a checkpoint that crossed a trust border must
// neither crash the trainer nor load by halves.
TEST(Safetensors, RefusesMalformedFilesWithTheReason) {
  const std::vector<Malformed> cases = {
      {"nothing", "", "has 0 bytes, expected at least 8"},
      {"seven bytes", "1234567", "has 7 bytes"},
      {"past the end", File("{}", "", 1000), "claims 1000 bytes, expected at most 2"},
      {"above 2^63", File("{}", "", (uint64_t{1} << 63) + 11), "claims 9223372036854775819 bytes"},
      {"no header", File("", ""), "the header is empty"},
      {"leading blank", File(" {}", ""), "begins with ' '"},
      {"not JSON", File("{nope}", ""), "not valid JSON"},
      {"cut JSON", File("{\"a\":", ""), "not valid JSON"},
      {"array", File("[]", ""), "begins with '['"},
      {"two documents", File("{}{}", ""), "not valid JSON"},
      {"ill-formed UTF-8", File("{\"\xff\":1}", ""), "not valid UTF-8"},
      {"deep", File(StrCat("{\"a\":", std::string(100000, '[')), ""), "expected an object with"},
      {"number for tensor", File("{\"a\":1}", ""), "'a' is the number 1"},
      {"null dtype", File(R"({"a":{"dtype":null}})", ""), "dtype is null"},
      {"unknown dtype", File(R"({"w":{"dtype":"F24","shape":[4],"data_offsets":[0,16]}})", k16),
       "tensor 'w': dtype 'F24' is unknown; known: BOOL"},
      {"unknown key", File(R"({"w":{"type":"F32"}})", ""), "unknown key 'type'"},
      {"no shape", File(R"({"w":{"dtype":"F32","data_offsets":[0,16]}})", k16), "has no shape"},
      {"no offsets", File(R"({"w":{"dtype":"F32","shape":[4]}})", k16), "has no data_offsets"},
      {"one offset", File(R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0]}})", k16),
       "data_offsets has 1 numbers, expected 2"},
      {"three offsets", File(R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,1,2]}})", k16),
       "more than 2 numbers"},
      {"negative dimension",
       File(R"({"w":{"dtype":"F32","shape":[-2,-2],"data_offsets":[0,16]}})", k16),
       "shape holds the number -2"},
      {"fraction", File(R"({"w":{"dtype":"F32","shape":[4.0],"data_offsets":[0,16]}})", k16),
       "shape holds the number '4.0'"},
      {"2^64 dimension",
       File(R"({"w":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,16]}})", k16),
       "shape holds the number"},
      {"shape overflow",
       File(R"({"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,16]}})", k16),
       "does not fit 63 bits"},
      {"overflow behind zero",
       File(R"({"w":{"dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}})", ""),
       "does not fit 63 bits"},
      {"reversed", File(R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}})", k16),
       "[16, 0] end before they begin"},
      {"data cut", File(R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", "123456789"),
       "past the data, which has 9 bytes"},
      {"data extra",
       File(R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", k16 + "12345"),
       "ends at byte 16 of the data, expected its end at 21"},
      {"size unlike shape",
       File(R"({"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,16]}})", k16),
       "hold 16 bytes, expected 24 for shape [2, 3] of F32"},
      {"overlap",
       File(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},)"
            R"("b":{"dtype":"F32","shape":[3],"data_offsets":[4,16]}})",
            k16),
       "tensor 'b': data_offsets [4, 16] overlap tensor 'a'"},
      {"hole",
       File(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
            R"("b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})",
            k16),
       "leave a hole after tensor 'a', expected them to begin at 4"},
      {"late begin", File(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})", k16),
       "leave a hole after the header"},
      {"name twice",
       File(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
            R"("w":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
            k16),
       "the name 'w' appears twice"},
      {"key twice", File(R"({"w":{"dtype":"F32","dtype":"F32"}})", ""), "'dtype' appears twice"},
      {"metadata twice", File(R"({"__metadata__":{"a":"b","a":"c"}})", ""), "'a' appears twice"},
      {"metadata number", File(R"({"__metadata__":{"a":1}})", ""), "expected a text"},
      {"escape in name", File("{\"\\u001b[31m\":1}", ""), "'\\x1b[31m'"},
  };
  for (const Malformed& c : cases) {
    SCOPED_TRACE(c.name);
    const auto content = ParseSafetensors(c.content, "m.safetensors");
    ASSERT_FALSE(content.ok());
    EXPECT_EQ(content.status().code(), Code::kDataLoss);
    EXPECT_THAT(content.status().message(), HasSubstr("m.safetensors"));
    EXPECT_THAT(content.status().message(), HasSubstr(c.message));
  }
}

// The limit on tensors holds before anything is built for them.
TEST(Safetensors, RefusesMoreThanAHundredThousandTensors) {
  std::string header = "{";
  for (int i = 0; i <= 100000; ++i) {
    header += StrCat(i == 0 ? "" : ",", "\"", i, "\":{\"dtype\":\"U8\",\"shape\":[0],",
                     "\"data_offsets\":[0,0]}");
  }
  const auto content = ParseSafetensors(File(header + "}", ""), "many");
  ASSERT_FALSE(content.ok());
  EXPECT_THAT(content.status().message(), HasSubstr("more than 100000 tensors"));
}

// A header may name tensors in any order; offsets need no alignment and empty tensors share them.
TEST(Safetensors, TakesAnyOrderOfNamesAndUnalignedOffsets) {
  // The views point into it.
  const std::string file = File(R"({"z":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                                R"("e":{"dtype":"F32","shape":[0],"data_offsets":[3,3]},)"
                                R"("a":{"dtype":"F32","shape":[],"data_offsets":[3,7]}}   )",
                                "abcdefg");
  const auto content = ParseSafetensors(file, "f");
  ASSERT_TRUE(content.ok()) << content.status().ToString();
  ASSERT_EQ(content->tensors.size(), 3U);
  EXPECT_EQ(content->tensors[0].data, "abc");
  EXPECT_EQ(content->tensors[2].name, "a");
  EXPECT_EQ(content->tensors[2].data, "defg");
}

// Folders, pipes and missing files are named instead of read, and a limit on size holds.
TEST(Safetensors, OpensRegularFilesOnly) {
  const TempFolder folder;
  EXPECT_EQ(SafetensorsFile::Open(folder.path()).status().code(), Code::kInvalidArgument);
  const std::string fifo = folder.Path("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(SafetensorsFile::Open(fifo).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(SafetensorsFile::Open(folder.Path("none")).status().code(), Code::kNotFound);
  const std::string path = folder.Write("x", File("{}", ""));
  EXPECT_EQ(SafetensorsFile::Open(path, 9).status().code(), Code::kResourceExhausted);
  EXPECT_TRUE(SafetensorsFile::Open(path, 10).ok());
}

}  // namespace
}  // namespace switchyard::data
