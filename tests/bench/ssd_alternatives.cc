// Ways to keep blocks on an SSD, measured side by side: what docs/ROCKSDB.md quotes.
//
// Each arm stores the same bytes in batches of 32 blocks, every batch on the medium before the
// next, reads them back at random past the page cache, and deletes the oldest quarter. Before and
// after each arm a raw file is written and read with O_DIRECT: that is the arm's ceiling. Ratios
// are taken before medians, so that a disk that others use too spoils neither side alone.
#include <fcntl.h>
#include <malloc.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "bench/disk.h"
#include "common/check.h"
#include "common/executor.h"
#include "tests/bench/ssd_arms.h"

namespace kvtier::bench {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSizes[] = {64 << 10, 2 << 20};
constexpr uint64_t kReadBytes = 1024 * kMiB;  // most of one read measurement

double Median(std::vector<double> values) {
  KVTIER_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Calls `work(i, buffer)` for i < count from `depth` threads, each with a warm buffer of its own.
// Returns the seconds it took.
using Work = std::function<absl::Status(uint64_t, Buffer&)>;
absl::StatusOr<double> AtDepth(int depth, uint64_t count, uint64_t buffer_bytes, const Work& work) {
  std::vector<Buffer> buffers;
  for (int i = 0; i < depth; i++) buffers.emplace_back(buffer_bytes);
  std::vector<absl::Status> results(static_cast<size_t>(depth));
  std::atomic<uint64_t> next{0};
  ThreadPool pool(depth);
  const Stopwatch watch;
  for (size_t t = 0; t < results.size(); t++) {
    pool.Run([&, t] {
      for (uint64_t i = next++; i < count && results[t].ok(); i = next++) {
        results[t] = work(i, buffers[t]);
      }
    });
  }
  pool.WaitIdle();
  const double seconds = watch.Seconds();
  for (const absl::Status& result : results) KVTIER_RETURN_IF_ERROR(result);
  return seconds;
}

// ---------------------------------------------------------------------- one arm in one round

struct Figures {
  double write = 0;    // bytes/s until the last batch was durable
  double settled = 0;  // bytes/s until the work behind it was done too
  double read_1 = 0;   // bytes/s at queue depth 1
  double read_8 = 0;
  double write_amp = 0;     // bytes sent to the disk / payload
  double space_amp = 0;     // bytes allocated / live payload, a quarter deleted
  double open = 0;          // s, cold
  double delete_batch = 0;  // s
};

struct Load {
  std::string dir;
  uint64_t block_bytes = 0;
  uint64_t blocks = 0;
  uint64_t bytes() const { return block_bytes * blocks; }
};

absl::Status WriteAll(Arm& arm, const Load& load, Payload& payload, Figures& out) {
  const uint64_t before = BytesWritten();
  const Stopwatch watch;
  for (uint64_t first = 0; first < load.blocks; first += kBatch) {
    payload.Mark(first);
    KVTIER_RETURN_IF_ERROR(arm.Write(payload, first));
  }
  out.write = static_cast<double>(load.bytes()) / watch.Seconds();
  KVTIER_RETURN_IF_ERROR(arm.Settle());
  out.settled = static_cast<double>(load.bytes()) / watch.Seconds();
  KVTIER_RETURN_IF_ERROR(SyncAll(load.dir));
  out.write_amp = static_cast<double>(BytesWritten() - before) / static_cast<double>(load.bytes());
  return absl::OkStatus();
}

// Bytes/s of different blocks in a random order.
using ReadBlock = std::function<absl::Status(uint64_t, Buffer&)>;
absl::StatusOr<double> ReadRate(const Load& load, int depth, const ReadBlock& read) {
  KVTIER_RETURN_IF_ERROR(DropCaches(load.dir));
  std::vector<uint64_t> order(load.blocks);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(static_cast<uint64_t>(depth)));
  order.resize(std::min(load.blocks, kReadBytes / load.block_bytes));
  KVTIER_ASSIGN_OR_RETURN(const double seconds,
                          AtDepth(depth, order.size(), load.block_bytes,
                                  [&](uint64_t i, Buffer& to) { return read(order[i], to); }));
  return static_cast<double>(order.size() * load.block_bytes) / seconds;
}

absl::Status DeleteQuarter(Arm& arm, const Load& load, Figures& out) {
  const uint64_t quarter = load.blocks / 4 / kBatch * kBatch;
  for (uint64_t first = 0; first < quarter; first += kBatch) {
    const Stopwatch watch;
    KVTIER_RETURN_IF_ERROR(arm.Delete(first));
    if (first == 0) out.delete_batch = watch.Seconds();
  }
  KVTIER_RETURN_IF_ERROR(arm.Settle());
  KVTIER_RETURN_IF_ERROR(SyncAll(load.dir));
  const uint64_t live = (load.blocks - quarter) * load.block_bytes;
  out.space_amp = static_cast<double>(DiskBytes(load.dir)) / static_cast<double>(live);

  Buffer buffer(load.block_bytes);
  if (quarter > 0 && arm.Read(0, buffer).ok() &&
      VerifyBlock(buffer.data(), load.block_bytes, 0).ok()) {
    return absl::InternalError(arm.name() + ": a deleted block is still there");
  }
  KVTIER_RETURN_IF_ERROR(arm.Read(quarter, buffer));
  return VerifyBlock(buffer.data(), load.block_bytes, quarter);
}

absl::StatusOr<Figures> MeasureArm(Arm& arm, const Load& load, Payload& payload) {
  fs::create_directories(load.dir);
  Figures out;
  KVTIER_RETURN_IF_ERROR(arm.Open(load.dir, load.block_bytes, load.blocks));
  KVTIER_RETURN_IF_ERROR(WriteAll(arm, load, payload, out));
  arm.Close();
  KVTIER_RETURN_IF_ERROR(DropCaches(load.dir));
  const Stopwatch watch;
  KVTIER_RETURN_IF_ERROR(arm.Open(load.dir, load.block_bytes, load.blocks));
  out.open = watch.Seconds();
  const auto read = [&](uint64_t block, Buffer& to) {
    KVTIER_RETURN_IF_ERROR(arm.Read(block, to));
    return VerifyBlock(to.data(), load.block_bytes, block);
  };
  KVTIER_ASSIGN_OR_RETURN(out.read_1, ReadRate(load, 1, read));
  KVTIER_ASSIGN_OR_RETURN(out.read_8, ReadRate(load, 8, read));
  KVTIER_RETURN_IF_ERROR(DeleteQuarter(arm, load, out));
  arm.Close();
  fs::remove_all(load.dir);
  return out;
}

// ---------------------------------------------------------------------- ceiling

struct Ceiling {
  double write_1 = 0;  // bytes/s
  double write_8 = 0;
  double read_1 = 0;
  double read_8 = 0;
  double write() const { return std::max(write_1, write_8); }
};

// One file that was written before, so that the file system has nothing left to do but pass on.
class RawFile {
 public:
  absl::Status Make(const std::string& dir) {
    dir_ = dir;
    fs::create_directories(dir);
    KVTIER_ASSIGN_OR_RETURN(file_, File::Open(dir + "/raw", O_RDWR | O_CREAT | O_DIRECT));
    KVTIER_RETURN_IF_ERROR(file_.Allocate(kRawBytes));
    return Write(2 * kMiB, 8).status();
  }
  absl::StatusOr<Ceiling> Measure(uint64_t block_bytes) {
    KVTIER_RETURN_IF_ERROR(SyncAll(dir_));  // what the arm before left behind
    const Load load = {dir_, block_bytes, kRawBytes / block_bytes};
    const auto read = [&](uint64_t block, Buffer& to) {
      return file_.Read(to.data(), block_bytes, block * block_bytes);
    };
    Ceiling out;
    KVTIER_ASSIGN_OR_RETURN(out.write_1, Write(block_bytes, 1));
    KVTIER_ASSIGN_OR_RETURN(out.write_8, Write(block_bytes, 8));
    KVTIER_ASSIGN_OR_RETURN(out.read_1, ReadRate(load, 1, read));
    KVTIER_ASSIGN_OR_RETURN(out.read_8, ReadRate(load, 8, read));
    return out;
  }

 private:
  static constexpr uint64_t kRawBytes = 512 * kMiB;
  absl::StatusOr<double> Write(uint64_t block_bytes, int depth) {
    const auto write = [&](uint64_t i, Buffer& from) {
      return file_.Write(from.data(), block_bytes, i * block_bytes);
    };
    KVTIER_ASSIGN_OR_RETURN(double seconds,
                            AtDepth(depth, kRawBytes / block_bytes, block_bytes, write));
    const Stopwatch watch;
    KVTIER_RETURN_IF_ERROR(file_.Sync());
    return static_cast<double>(kRawBytes) / (seconds + watch.Seconds());
  }
  std::string dir_;
  File file_;
};

// What the disk gave around an arm: just before it and just after.
Ceiling Between(const Ceiling& before, const Ceiling& after) {
  return {.write_1 = (before.write_1 + after.write_1) / 2,
          .write_8 = (before.write_8 + after.write_8) / 2,
          .read_1 = (before.read_1 + after.read_1) / 2,
          .read_8 = (before.read_8 + after.read_8) / 2};
}

// ---------------------------------------------------------------------- files of few records

struct FileCost {
  std::string arm;
  uint64_t block_bytes = 0;
  uint64_t records = 0;
  double ingest = 0;    // s, median
  double raw = 0;       // s, pwrite and fdatasync of the same bytes
  double overhead = 0;  // bytes on the disk beyond the payload
};

absl::StatusOr<double> MedianSeconds(uint64_t count,
                                     const std::function<absl::Status(uint64_t)>& work) {
  std::vector<double> seconds;
  for (uint64_t i = 0; i < count; i++) {
    const Stopwatch watch;
    KVTIER_RETURN_IF_ERROR(work(i));
    seconds.push_back(watch.Seconds());
  }
  return Median(seconds);
}

absl::StatusOr<FileCost> MeasureFileCost(const std::string& dir, Payload& payload, uint64_t records,
                                         FileWrites writes) {
  fs::create_directories(dir);
  const uint64_t bytes = records * payload.block_bytes();
  const uint64_t count = std::clamp<uint64_t>(1024 * kMiB / bytes, 16, 128);
  const std::unique_ptr<FileLog> arm = MakeFileLog(writes);
  FileCost out = {.arm = arm->name(), .block_bytes = payload.block_bytes(), .records = records};
  KVTIER_RETURN_IF_ERROR(arm->Open(dir, payload.block_bytes(), 0));
  const uint64_t before = DiskBytes(dir);
  KVTIER_ASSIGN_OR_RETURN(out.ingest, MedianSeconds(count, [&](uint64_t i) {
                            return arm->WriteFile(payload, i * kBatch, records);
                          }));
  out.overhead = static_cast<double>(DiskBytes(dir) - before) / static_cast<double>(count) -
                 static_cast<double>(bytes);
  arm->Close();

  KVTIER_ASSIGN_OR_RETURN(File file, File::Open(dir + "/raw", O_RDWR | O_CREAT | O_DIRECT));
  KVTIER_RETURN_IF_ERROR(file.Allocate(count * bytes));
  KVTIER_ASSIGN_OR_RETURN(out.raw, MedianSeconds(count, [&](uint64_t i) {
                            KVTIER_RETURN_IF_ERROR(file.Write(payload.block(0), bytes, i * bytes));
                            return file.Sync();
                          }));
  fs::remove_all(dir);
  return out;
}

// ---------------------------------------------------------------------- very many files

struct OpenCost {
  int max_open_files = 0;
  double open = 0;         // s, cold, with every file's list of blocks
  double memory = 0;       // bytes of the process
  double descriptors = 0;  // open files of the process
  double manifest = 0;     // bytes
  double get = 0;          // s, median of single reads, warm disk
};

constexpr uint64_t kTinyBytes = 4096;  // a value's size changes neither an open nor its memory

absl::Status MakeManyFiles(const std::string& dir, uint64_t files) {
  constexpr uint64_t kAtOnce = 64;
  const std::unique_ptr<FileLog> arm = MakeFileLog(FileWrites::kDirect);
  Payload payload(kTinyBytes);
  KVTIER_RETURN_IF_ERROR(arm->Open(dir, kTinyBytes, 0));
  for (uint64_t done = 0; done < files; done += kAtOnce) {
    std::vector<std::string> paths;
    for (uint64_t i = done; i < std::min(files, done + kAtOnce); i++) {
      paths.push_back(absl::StrFormat("%s/next-%d.sst", dir, i));
      payload.Mark(i * kBatch);
      KVTIER_RETURN_IF_ERROR(arm->MakeFile(paths.back(), payload, i * kBatch, kBatch));
    }
    KVTIER_RETURN_IF_ERROR(arm->Ingest(paths));
  }
  arm->Close();
  return absl::OkStatus();
}

double ManifestBytes(const std::string& dir) {
  double bytes = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir + "/db")) {
    if (entry.path().filename().string().starts_with("MANIFEST")) {
      bytes += static_cast<double>(entry.file_size());
    }
  }
  return bytes;
}

double OpenDescriptors() {
  return static_cast<double>(
      std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()));
}

// What the process has from malloc: what is resident depends on what earlier arms left behind.
uint64_t AllocatedMemory() {
  const struct mallinfo2 info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

absl::StatusOr<OpenCost> MeasureOpen(const std::string& dir, uint64_t files, int max_open_files) {
  OpenCost out = {.max_open_files = max_open_files};
  out.manifest = ManifestBytes(dir);
  KVTIER_RETURN_IF_ERROR(DropCaches(dir));
  const uint64_t memory = AllocatedMemory();
  const std::unique_ptr<FileLog> arm = MakeFileLog(FileWrites::kDirect, max_open_files);
  const Stopwatch watch;
  KVTIER_RETURN_IF_ERROR(arm->Open(dir, kTinyBytes, 0));
  out.open = watch.Seconds();
  out.memory = static_cast<double>(AllocatedMemory() - memory);
  out.descriptors = OpenDescriptors();
  Buffer buffer(kTinyBytes);
  std::mt19937_64 random(7);
  KVTIER_ASSIGN_OR_RETURN(out.get, MedianSeconds(1024, [&](uint64_t) {
                            const uint64_t block = random() % (files * kBatch);
                            KVTIER_RETURN_IF_ERROR(arm->Read(block, buffer));
                            return VerifyBlock(buffer.data(), kTinyBytes, block);
                          }));
  arm->Close();
  return out;
}

// ---------------------------------------------------------------------- the run

struct Row {
  uint64_t block_bytes = 0;
  std::string arm;
  std::vector<Figures> rounds;
  std::vector<Ceiling> ceilings;  // around each of them
  std::vector<Figures> floors;    // the segment file's of the same rounds, for open and delete
};

struct Report {
  uint64_t bytes = 0;
  int rounds = 0;
  std::vector<Row> rows;
  std::vector<FileCost> file_costs;
  uint64_t files = 0;
  std::vector<OpenCost> open_costs;
};

// All arms once; adds to the rows of this size, which come in the arms' order.
absl::Status RunRound(const Load& load, RawFile& raw, std::span<Row> rows) {
  Payload payload(load.block_bytes);
  const std::vector<std::unique_ptr<Arm>> arms = MakeArms();
  KVTIER_ASSIGN_OR_RETURN(Ceiling before, raw.Measure(load.block_bytes));
  std::vector<Figures> all;
  for (const std::unique_ptr<Arm>& arm : arms) {
    const Stopwatch watch;
    absl::StatusOr<Figures> figures = MeasureArm(*arm, load, payload);
    if (!figures.ok()) return Annotate(figures.status(), arm->name());
    absl::FPrintF(stderr, "%d KiB, %s: %.1f s\n", load.block_bytes >> 10, arm->name(),
                  watch.Seconds());
    all.push_back(*figures);
    KVTIER_ASSIGN_OR_RETURN(const Ceiling after, raw.Measure(load.block_bytes));
    rows[all.size() - 1].ceilings.push_back(Between(before, after));
    before = after;
  }
  for (size_t i = 0; i < arms.size(); i++) {
    rows[i].block_bytes = load.block_bytes;
    rows[i].arm = arms[i]->name();
    rows[i].rounds.push_back(all[i]);
    rows[i].floors.push_back(all.back());
  }
  return absl::OkStatus();
}

absl::Status RunAlternatives(const std::string& dir, Report& report) {
  RawFile raw;
  KVTIER_RETURN_IF_ERROR(raw.Make(dir + "/ceiling"));
  const size_t arms = MakeArms().size();
  report.rows.resize(arms * std::size(kSizes));
  for (int round = 0; round < report.rounds; round++) {
    for (size_t s = 0; s < std::size(kSizes); s++) {
      absl::FPrintF(stderr, "round %d of %d\n", round + 1, report.rounds);
      const Load load = {dir + "/arm", kSizes[s], report.bytes / kSizes[s]};
      KVTIER_RETURN_IF_ERROR(RunRound(load, raw, std::span(report.rows).subspan(s * arms, arms)));
    }
  }
  return absl::OkStatus();
}

absl::Status RunFileCosts(const std::string& dir, Report& report) {
  for (const uint64_t size : kSizes) {
    Payload payload(size);
    for (const uint64_t records : {uint64_t{1}, kBatch}) {
      for (const FileWrites writes : {FileWrites::kDirect, FileWrites::kCached}) {
        absl::StatusOr<FileCost> cost = MeasureFileCost(dir + "/cost", payload, records, writes);
        if (!cost.ok()) return Annotate(cost.status(), "files of few records");
        report.file_costs.push_back(*cost);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status RunManyFiles(const std::string& dir, Report& report) {
  absl::FPrintF(stderr, "%d files\n", report.files);
  const std::string many = dir + "/many";
  fs::create_directories(many);
  KVTIER_RETURN_IF_ERROR(MakeManyFiles(many, report.files));
  for (const int max_open_files : {-1, 1024}) {
    absl::StatusOr<OpenCost> cost = MeasureOpen(many, report.files, max_open_files);
    if (!cost.ok()) return Annotate(cost.status(), "many files");
    report.open_costs.push_back(*cost);
  }
  fs::remove_all(many);
  return absl::OkStatus();
}

// ---------------------------------------------------------------------- what is printed

struct Cell {
  const char* name;
  double value = 0;
  double ratio = 0;
};

// The median over the rounds of a figure, and of its ratio to the limit of the same round.
Cell MakeCell(const Row& row, const char* name, const std::function<double(const Figures&)>& figure,
              const std::function<double(size_t)>& limit) {
  std::vector<double> values;
  std::vector<double> ratios;
  for (size_t i = 0; i < row.rounds.size(); i++) {
    values.push_back(figure(row.rounds[i]));
    ratios.push_back(values.back() / limit(i));
  }
  return {name, Median(values), Median(ratios)};
}

std::vector<Cell> Cells(const Row& row) {
  const auto write = [&](size_t i) { return row.ceilings[i].write() / 1e9; };
  const auto one = [](size_t) { return 1.0; };
  return {
      MakeCell(
          row, "write_gb_s", [](const Figures& f) { return f.write / 1e9; }, write),
      MakeCell(
          row, "write_settled_gb_s", [](const Figures& f) { return f.settled / 1e9; }, write),
      MakeCell(
          row, "read_1_gb_s", [](const Figures& f) { return f.read_1 / 1e9; },
          [&](size_t i) { return row.ceilings[i].read_1 / 1e9; }),
      MakeCell(
          row, "read_8_gb_s", [](const Figures& f) { return f.read_8 / 1e9; },
          [&](size_t i) { return row.ceilings[i].read_8 / 1e9; }),
      MakeCell(
          row, "write_amplification", [](const Figures& f) { return f.write_amp; }, one),
      MakeCell(
          row, "space_amplification", [](const Figures& f) { return f.space_amp; }, one),
      MakeCell(
          row, "open_ms", [](const Figures& f) { return f.open * 1e3; },
          [&](size_t i) { return row.floors[i].open * 1e3; }),
      MakeCell(
          row, "delete_32_ms", [](const Figures& f) { return f.delete_batch * 1e3; },
          [&](size_t i) { return row.floors[i].delete_batch * 1e3; }),
  };
}

double CeilingMedian(const Row& row, double Ceiling::*figure) {
  std::vector<double> values;
  for (const Ceiling& ceiling : row.ceilings) values.push_back(ceiling.*figure / 1e9);
  return Median(values);
}

void PrintTable(const Report& report) {
  const size_t arms = report.rows.size() / std::size(kSizes);
  for (size_t r = 0; r < report.rows.size(); r++) {
    const Row& row = report.rows[r];
    if (r % arms == 0) {
      absl::PrintF(
          "\n%d KiB values, GB/s of the raw file: write %.2f (1), %.2f (8), read %.2f (1), "
          "%.2f (8)\n",
          row.block_bytes >> 10, CeilingMedian(row, &Ceiling::write_1),
          CeilingMedian(row, &Ceiling::write_8), CeilingMedian(row, &Ceiling::read_1),
          CeilingMedian(row, &Ceiling::read_8));
      absl::PrintF("%-16s", "");
      for (const Cell& cell : Cells(row)) absl::PrintF(" | %-19s", cell.name);
      absl::PrintF("\n");
    }
    absl::PrintF("%-16s", row.arm);
    for (const Cell& cell : Cells(row)) absl::PrintF(" | %9.2f (%7.2f)", cell.value, cell.ratio);
    absl::PrintF("\n");
  }
  absl::PrintF(
      "\nIn brackets: share of the raw file's rate; open and delete: times the segment "
      "file's.\n\n");
  for (const FileCost& cost : report.file_costs) {
    absl::PrintF(
        "%s, file of %2d x %4d KiB: %6.2f ms, raw %6.2f ms (%.2f), %.0f bytes beside the "
        "payload\n",
        cost.arm, cost.records, cost.block_bytes >> 10, cost.ingest * 1e3, cost.raw * 1e3,
        cost.ingest / cost.raw, cost.overhead);
  }
  for (const OpenCost& cost : report.open_costs) {
    absl::PrintF(
        "%d files, max_open_files %d: open %.2f s, %.1f MiB, %.0f descriptors, manifest "
        "%.1f MiB, one read %.0f us\n",
        report.files, cost.max_open_files, cost.open, cost.memory / kMiB, cost.descriptors,
        cost.manifest / kMiB, cost.get * 1e6);
  }
}

std::string RowJson(const Row& row) {
  std::string out = absl::StrFormat(R"({"value_bytes":%d,"arm":"%s")", row.block_bytes, row.arm);
  for (const Cell& cell : Cells(row)) {
    absl::StrAppendFormat(&out, R"(,"%s":%.6g,"%s_ratio":%.6g)", cell.name, cell.value, cell.name,
                          cell.ratio);
  }
  absl::StrAppendFormat(&out,
                        R"(,"ceiling":{"write_1_gb_s":%.6g,"write_8_gb_s":%.6g,"read_1_gb_s":%.6g,)"
                        R"("read_8_gb_s":%.6g}})",
                        CeilingMedian(row, &Ceiling::write_1),
                        CeilingMedian(row, &Ceiling::write_8), CeilingMedian(row, &Ceiling::read_1),
                        CeilingMedian(row, &Ceiling::read_8));
  return out;
}

void PrintJson(const Report& report) {
  std::vector<std::string> rows, file_costs, open_costs;
  for (const Row& row : report.rows) rows.push_back(RowJson(row));
  for (const FileCost& cost : report.file_costs) {
    file_costs.push_back(absl::StrFormat(
        R"({"arm":"%s","value_bytes":%d,"records":%d,"ingest_ms":%.6g,"raw_ms":%.6g,"ratio":%.6g,)"
        R"("overhead_bytes":%.0f})",
        cost.arm, cost.block_bytes, cost.records, cost.ingest * 1e3, cost.raw * 1e3,
        cost.ingest / cost.raw, cost.overhead));
  }
  for (const OpenCost& cost : report.open_costs) {
    open_costs.push_back(absl::StrFormat(
        R"({"files":%d,"max_open_files":%d,"open_ms":%.6g,"memory_bytes":%.0f,"descriptors":%.0f,)"
        R"("manifest_bytes":%.0f,"read_us":%.6g})",
        report.files, cost.max_open_files, cost.open * 1e3, cost.memory, cost.descriptors,
        cost.manifest, cost.get * 1e6));
  }
  absl::PrintF(
      R"({"bytes":%d,"rounds":%d,"batch":%d,"rows":[%s],"file_costs":[%s],"open_costs":[%s]})"
      "\n",
      report.bytes, report.rounds, kBatch, absl::StrJoin(rows, ","), absl::StrJoin(file_costs, ","),
      absl::StrJoin(open_costs, ","));
}

absl::Status Run(const std::string& dir, Report& report) {
  KVTIER_RETURN_IF_ERROR(RunAlternatives(dir, report));
  KVTIER_RETURN_IF_ERROR(RunFileCosts(dir, report));
  return report.files > 0 ? RunManyFiles(dir, report) : absl::OkStatus();
}

// Values come from memory that is kept: else a read pays for fresh pages each time.
void KeepMemory() {
  KVTIER_CHECK(::mallopt(M_MMAP_THRESHOLD, 32 << 20) == 1);
  KVTIER_CHECK(::mallopt(M_TRIM_THRESHOLD, 1 << 30) == 1);
}

// With max_open_files -1 each SST file keeps a descriptor.
void RaiseFileLimit() {
  rlimit limit = {};
  KVTIER_CHECK(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = limit.rlim_max;
  KVTIER_CHECK(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

int Main(int argc, char** argv) {
  std::string parent;
  Report report;
  report.bytes = 2048 * kMiB;
  report.rounds = 3;
  report.files = 16384;
  bool json = false;
  CLI::App app("Ways to keep blocks on an SSD, side by side, beside a raw file");
  app.add_option("--dir", parent, "a directory on the disk to measure; a new one is made in it")
      ->required()
      ->check(CLI::ExistingDirectory);
  app.add_option("--bytes", report.bytes, "payload of an arm, rounded down to 256 MiB")
      ->check(CLI::Range(256 * kMiB, 65536 * kMiB));
  app.add_option("--rounds", report.rounds)->check(CLI::Range(1, 99));
  app.add_option("--many-files", report.files, "files of the test of many files; 0: leave it out")
      ->check(CLI::Range(0, 1 << 20));
  app.add_flag("--json", json, "one document on stdout");
  CLI11_PARSE(app, argc, argv);
  report.bytes -= report.bytes % (256 * kMiB);  // a quarter is a whole batch of the largest values

  KeepMemory();
  RaiseFileLimit();
  std::string dir = parent + "/kvtier-ssd-XXXXXX";
  if (::mkdtemp(dir.data()) == nullptr) {
    absl::FPrintF(stderr, "%s\n", SystemError(dir).ToString());
    return 1;
  }
  const absl::Status status = Run(dir, report);
  std::error_code left_behind;  // of no interest beside the figures
  fs::remove_all(dir, left_behind);
  if (!status.ok()) {
    absl::FPrintF(stderr, "%s\n", status.ToString());
    return 1;
  }
  json ? PrintJson(report) : PrintTable(report);
  return 0;
}

}  // namespace
}  // namespace kvtier::bench

int main(int argc, char** argv) { return kvtier::bench::Main(argc, argv); }
