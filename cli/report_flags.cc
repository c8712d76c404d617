#include "cli/report_flags.h"

#include "cli/report/output_file.h"
#include "cli/report/report.h"

namespace kvtier::cli {
namespace {

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
  if (!flags.report.empty()) KVTIER_RETURN_IF_ERROR(CheckWritable(flags.report));
  if (flags.plot.empty()) return absl::OkStatus();
  if (!flags.plot.ends_with(".svg")) {
    return absl::InvalidArgumentError(
        absl::StrCat("plot is '", flags.plot, "', its name must end in .svg"));
  }
  if (flags.plot == flags.report) {
    return absl::InvalidArgumentError(
        absl::StrCat("plot and report are both '", flags.plot, "', they must be two files"));
  }
  return CheckWritable(flags.plot);
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
