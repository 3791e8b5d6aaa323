#pragma once

namespace CLI {
class App;
}

// Descriptions of the options of verbs that have many, for the program's parser; what a user gives
// ends in the struct. Both outlive the parsing.
namespace switchyard::client {

struct ExportOptions;
struct ImportOptions;
struct PlotOptions;
struct ReportOptions;

void AddExportOptions(CLI::App* verb, ExportOptions* options);
void AddImportOptions(CLI::App* verb, ImportOptions* options);
void AddPlotOptions(CLI::App* verb, PlotOptions* options);
void AddReportOptions(CLI::App* verb, ReportOptions* options);

}  // namespace switchyard::client
