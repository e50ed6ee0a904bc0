// Writes the index and data files of one part, record by record, through a WritePool.
#pragma once

#include <cstdint>
#include <string>

#include "layout.hpp"
#include "table.hpp"
#include "write_pool.hpp"

namespace cloudedge::cube {

class PartWriter {
 public:
  // Continues after the files in `before`: none for a base, those of the previous version for a cumulative delta.
  PartWriter(WritePool& pool, std::string directory, PartFiles before, std::uint64_t data_file_limit);

  void append(std::uint64_t key, const std::uint8_t* value, std::uint32_t size);
  // Submits the buffered bytes; the files are complete once the pool has drained.
  void flush();

  const std::string& directory() const { return directory_; }
  std::uint64_t added() const { return added_; }
  // The checksum of the entries.
  const Checksum& checksum() const { return checksum_; }
  // True if index.n cannot count one more entry.
  bool full() const { return before_.entries + added_ >= 0xffffffff; }
  // True if keys came in strictly ascending order, so that none is repeated.
  bool ascending() const { return ascending_; }
  std::string new_index_path() const { return index_path(directory_, before_.index_lengths.size()); }
  // All files, including those before.
  PartFiles files() const;
  // The files of this writer.
  std::vector<std::string> new_paths() const;

 private:
  void flush_data();
  void flush_index();

  WritePool& pool_;
  std::string directory_;
  PartFiles before_;
  std::uint64_t limit_;
  std::vector<std::uint32_t> closed_;  // lengths of the full data files
  WritePool::Block* data_ = nullptr;
  WritePool::Block* index_ = nullptr;
  std::uint64_t data_written_ = 0;  // bytes of the current data file, without buffered ones
  std::uint64_t index_written_ = 0;
  std::uint64_t added_ = 0;
  std::uint64_t last_key_ = 0;
  Checksum checksum_;
  bool ascending_ = true;
};

}  // namespace cloudedge::cube
