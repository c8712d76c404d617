// --report and --plot of the commands whose figures can be drawn.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cli/json_output.h"
#include "common/status.h"

namespace kvtier::cli {

struct ReportFlags {
  std::string report;  // empty: none
  std::string plot;
};

// `flags` outlives the parse.
void AddReportFlags(CLI::App* command, ReportFlags* flags);

// Before the work starts. INVALID_ARGUMENT (a name that does not end in .html or .svg) or
// FAILED_PRECONDITION, naming the path and the reason.
absl::Status CheckReportFlags(const ReportFlags& flags);

// Writes what was asked for, from the document that --json prints, and says where it is.
absl::Status WriteReports(const ReportFlags& flags, const Json& document, const Output& output);

}  // namespace kvtier::cli
