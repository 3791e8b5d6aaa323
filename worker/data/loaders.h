#pragma once

#include <memory>

#include "common/base/status.h"
#include "worker/data/corpus.h"
#include "worker/data/encode.h"

namespace switchyard::v1 {
class FilesData;
class Enwik8Data;
class WikitextData;
}  // namespace switchyard::v1

// One loader per data kind, as corpus.h describes them; LoadCorpus chooses.
namespace switchyard::data {

Result<std::unique_ptr<Corpus>> LoadFiles(const v1::FilesData& spec);
Result<std::unique_ptr<Corpus>> LoadEnwik8(const v1::Enwik8Data& spec);
Result<std::unique_ptr<Corpus>> LoadWikitext(const v1::WikitextData& spec);

// `tokens` is a value of v1::Tokens. kInvalidArgument for a number that this build does not know.
Result<TokenMode> TokenModeOf(int tokens, TokenMode when_unspecified);

}  // namespace switchyard::data
