// Builds the parts of one version from rows: part = key mod parts, files as in layout.hpp. Memory does not grow with
// the rows. It writes into given directories; names, tar files and publishing are the caller's.
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
  std::uint64_t duplicates = 0;  // of those, entries whose key is repeated later
  Checksum checksum;             // of all entries; equals that of the rows if no key is repeated
};

class Builder {
 public:
  // One part per directory. `before` lists, for each, the files that a delta continues; empty for a base.
  Builder(const std::vector<std::string>& directories, const std::vector<PartFiles>& before,
          std::uint64_t data_file_limit, unsigned threads);

  // Reads rows until the source ends or about `bytes` bytes of it are used. False: it has ended.
  bool take(seqfile::Reader& source, std::uint64_t bytes) { return take_from(source, bytes); }
  bool take(TableSource& source, std::uint64_t bytes) { return take_from(source, bytes); }
  // Adds one row; errors name `path` and the row's offset.
  void add(const seqfile::Record& row, const std::string& path);

  // Entries of each part so far.
  std::vector<std::uint64_t> added() const;
  // Writes the rest and the file lists, counts duplicates, and waits until everything is on the device.
  std::vector<BuiltPart> finish();
  // Stops writing to the directories.
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
