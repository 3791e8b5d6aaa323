#pragma once

#include "client/report/report_page.h"

namespace switchyard::v1 {
class CompareResponse;
}

namespace switchyard::client {

// What a page says of one comparison: the sentences, the numbers behind them, and everything that
// a reader must know beside them.
ReportComparison ComparisonSection(const v1::CompareResponse& response);

}  // namespace switchyard::client
