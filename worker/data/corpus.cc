#include "worker/data/corpus.h"

#include "common/base/strings.h"
#include "switchyard/v1/spec.pb.h"
#include "worker/data/loaders.h"

namespace switchyard::data {
namespace pb = ::switchyard::v1;

const char* SplitName(Split split) {
  switch (split) {
    case Split::kTrain:
      return "train";
    case Split::kValid:
      return "valid";
    case Split::kTest:
      return "test";
  }
  return "";
}

const SplitTokens& Corpus::split(Split which) const {
  switch (which) {
    case Split::kTrain:
      return train;
    case Split::kValid:
      return valid;
    case Split::kTest:
      return test;
  }
  return train;
}

Result<TokenMode> TokenModeOf(int tokens, TokenMode when_unspecified) {
  switch (tokens) {
    case pb::TOKENS_UNSPECIFIED:
      return when_unspecified;
    case pb::TOKENS_BYTES256:
      return TokenMode::kBytes256;
    case pb::TOKENS_BYTES205:
      return TokenMode::kBytes205;
    case pb::TOKENS_TXL204:
      return TokenMode::kTxl204;
    case pb::TOKENS_WORD:
      return TokenMode::kWord;
    default:
      return InvalidArgument(StrCat("data: tokens has the unknown number ", tokens));
  }
}

namespace {

Result<std::unique_ptr<Corpus>> LoadKind(const pb::DataSpec& spec) {
  switch (spec.kind_case()) {
    case pb::DataSpec::kFiles:
      return LoadFiles(spec.files());
    case pb::DataSpec::kEnwik8:
      return LoadEnwik8(spec.enwik8());
    case pb::DataSpec::kWikitext:
      return LoadWikitext(spec.wikitext());
    case pb::DataSpec::KIND_NOT_SET:
      break;
  }
  return InvalidArgument("data: no kind given, expected files, enwik8 or wikitext");
}

}  // namespace

Result<std::unique_ptr<Corpus>> LoadCorpus(const pb::DataSpec& spec) {
  SWITCHYARD_ASSIGN_OR_RETURN(std::unique_ptr<Corpus> corpus, LoadKind(spec));
  if (!spec.digest().empty() && spec.digest() != corpus->digest) {
    return FailedPrecondition(StrCat("data.digest: the spec expects ", spec.digest(),
                                     ", the data here has ", corpus->digest));
  }
  return corpus;
}

}  // namespace switchyard::data
