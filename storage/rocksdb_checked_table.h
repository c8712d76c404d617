// How RocksDB gets to see a table file: only after storage/sst_tail.h has.
#pragma once

#include <rocksdb/file_system.h>

#include <memory>
#include <string>

namespace kvtier {

// Opens a table file, as a file system's NewRandomAccessFile, and verifies its tail by the same way
// of reading. Corruption: it is damaged; NotSupported: it is of another format; both name the file.
rocksdb::IOStatus OpenCheckedTable(rocksdb::FileSystem* file_system, const std::string& path,
                                   const rocksdb::FileOptions& options,
                                   std::unique_ptr<rocksdb::FSRandomAccessFile>* file,
                                   rocksdb::IODebugContext* debug);

}  // namespace kvtier
