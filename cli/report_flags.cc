#include "cli/report_flags.h"

#include "cli/report/output_file.h"
#include "cli/report/report.h"

namespace kvtier::cli {
namespace {

// A name that ends otherwise is most likely a slip, and the file it names, the trace perhaps, would
// be gone.
absl::Status CheckName(const std::string& flag, const std::string& path, const std::string& end) {
  if (!path.ends_with(end)) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " is '", path, "', its name must end in ", end));
  }
  return CheckWritable(path);
}

absl::Status Write(const std::string& path, const std::string& content, const Output& output) {
  KVTIER_RETURN_IF_ERROR(WriteWholeFile(path, content));
  output.Progress("wrote " + path);
  return absl::OkStatus();
}

}  // namespace

void AddReportFlags(CLI::App* command, ReportFlags* flags) {
  command->add_option("--report", flags->report,
                      "Write a page for a browser, in one file: charts, facts and all figures "
                      "(FILE.html)");
  command->add_option("--plot", flags->plot, "Write the page's charts alone (FILE.svg)");
}

absl::Status CheckReportFlags(const ReportFlags& flags) {
  if (!flags.report.empty()) KVTIER_RETURN_IF_ERROR(CheckName("report", flags.report, ".html"));
  if (!flags.plot.empty()) KVTIER_RETURN_IF_ERROR(CheckName("plot", flags.plot, ".svg"));
  return absl::OkStatus();
}

absl::Status WriteReports(const ReportFlags& flags, const Json& document, const Output& output) {
  if (!flags.report.empty()) {
    KVTIER_RETURN_IF_ERROR(Write(flags.report, ReportHtml(document), output));
  }
  if (!flags.plot.empty()) {
    KVTIER_RETURN_IF_ERROR(Write(flags.plot, PlotSvg(document), output));
  }
  return absl::OkStatus();
}

}  // namespace kvtier::cli
