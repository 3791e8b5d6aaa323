#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "common/base/strings.h"
#include "switchyard/v1/spec.pb.h"
#include "worker/data/input_file.h"
#include "worker/data/loaders.h"

namespace switchyard::data {
namespace pb = ::switchyard::v1;
namespace {

struct Published {
  uint64_t vocab;
  std::array<uint64_t, 3> lines;
  std::array<uint64_t, 3> tokens;  // <eos> included
};
constexpr Published kWt103{267735, {1801350, 3760, 4358}, {103227021, 217646, 245569}};
constexpr Published kWt2{33278, {36718, 3760, 4358}, {2088628, 217646, 245569}};

// Empty when the folder has no file for the split.
Result<std::string> FindSplitFile(const std::string& folder, Split split) {
  std::vector<std::string> found;
  for (const char* prefix : {"wiki.", ""}) {
    for (const char* suffix : {".tokens", ".txt"}) {
      const std::string path = StrCat(folder, "/", prefix, SplitName(split), suffix);
      const Result<InputIdentity> identity = IdentifyInput(path);
      if (identity.ok()) {
        found.push_back(path);
      } else if (identity.status().code() != Code::kNotFound) {
        return identity.status();
      }
    }
  }
  if (found.size() > 1) {
    return InvalidArgument(StrCat("data.wikitext.path: ", EscapeForTerminal(found[0]), " and ",
                                  EscapeForTerminal(found[1]), " could both be the ",
                                  SplitName(split), " split; name one with ", SplitName(split),
                                  "_file"));
  }
  return found.empty() ? std::string() : found.front();
}

uint64_t CountLines(std::string_view text) {
  const auto newlines = static_cast<uint64_t>(std::count(text.begin(), text.end(), '\n'));
  return newlines + (!text.empty() && text.back() != '\n' ? 1 : 0);
}

}  // namespace

Result<std::unique_ptr<Corpus>> LoadWikitext(const pb::WikitextData& spec) {
  SWITCHYARD_ASSIGN_OR_RETURN(const TokenMode mode, TokenModeOf(spec.tokens(), TokenMode::kWord));
  if (mode != TokenMode::kWord && mode != TokenMode::kBytes256) {
    return InvalidArgument(StrCat("data.wikitext.tokens: ", TokenModeName(mode),
                                  " is not a mode of wikitext, expected word or bytes256"));
  }
  const std::array<std::string, 3> given{spec.train_file(), spec.valid_file(), spec.test_file()};
  if (spec.path().empty() && given[0].empty()) {
    return InvalidArgument("data.wikitext.path: missing, expected the folder of the three splits");
  }
  if (!spec.path().empty()) {
    SWITCHYARD_ASSIGN_OR_RETURN(const InputIdentity identity, IdentifyInput(spec.path()));
    if (identity.kind != InputIdentity::Kind::kDirectory) {
      return InvalidArgument(StrCat("data.wikitext.path: ", EscapeForTerminal(spec.path()),
                                    " is not a folder; name single files with train_file, "
                                    "valid_file and test_file"));
    }
  }
  std::array<std::string, 3> texts;
  std::vector<std::string> notices;
  CorpusText corpus_text{.domain_names = {""}, .domain_weights = {1.0}};
  for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
    const auto at = static_cast<size_t>(split);
    std::string path = given[at];
    if (path.empty() && !spec.path().empty()) {
      SWITCHYARD_ASSIGN_OR_RETURN(path, FindSplitFile(spec.path(), split));
    }
    corpus_text.pieces[at].resize(1);
    if (path.empty()) {
      if (split == Split::kTrain) {
        return NotFound(StrCat("data.wikitext.path: ", EscapeForTerminal(spec.path()),
                               " has none of wiki.train.tokens, wiki.train.txt, train.tokens and "
                               "train.txt"));
      }
      notices.push_back(StrCat("no file for the ", SplitName(split), " split"));
      continue;
    }
    SWITCHYARD_ASSIGN_OR_RETURN(texts[at], ReadInput(path));
    SWITCHYARD_RETURN_IF_ERROR(CheckReadable(texts[at], mode, path));
    corpus_text.pieces[at].front().push_back(texts[at]);
  }
  auto corpus = EncodeCorpus(corpus_text, mode);
  if (!corpus.ok()) {
    return Status(corpus.status().code(), StrCat("data.wikitext: ", corpus.status().message()));
  }

  // Who has the published number of lines but other counts has a changed file.
  const Published& published = spec.variant() == pb::WIKITEXT_VARIANT_WT2 ? kWt2 : kWt103;
  for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
    const auto at = static_cast<size_t>(split);
    if (mode != TokenMode::kWord || CountLines(texts[at]) != published.lines[at]) continue;
    const uint64_t tokens = (*corpus)->split(split).ids.size();
    if (tokens != published.tokens[at]) {
      notices.push_back(StrCat(SplitName(split), ": the lines of the original, but ", tokens,
                               " tokens instead of ", published.tokens[at]));
    }
    if (split == Split::kTrain && (*corpus)->vocab_size != published.vocab) {
      notices.push_back(StrCat("train: the lines of the original, but a vocabulary of ",
                               (*corpus)->vocab_size, " instead of ", published.vocab));
    }
  }
  (*corpus)->notices.insert((*corpus)->notices.begin(), notices.begin(), notices.end());
  return corpus;
}

}  // namespace switchyard::data
