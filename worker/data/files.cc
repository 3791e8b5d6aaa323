#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "common/base/strings.h"
#include "switchyard/v1/spec.pb.h"
#include "worker/data/glob.h"
#include "worker/data/input_file.h"
#include "worker/data/jsonl.h"
#include "worker/data/loaders.h"
#include "worker/data/text.h"

namespace switchyard::data {
namespace pb = ::switchyard::v1;
namespace {

constexpr uint32_t kDefaultMaxBadRows = 100;
constexpr size_t kNamedFaults = 3;
constexpr double kLeastWeight = 1e-6;
constexpr double kMostWeight = 1e6;

// A count with its first few examples, for one notice.
class Tally {
 public:
  void Add(std::string example) {
    ++count_;
    if (examples_.size() < kNamedFaults) examples_.push_back(std::move(example));
  }
  uint64_t count() const { return count_; }
  // "3 folders (a, b, c)", "12 folders (a, b, c, ...)".
  std::string Describe(std::string_view what) const {
    return StrCat(count_, " ", what, " (", StrJoin(examples_, ", "),
                  count_ > examples_.size() ? ", ..." : "", ")");
  }

 private:
  uint64_t count_ = 0;
  std::vector<std::string> examples_;
};

struct Record {
  std::string path;
  uint64_t row = 0;
  RandomKey key;
  uint64_t order = 0;  // hash that orders the domain's records
  uint64_t bytes = 0;
  bool is_loaded = false;
  std::string text;
};

using Shares = std::array<double, 3>;

Result<Shares> SharesOf(const pb::FilesSplit& split) {
  if (split.shares_size() == 0) return Shares{0.9, 0.1, 0.0};
  if (split.shares_size() != 3) {
    return InvalidArgument(StrCat("data.files.split.shares: ", split.shares_size(),
                                  " numbers, expected 3 (train, valid, test)"));
  }
  Shares shares{};
  double sum = 0.0;
  for (int i = 0; i < 3; ++i) {
    const double share = split.shares(i);
    if (!(share >= 0.0 && share <= 1.0)) {
      return InvalidArgument(
          StrCat("data.files.split.shares: ", share, " is not a share, expected 0 to 1"));
    }
    shares[static_cast<size_t>(i)] = share;
    sum += share;
  }
  if (std::abs(sum - 1.0) > 1e-6) {
    return InvalidArgument(StrCat("data.files.split.shares: they sum to ", sum, ", expected 1"));
  }
  return shares;
}

// The split at `position` in [0, 1); one with share 0 never gets anything.
size_t SplitAt(double position, const Shares& shares) {
  double sum = 0.0;
  size_t last = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    if (shares[i] == 0.0) continue;
    sum += shares[i];
    last = i;
    if (position < sum) return i;
  }
  return last;
}

// Numbers of records per split of a domain in record order.
std::array<size_t, 3> CutByShares(const std::vector<Record>& records, const Shares& shares) {
  double total = 0.0;
  for (const Record& record : records) total += static_cast<double>(record.bytes);
  std::array<size_t, 3> counts{};
  double before = 0.0;
  for (const Record& record : records) {
    const auto bytes = static_cast<double>(record.bytes);
    ++counts[SplitAt((before + bytes / 2) / total, shares)];
    before += bytes;
  }
  const auto wanted = static_cast<size_t>(
      std::count_if(shares.begin(), shares.end(), [](double share) { return share > 0.0; }));
  if (records.size() < wanted) return counts;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (shares[i] == 0.0 || counts[i] > 0) continue;
    --*std::max_element(counts.begin(), counts.end());
    ++counts[i];
  }
  return counts;
}

class FilesLoader {
 public:
  FilesLoader(const pb::FilesData& spec, TokenMode mode, Shares shares)
      : spec_(spec),
        mode_(mode),
        shares_(shares),
        key_(RandomKey::For(spec.split().seed(), "data_split")),
        max_bad_rows_(spec.has_max_bad_rows() ? spec.max_bad_rows() : kDefaultMaxBadRows) {}

  Result<std::unique_ptr<Corpus>> Load() {
    if (spec_.domains_size() == 0) {
      return InvalidArgument("data.files.domains: empty, expected at least one domain");
    }
    const auto domain_count = static_cast<size_t>(spec_.domains_size());
    std::vector<std::vector<Record>> records(domain_count);
    CorpusText text;
    for (auto& pieces : text.pieces) pieces.resize(domain_count);
    for (size_t at = 0; at < domain_count; ++at) {
      const pb::Domain& domain = spec_.domains(static_cast<int>(at));
      const double weight = domain.has_weight() ? domain.weight() : 1.0;
      if (!(weight >= kLeastWeight && weight <= kMostWeight)) {
        return InvalidArgument(StrCat(Where(domain), ": weight ", weight, ", expected ",
                                      kLeastWeight, " to ", kMostWeight));
      }
      text.domain_names.push_back(domain.id());
      text.domain_weights.push_back(weight);
      SWITCHYARD_ASSIGN_OR_RETURN(records[at], LoadDomain(domain));
      Divide(domain, records[at], at, text);
    }
    SWITCHYARD_ASSIGN_OR_RETURN(std::unique_ptr<Corpus> corpus, Encode(text));
    if (bad_rows_.count() > 0) notices_.push_back(bad_rows_.Describe("broken rows skipped"));
    for (const Split split : {Split::kValid, Split::kTest}) {
      if (shares_[static_cast<size_t>(split)] > 0.0 && corpus->split(split).ids.empty()) {
        notices_.push_back(StrCat("the ", SplitName(split), " split is empty"));
      }
    }
    corpus->notices.insert(corpus->notices.begin(), notices_.begin(), notices_.end());
    return corpus;
  }

 private:
  static std::string Where(const pb::Domain& domain) {
    return StrCat("data.files, domain '", EscapeForTerminal(domain.id()), "'");
  }

  Result<std::unique_ptr<Corpus>> Encode(const CorpusText& text) {
    auto corpus = EncodeCorpus(text, mode_);
    if (corpus.ok()) return corpus;
    return Status(corpus.status().code(), StrCat("data.files: ", corpus.status().message()));
  }

  // Regular files of the domain's globs by name, each once.
  Result<std::vector<std::pair<std::string, InputIdentity>>> FindFiles(const pb::Domain& domain) {
    std::map<std::string, bool> names;  // -> given as a plain path
    Tally unreadable;
    for (const std::string& glob : domain.globs()) {
      if (!IsGlob(glob)) {
        names[glob] = true;
        continue;
      }
      SWITCHYARD_ASSIGN_OR_RETURN(const GlobMatches matches, ExpandGlob(glob));
      if (matches.paths.empty()) {
        notices_.push_back(StrCat(Where(domain), ": nothing matches ", EscapeForTerminal(glob)));
      }
      for (const std::string& path : matches.paths) names.try_emplace(path, false);
      for (const std::string& path : matches.unreadable) unreadable.Add(EscapeForTerminal(path));
    }
    std::vector<std::pair<std::string, InputIdentity>> files;
    Tally folders, others, broken, twice;
    for (const auto& [path, is_plain] : names) {
      const Result<InputIdentity> identity = IdentifyInput(path);
      const std::string shown = EscapeForTerminal(path);
      if (!identity.ok()) {
        if (is_plain || identity.status().code() == Code::kPermissionDenied) {
          return Status(identity.status().code(),
                        StrCat(Where(domain), ": ", identity.status().message()));
        }
        broken.Add(shown);
        continue;
      }
      if (identity->kind != InputIdentity::Kind::kRegular) {
        const bool is_folder = identity->kind == InputIdentity::Kind::kDirectory;
        if (is_plain) {
          return InvalidArgument(StrCat(
              Where(domain), ": ", shown,
              is_folder ? StrCat(" is a folder; write ", shown, "/**/* for all files below it")
                        : " is not a regular file (device, pipe or socket)"));
        }
        (is_folder ? folders : others).Add(shown);
        continue;
      }
      const auto [owner, is_new] =
          owners_.try_emplace({identity->device, identity->inode}, Owner{domain.id(), path});
      if (is_new) {
        files.emplace_back(path, *identity);
      } else if (owner->second.domain == domain.id()) {
        twice.Add(shown);
      } else {
        return InvalidArgument(StrCat(
            Where(domain), ": ", shown, " is also in domain '",
            EscapeForTerminal(owner->second.domain), "'",
            owner->second.path == path ? "" : StrCat(" as ", EscapeForTerminal(owner->second.path)),
            "; a file belongs to one domain"));
      }
    }
    const auto report = [&](const Tally& tally, std::string_view what) {
      if (tally.count() == 0) return;
      notices_.push_back(StrCat(Where(domain), ": skipped ", tally.Describe(what)));
    };
    report(folders, "folders");
    report(others, "names that are no regular files");
    report(broken, "links that lead nowhere");
    report(twice, "further names of files already taken");
    report(unreadable, "folders that cannot be listed");
    return files;
  }

  Record MakeRecord(const std::string& path, uint64_t row) const {
    const RandomKey key = key_.With(path).With(row);
    return {.path = path, .row = row, .key = key, .order = RandomBits(key, 0)};
  }

  Status AddRows(const std::string& path, std::string_view text, std::vector<Record>* records) {
    uint64_t row = 0;
    Status status;
    ForEachLine(text, [&](std::string_view line) {
      ++row;
      if (!status.ok() || std::all_of(line.begin(), line.end(), IsBlank)) return;
      Result<std::string> row_text = TextOfRow(line);
      if (!row_text.ok()) {
        bad_rows_.Add(StrCat(EscapeForTerminal(path), ":", row, " ", row_text.status().message()));
        if (bad_rows_.count() > max_bad_rows_) {
          status = FailedPrecondition(StrCat("data.files: ", bad_rows_.Describe("broken rows"),
                                             ", max_bad_rows is ", max_bad_rows_));
        }
        return;
      }
      Record record = MakeRecord(path, row);
      record.bytes = row_text->size();
      record.text = *std::move(row_text);
      record.is_loaded = true;
      records->push_back(std::move(record));
    });
    return status;
  }

  // Whole records in record order while they fit; one that does not is passed over. Where none
  // fits, the first is cut.
  void KeepUpTo(uint64_t max_bytes, std::vector<Record>* records) {
    std::vector<Record> kept;
    uint64_t used = 0;
    for (Record& record : *records) {
      if (record.bytes > max_bytes - used) continue;
      used += record.bytes;
      kept.push_back(std::move(record));
    }
    if (kept.empty() && !records->empty()) {
      kept.push_back(std::move(records->front()));
      kept.front().bytes = max_bytes;
    }
    *records = std::move(kept);
  }

  // Non-empty records of the domain in record order.
  Result<std::vector<Record>> LoadDomain(const pb::Domain& domain) {
    SWITCHYARD_ASSIGN_OR_RETURN(const auto files, FindFiles(domain));
    const bool has_rows = spec_.format() == pb::TEXT_FORMAT_JSONL;
    std::vector<Record> records;
    Tally empty;
    for (const auto& [path, identity] : files) {
      if (!has_rows && !path.ends_with(".gz")) {
        // Only read once it is known to be wanted.
        Record record = MakeRecord(path, 0);
        record.bytes = identity.size;
        records.push_back(std::move(record));
        continue;
      }
      SWITCHYARD_ASSIGN_OR_RETURN(std::string text, ReadTextInput(path));
      if (has_rows) {
        SWITCHYARD_RETURN_IF_ERROR(AddRows(path, text, &records));
        continue;
      }
      Record record = MakeRecord(path, 0);
      record.bytes = text.size();
      record.text = std::move(text);
      record.is_loaded = true;
      records.push_back(std::move(record));
    }
    std::erase_if(records, [&](const Record& record) {
      if (record.bytes > 0) return false;
      empty.Add(record.row == 0 ? EscapeForTerminal(record.path)
                                : StrCat(EscapeForTerminal(record.path), ":", record.row));
      return true;
    });
    if (empty.count() > 0) {
      notices_.push_back(StrCat(Where(domain), ": skipped ", empty.Describe("empty records")));
    }
    if (records.empty()) {
      std::vector<std::string> globs(domain.globs().begin(), domain.globs().end());
      return NotFound(StrCat(Where(domain), ": no text in ",
                             EscapeForTerminal(StrJoin(globs, ", ")), " (", files.size(),
                             " files read)"));
    }
    std::sort(records.begin(), records.end(), [](const Record& a, const Record& b) {
      return std::tie(a.order, a.path, a.row) < std::tie(b.order, b.path, b.row);
    });
    if (const uint64_t cap = spec_.max_bytes_per_domain(); cap > 0) KeepUpTo(cap, &records);
    for (Record& record : records) {
      const uint64_t planned = record.bytes;
      if (!record.is_loaded) {
        SWITCHYARD_ASSIGN_OR_RETURN(record.text, ReadInput(record.path));
      }
      if (spec_.max_bytes_per_domain() > 0 && record.text.size() > planned) {
        // Not within a character.
        size_t end = planned;
        while (end > 0 && planned - end < 3 &&
               (static_cast<unsigned char>(record.text[end]) & 0xc0) == 0x80) {
          --end;
        }
        record.text.resize(end);
      }
      record.bytes = record.text.size();
      SWITCHYARD_RETURN_IF_ERROR(CheckReadable(record.text, mode_, record.path));
    }
    return records;
  }

  void Divide(const pb::Domain& domain, const std::vector<Record>& records, size_t domain_at,
              CorpusText& text) {
    if (spec_.split().by() == pb::SPLIT_BY_RECORD_HASH) {
      for (const Record& record : records) {
        const size_t split = SplitAt(RandomUniform(record.key, 1), shares_);
        text.pieces[split][domain_at].push_back(record.text);
      }
    } else {
      const std::array<size_t, 3> counts = CutByShares(records, shares_);
      size_t next = 0;
      for (size_t split = 0; split < counts.size(); ++split) {
        for (size_t i = 0; i < counts[split]; ++i) {
          text.pieces[split][domain_at].push_back(records[next++].text);
        }
      }
    }
    for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
      const auto at = static_cast<size_t>(split);
      if (shares_[at] > 0.0 && text.pieces[at][domain_at].empty()) {
        notices_.push_back(StrCat(Where(domain), ": none of its ", records.size(),
                                  " records went to ", SplitName(split)));
      }
    }
  }

  struct Owner {
    std::string domain;
    std::string path;
  };

  const pb::FilesData& spec_;
  const TokenMode mode_;
  const Shares shares_;
  const RandomKey key_;
  const uint32_t max_bad_rows_;
  std::map<std::pair<uint64_t, uint64_t>, Owner> owners_;  // device, inode
  Tally bad_rows_;
  std::vector<std::string> notices_;
};

}  // namespace

Result<std::unique_ptr<Corpus>> LoadFiles(const pb::FilesData& spec) {
  SWITCHYARD_ASSIGN_OR_RETURN(const TokenMode mode,
                              TokenModeOf(spec.tokens(), TokenMode::kBytes256));
  SWITCHYARD_ASSIGN_OR_RETURN(const Shares shares, SharesOf(spec.split()));
  return FilesLoader(spec, mode, shares).Load();
}

}  // namespace switchyard::data
