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
  // Goes on after the files in `before`: none for a base, those of the version before for a cumulative delta.
  PartWriter(WritePool& pool, std::string directory, PartFiles before, std::uint64_t data_file_limit);

  void append(std::uint64_t key, const std::uint8_t* value, std::uint32_t size);
  // Hands over what is buffered; the files are complete once the pool has drained.
  void flush();

  const std::string& directory() const { return directory_; }
  std::uint64_t added() const { return added_; }
  // What the entries add up to.
  const Checksum& checksum() const { return checksum_; }
  // Whether index.n could not count one more entry.
  bool full() const { return before_.entries + added_ >= 0xffffffff; }
  // Whether keys came in strictly ascending order, so that none can be there twice.
  bool ascending() const { return ascending_; }
  std::string new_index_path() const { return index_path(directory_, before_.index_lengths.size()); }
  // All files, those before included.
  PartFiles files() const;
  // The files this writer made.
  std::vector<std::string> new_paths() const;

 private:
  void flush_data();
  void flush_index();

  WritePool& pool_;
  std::string directory_;
  PartFiles before_;
  std::uint64_t limit_;
  std::vector<std::uint32_t> closed_;  // lengths of the data files that are full
  WritePool::Block* data_ = nullptr;
  WritePool::Block* index_ = nullptr;
  std::uint64_t data_written_ = 0;  // of the current data file, what is buffered not counted
  std::uint64_t index_written_ = 0;
  std::uint64_t added_ = 0;
  std::uint64_t last_key_ = 0;
  Checksum checksum_;
  bool ascending_ = true;
};

}  // namespace cloudedge::cube
