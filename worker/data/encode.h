#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "worker/data/corpus.h"

namespace switchyard::data {

enum class TokenMode { kBytes256, kBytes205, kTxl204, kWord };
const char* TokenModeName(TokenMode mode);

// Texts to tokenise, borrowed: for each split and each domain the pieces in order.
struct CorpusText {
  std::vector<std::string> domain_names;
  std::vector<double> domain_weights;
  // [split][domain][piece]
  std::array<std::vector<std::vector<std::string_view>>, 3> pieces;
};

// kInvalidArgument, naming `path`, when `mode` cannot read the text: words from UTF-16.
Status CheckReadable(std::string_view text, TokenMode mode, std::string_view path);

// Tokenises; fills everything of a Corpus but adds to `notices` only. A word of valid or test that
// train lacks becomes `<unk>` where the vocabulary has it (counted in a notice). kInvalidArgument:
// such a word without `<unk>`; no token in train.
Result<std::unique_ptr<Corpus>> EncodeCorpus(const CorpusText& text, TokenMode mode);

}  // namespace switchyard::data
