#include <iostream>
#include <iterator>

#include "client/commands/commands.h"
#include "client/curves/curve_shelf.h"
#include "client/exit_code.h"
#include "common/base/file.h"
#include "common/base/strings.h"

namespace switchyard::client {
namespace {

constexpr uint64_t kFileBytesMax = uint64_t{1} << 30;

// "results/Baseline run.csv" -> "baseline-run".
std::string NameOf(const std::string& file) {
  std::string name = file.substr(file.rfind('/') + 1);
  name = name.substr(0, name.rfind('.'));
  std::string out;
  for (const char c : name) {
    const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    const bool is_plain = (lower >= 'a' && lower <= 'z') || (lower >= '0' && lower <= '9');
    if (is_plain || lower == '_' || lower == '.') {
      out += lower;
    } else if (!out.empty() && out.back() != '-') {
      out += '-';
    }
  }
  while (!out.empty() && !(out.back() >= 'a' && out.back() <= 'z') &&
         !(out.back() >= '0' && out.back() <= '9')) {
    out.pop_back();
  }
  return out;
}

Result<std::string> ReadText(const std::string& file) {
  if (file != "-") return ReadFile(file, kFileBytesMax);
  return std::string(std::istreambuf_iterator<char>(std::cin), {});
}

Status ReadRenames(const std::vector<std::string>& texts, CurveFileOptions* options) {
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
      return InvalidArgument(StrCat("--rename ", text, ": expected OLD=NEW"));
    }
    options->renames[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return OkStatus();
}

Listing ListSet(const CurveSet& set) {
  Listing listing;
  listing.columns = {{"set", "SET"},
                     {"run", "RUN"},
                     {"seed", "SEED", Align::kRight},
                     {"metric", "METRIC"},
                     {"points", "POINTS", Align::kRight},
                     {"last_step", "LAST STEP", Align::kRight}};
  for (const ImportedCurve& curve : set.curves) {
    listing.rows.push_back({{set.name, {}},
                            {curve.run, {}},
                            {curve.seed, {}},
                            {curve.metric, {}},
                            {static_cast<uint64_t>(curve.points.size()), {}},
                            {curve.points.back().first, {}}});
  }
  return listing;
}

Status ListSets(const Context& context, const CurveShelf& shelf) {
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<std::string> names, shelf.Names());
  Listing all;
  all.columns = ListSet({}).columns;
  all.empty_note = "no curves have been imported";
  for (const std::string& name : names) {
    SWITCHYARD_ASSIGN_OR_RETURN(const CurveSet set, shelf.Get(name));
    Listing one = ListSet(set);
    std::move(one.rows.begin(), one.rows.end(), std::back_inserter(all.rows));
  }
  if (context.format == Format::kQuiet) {
    for (const std::string& name : names) context.Print(name + "\n");
  } else {
    context.Show(all);
  }
  return OkStatus();
}

Status ImportFile(const Context& context, const ImportOptions& options, const CurveShelf& shelf) {
  const std::string name = options.name.empty() ? NameOf(options.file) : options.name;
  CurveFileOptions reading{.metrics = options.metrics, .renames = {}};
  SWITCHYARD_RETURN_IF_ERROR(ReadRenames(options.renames, &reading));
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string text, ReadText(options.file));
  CurveFileNotes notes;
  SWITCHYARD_ASSIGN_OR_RETURN(const CurveSet set,
                              ReadCurveFile(options.file, text, name, reading, &notes));
  SWITCHYARD_RETURN_IF_ERROR(shelf.Put(set, options.replaces));
  if (!notes.ignored_columns.empty()) {
    context.Note(StrCat("not read: column ", StrJoin(notes.ignored_columns, ", ")));
  }
  if (notes.vector_rows > 0) {
    context.Note(StrCat("not read: ", notes.vector_rows, " elements of vectors"));
  }
  if (context.format == Format::kQuiet) {
    context.Print(name + "\n");
  } else {
    context.Show(ListSet(set));
  }
  return OkStatus();
}

}  // namespace

int RunImport(const Context& context, const ImportOptions& options) {
  const Result<CurveShelf> shelf = CurveShelf::Open(context.getenv);
  if (!shelf.ok()) return context.Fail(shelf.status());
  Status status;
  if (options.lists) {
    status = ListSets(context, *shelf);
  } else if (!options.removed.empty()) {
    status = shelf->Remove(options.removed);
  } else if (options.file.empty()) {
    status = InvalidArgument("import needs a CSV file, --list or --remove NAME");
  } else {
    status = ImportFile(context, options, *shelf);
  }
  if (status.ok()) return kExitOk;
  // Faults of a file are lines of their own.
  const std::vector<std::string> lines = StrSplit(status.message(), '\n');
  for (size_t i = 0; i + 1 < lines.size(); ++i) context.Note(lines[i]);
  return context.Fail(Status(status.code(), lines.back()));
}

}  // namespace switchyard::client
