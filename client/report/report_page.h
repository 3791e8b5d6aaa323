#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "client/output/table.h"

namespace switchyard::v1 {
class RunDetail;
class Sweep;
}  // namespace switchyard::v1

namespace switchyard::client {

struct ReportFigure {
  std::string title;
  std::string svg;  // as InlineSvg gives it; empty: `note` says why there is none
  std::string note;
};

struct ReportTable {
  std::string title;
  std::string note;  // under the table
  Listing listing;
};

// A comparison of arms, registered or not.
struct ReportComparison {
  std::string title;
  std::vector<std::string> sentences;  // verdicts, warnings
  std::vector<Listing> tables;
};

// All that a page says.
struct ReportData {
  const v1::Sweep* sweep = nullptr;  // with its spec
  int64_t made_ms = 0;
  std::string where;  // expression that all runs of the page satisfy; empty: none
  std::string client_version;
  std::string coordinator_version;
  uint64_t runs = 0;
  std::vector<ReportTable> results;
  std::vector<ReportComparison> comparisons;
  std::vector<ReportFigure> figures;
  std::vector<const v1::RunDetail*> details;
  uint64_t details_left_out = 0;  // runs whose attempts are not on the page
};

// The page, whole. Pure: equal data give equal bytes.
std::string RenderReport(const ReportData& data);

}  // namespace switchyard::client
