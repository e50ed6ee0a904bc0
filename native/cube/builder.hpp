// Rows from anywhere become the parts of one version: key mod parts, files as in layout.hpp. Memory does not grow
// with the rows. Not responsible for names, for tar files or for publishing: it writes into directories it is given.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "part_writer.hpp"
#include "table_source.hpp"
#include "write_pool.hpp"

namespace cloudedge::cube {

struct BuiltPart {
  PartFiles files;
  std::uint64_t added = 0;       // entries of this build
  std::uint64_t duplicates = 0;  // of those, entries whose key comes again later
  Checksum checksum;             // of all entries; of the rows, too, where no key comes again
};

class Builder {
 public:
  // One part per directory; `before` says what files a delta continues from and is as long, or empty for a base.
  Builder(const std::vector<std::string>& directories, const std::vector<PartFiles>& before,
          std::uint64_t data_file_limit, unsigned threads);

  // Takes rows until the source ends or about `bytes` bytes of it are used. False: it has ended.
  bool take(seqfile::Reader& source, std::uint64_t bytes) { return take_from(source, bytes); }
  bool take(TableSource& source, std::uint64_t bytes) { return take_from(source, bytes); }
  // Adds one row; `path` and `offset` say where it is from.
  void add(const seqfile::Record& row, const std::string& path);

  // Entries of each part so far.
  std::vector<std::uint64_t> added() const;
  // Writes the rest and the lists, counts duplicates, and waits until the device has everything.
  std::vector<BuiltPart> finish();
  // Gives up: nothing is written to the directories any more.
  void cancel() { pool_.cancel(); }

 private:
  template <class Source>
  bool take_from(Source& source, std::uint64_t bytes) {
    const std::uint64_t stop = source.offset() + bytes;
    seqfile::Record row;
    while (source.offset() < stop) {
      if (!source.next(row)) return false;
      add(row, source.path());
    }
    return true;
  }

  unsigned threads_;
  WritePool pool_;
  std::vector<PartWriter> parts_;
};

}  // namespace cloudedge::cube
