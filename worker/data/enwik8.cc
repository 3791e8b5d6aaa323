#include <string>

#include "common/base/sha256.h"
#include "common/base/strings.h"
#include "switchyard/v1/spec.pb.h"
#include "worker/data/input_file.h"
#include "worker/data/loaders.h"

namespace switchyard::data {
namespace pb = ::switchyard::v1;
namespace {

constexpr uint64_t kWholeBytes = 100000000;
constexpr std::string_view kWholeSha256 =
    "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8";

// Published counts of the original corpus; a difference means that this reader is wrong.
Status CheckWhole(const Corpus& corpus, TokenMode mode) {
  struct Counts {
    uint64_t vocab, train, valid, test;
  };
  const Counts have{corpus.vocab_size, corpus.train.ids.size(), corpus.valid.ids.size(),
                    corpus.test.ids.size()};
  Counts want{256, 90000000, 5000000, 5000000};
  if (mode == TokenMode::kBytes205) want.vocab = 205;
  if (mode == TokenMode::kTxl204) want = {204, 88982818, 4945742, 4943417};
  if (have.vocab == want.vocab && have.train == want.train && have.valid == want.valid &&
      have.test == want.test) {
    return OkStatus();
  }
  return Internal(StrCat("enwik8 as ", TokenModeName(mode), ": vocabulary ", have.vocab,
                         ", tokens ", have.train, "/", have.valid, "/", have.test, ", expected ",
                         want.vocab, ", ", want.train, "/", want.valid, "/", want.test));
}

}  // namespace

Result<std::unique_ptr<Corpus>> LoadEnwik8(const pb::Enwik8Data& spec) {
  SWITCHYARD_ASSIGN_OR_RETURN(const TokenMode mode,
                              TokenModeOf(spec.tokens(), TokenMode::kBytes256));
  if (mode == TokenMode::kWord) {
    return InvalidArgument(
        "data.enwik8.tokens: word is not a mode of enwik8, expected bytes256, "
        "bytes205 or txl204");
  }
  if (spec.path().empty()) {
    return InvalidArgument("data.enwik8.path: missing, expected the file or its folder");
  }
  std::string path = spec.path();
  SWITCHYARD_ASSIGN_OR_RETURN(const InputIdentity identity, IdentifyInput(path));
  if (identity.kind == InputIdentity::Kind::kDirectory) path += "/enwik8";
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string text, ReadInput(path, kWholeBytes));

  const uint64_t train = text.size() * 90 / 100;
  const uint64_t valid = text.size() * 5 / 100;
  const std::string_view all = text;
  CorpusText corpus_text{.domain_names = {""}, .domain_weights = {1.0}};
  corpus_text.pieces[0] = {{all.substr(0, train)}};
  corpus_text.pieces[1] = {{all.substr(train, valid)}};
  corpus_text.pieces[2] = {{all.substr(train + valid)}};
  auto corpus = EncodeCorpus(corpus_text, mode);
  if (!corpus.ok()) {
    return Status(corpus.status().code(),
                  StrCat(EscapeForTerminal(path), ": ", corpus.status().message()));
  }
  if (text.size() == kWholeBytes) {
    const std::string sha = Sha256Hex(text);
    if (sha == kWholeSha256) {
      SWITCHYARD_RETURN_IF_ERROR(CheckWhole(**corpus, mode));
    } else {
      (*corpus)->notices.push_back(StrCat(EscapeForTerminal(path),
                                          ": has the size of enwik8 but sha256 ", sha,
                                          ", the original has ", kWholeSha256));
    }
  } else {
    (*corpus)->notices.push_back(StrCat(EscapeForTerminal(path), ": ", text.size(),
                                        " bytes, enwik8 has ", kWholeBytes,
                                        ": results are not those of the benchmark"));
  }
  return corpus;
}

}  // namespace switchyard::data
