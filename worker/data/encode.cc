#include "worker/data/encode.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "common/base/sha256.h"
#include "common/base/strings.h"
#include "worker/data/text.h"

namespace switchyard::data {
namespace {

constexpr std::array<Split, 3> kSplits{Split::kTrain, Split::kValid, Split::kTest};
constexpr uint32_t kNoId = ~uint32_t{0};

std::string LittleEndian64(uint64_t value) {
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(value >> (8 * i) & 0xff);
  return out;
}

std::string DigestOf(const CorpusText& text, TokenMode mode) {
  Sha256 sha;
  sha.Update("switchyard corpus 1\n");
  sha.Update(TokenModeName(mode));
  for (const Split split : kSplits) {
    const auto& domains = text.pieces[static_cast<size_t>(split)];
    for (size_t domain = 0; domain < domains.size(); ++domain) {
      sha.Update(LittleEndian64(text.domain_names[domain].size()));
      sha.Update(text.domain_names[domain]);
      sha.Update(LittleEndian64(domains[domain].size()));
      for (const std::string_view piece : domains[domain]) {
        sha.Update(LittleEndian64(piece.size()));
        sha.Update(piece);
      }
    }
  }
  return StrCat("sha256:", HexEncode(sha.Finish()));
}

// Ids 0, 1, ... by falling count, equal counts by first appearance: `counts` is in that order.
// Returns [provisional id] -> id; the first `pinned` keep their ids.
std::vector<uint32_t> IdsByFrequency(const std::vector<uint64_t>& counts, size_t pinned) {
  std::vector<uint32_t> order(counts.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin() + static_cast<std::ptrdiff_t>(pinned), order.end(),
                   [&](uint32_t a, uint32_t b) { return counts[a] > counts[b]; });
  std::vector<uint32_t> ids(counts.size());
  for (size_t i = 0; i < order.size(); ++i) ids[order[i]] = static_cast<uint32_t>(i);
  return ids;
}

SplitTokens& TokensOf(Corpus& corpus, Split split) {
  switch (split) {
    case Split::kTrain:
      return corpus.train;
    case Split::kValid:
      return corpus.valid;
    case Split::kTest:
      return corpus.test;
  }
  return corpus.train;
}

// Calls `encode(piece)`, which appends to the split's ids, and keeps the domains' ranges.
template <typename Encode>
void EncodeSplit(const CorpusText& text, Split split, SplitTokens& tokens, Encode encode) {
  const auto& domains = text.pieces[static_cast<size_t>(split)];
  for (size_t domain = 0; domain < domains.size(); ++domain) {
    const uint64_t begin = tokens.ids.size();
    for (const std::string_view piece : domains[domain]) encode(piece);
    if (tokens.ids.size() > begin) {
      tokens.domains.push_back(
          {.domain = static_cast<uint32_t>(domain), .begin = begin, .end = tokens.ids.size()});
    }
  }
}

void Count(const TextCounts& counts, SplitTokens& tokens) {
  tokens.bytes += counts.bytes;
  tokens.chars += counts.chars;
  tokens.words += counts.words;
}

void EncodeBytes(const CorpusText& text, TokenMode mode, Corpus& corpus) {
  const bool drops_newlines = mode == TokenMode::kTxl204;
  std::array<uint32_t, 256> id_of{};
  if (mode == TokenMode::kBytes256) {
    std::iota(id_of.begin(), id_of.end(), 0U);
    corpus.vocab_size = 256;
  } else {
    id_of.fill(kNoId);
    std::vector<uint64_t> counts;
    for (const auto& domains : text.pieces) {
      for (const auto& pieces : domains) {
        for (const std::string_view piece : pieces) {
          for (const char c : piece) {
            if (drops_newlines && c == '\n') continue;
            uint32_t& id = id_of[static_cast<unsigned char>(c)];
            if (id == kNoId) {
              id = static_cast<uint32_t>(counts.size());
              counts.push_back(0);
            }
            ++counts[id];
          }
        }
      }
    }
    const std::vector<uint32_t> ids = IdsByFrequency(counts, /*pinned=*/0);
    for (uint32_t& id : id_of) {
      if (id != kNoId) id = ids[id];
    }
    corpus.vocab_size = static_cast<uint32_t>(counts.size());
  }
  for (const Split split : kSplits) {
    SplitTokens& tokens = TokensOf(corpus, split);
    EncodeSplit(text, split, tokens, [&](std::string_view piece) {
      Count(CountText(piece), tokens);
      for (const char c : piece) {
        if (drops_newlines && c == '\n') continue;
        tokens.ids.push_back(id_of[static_cast<unsigned char>(c)]);
      }
    });
  }
}

class WordVocabulary {
 public:
  WordVocabulary() { counts_.push_back(0); }  // <eos>

  uint32_t Learn(std::string_view word) {
    if (word == kEos) return 0;
    const auto [at, is_new] = ids_.try_emplace(word, static_cast<uint32_t>(counts_.size()));
    if (is_new) counts_.push_back(0);
    ++counts_[at->second];
    return at->second;
  }

  // Ends learning; returns [provisional id] -> id.
  std::vector<uint32_t> SortByFrequency() {
    const std::vector<uint32_t> final_ids = IdsByFrequency(counts_, /*pinned=*/1);
    for (auto& [word, id] : ids_) id = final_ids[id];
    if (const auto found = ids_.find("<unk>"); found != ids_.end()) unknown_ = found->second;
    return final_ids;
  }

  // kNoId when unknown.
  uint32_t Find(std::string_view word) const {
    if (word == kEos) return 0;
    const auto found = ids_.find(word);
    return found == ids_.end() ? kNoId : found->second;
  }
  uint32_t unknown() const { return unknown_; }
  uint32_t size() const { return static_cast<uint32_t>(counts_.size()); }

 private:
  static constexpr std::string_view kEos = "<eos>";

  // Keys are borrowed from the training text.
  std::unordered_map<std::string_view, uint32_t> ids_;
  std::vector<uint64_t> counts_;
  uint32_t unknown_ = kNoId;
};

Status EncodeWords(const CorpusText& text, Corpus& corpus) {
  WordVocabulary vocabulary;
  const auto encode_piece = [](std::string_view piece, SplitTokens& tokens, auto id_of) {
    TextCounts counts = CountCleanText(piece);
    // A CR behind the last LF (LFCR line ends) makes no further line.
    std::string_view lines = WithoutBom(piece);
    while (lines.ends_with('\r')) lines.remove_suffix(1);
    ForEachLine(lines, [&](std::string_view line) {
      ForEachWord(line, [&](std::string_view word) { tokens.ids.push_back(id_of(word)); });
      tokens.ids.push_back(0);
      ++counts.words;
    });
    Count(counts, tokens);
  };
  EncodeSplit(text, Split::kTrain, corpus.train, [&](std::string_view piece) {
    encode_piece(piece, corpus.train,
                 [&](std::string_view word) { return vocabulary.Learn(word); });
  });
  const std::vector<uint32_t> final_ids = vocabulary.SortByFrequency();
  for (uint32_t& id : corpus.train.ids) id = final_ids[id];
  corpus.vocab_size = vocabulary.size();

  for (const Split split : {Split::kValid, Split::kTest}) {
    SplitTokens& tokens = TokensOf(corpus, split);
    uint64_t unknown = 0;
    std::string first_unknown;
    EncodeSplit(text, split, tokens, [&](std::string_view piece) {
      encode_piece(piece, tokens, [&](std::string_view word) {
        const uint32_t id = vocabulary.Find(word);
        if (id != kNoId) return id;
        if (unknown++ == 0) first_unknown = word.substr(0, 100);
        return vocabulary.unknown();
      });
    });
    if (unknown == 0) continue;
    const std::string what = StrCat(SplitName(split), ": ", unknown, " of ", tokens.ids.size(),
                                    " tokens are words that train does not have, the first is '",
                                    EscapeForTerminal(first_unknown), "'");
    if (vocabulary.unknown() == kNoId) {
      return InvalidArgument(StrCat(what, "; the vocabulary has no <unk> to stand for them"));
    }
    corpus.notices.push_back(StrCat(what, "; read as <unk>"));
  }
  return OkStatus();
}

}  // namespace

const char* TokenModeName(TokenMode mode) {
  switch (mode) {
    case TokenMode::kBytes256:
      return "bytes256";
    case TokenMode::kBytes205:
      return "bytes205";
    case TokenMode::kTxl204:
      return "txl204";
    case TokenMode::kWord:
      return "word";
  }
  return "";
}

Status CheckReadable(std::string_view text, TokenMode mode, std::string_view path) {
  if (mode != TokenMode::kWord || !LooksLikeUtf16(text)) return OkStatus();
  return InvalidArgument(StrCat(EscapeForTerminal(path),
                                ": begins with the byte order mark of UTF-16; words are read from "
                                "UTF-8 only, convert it or use bytes256"));
}

Result<std::unique_ptr<Corpus>> EncodeCorpus(const CorpusText& text, TokenMode mode) {
  auto corpus = std::make_unique<Corpus>();
  corpus->domain_names = text.domain_names;
  corpus->domain_weights = text.domain_weights;
  corpus->has_bytes = mode != TokenMode::kTxl204;
  corpus->is_word_level = mode == TokenMode::kWord;
  switch (mode) {
    case TokenMode::kBytes256:
    case TokenMode::kBytes205:
      corpus->primary_metric = "bits_per_byte";
      EncodeBytes(text, mode, *corpus);
      break;
    case TokenMode::kTxl204:
      corpus->primary_metric = "bits_per_token";
      EncodeBytes(text, mode, *corpus);
      break;
    case TokenMode::kWord:
      corpus->primary_metric = "word_ppl";
      SWITCHYARD_RETURN_IF_ERROR(EncodeWords(text, *corpus));
      break;
  }
  if (corpus->train.ids.empty()) {
    return InvalidArgument("the training split has no token: its text is empty");
  }
  corpus->train_frequency.assign(corpus->vocab_size, 0);
  for (const uint32_t id : corpus->train.ids) ++corpus->train_frequency[id];
  corpus->digest = DigestOf(text, mode);
  return corpus;
}

}  // namespace switchyard::data
