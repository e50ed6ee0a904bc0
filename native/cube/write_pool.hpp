// Writes blocks of bytes to files: one thread fills them, that thread and its helpers write them, and their number
// never grows.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace cloudedge::cube {

class WritePool {
 public:
  struct Block {
    std::unique_ptr<std::uint8_t[]> data;
    std::size_t filled = 0;
  };

  // `threads` counts the one that fills the blocks.
  WritePool(unsigned threads, std::size_t blocks, std::size_t block_bytes);
  ~WritePool();

  std::size_t block_bytes() const { return block_bytes_; }
  // Returns an empty block. While there is none, the caller writes like a helper.
  Block* acquire();
  // Writes a block at an offset of a file, which is created if needed. The error of an earlier block is thrown here, in
  // acquire() or in drain().
  void submit(std::string path, std::uint64_t offset, Block* block);
  // Returns when all submitted blocks have been written.
  void drain();
  // Drops blocks that have not been written yet and returns when no thread writes any more.
  void cancel();

 private:
  struct Job {
    std::string path;
    std::uint64_t offset;
    Block* block;
  };

  void help();
  void work(std::unique_lock<std::mutex>& lock);
  void rethrow() const;

  std::size_t block_bytes_;
  std::vector<Block> blocks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Block*> free_;
  std::deque<Job> jobs_;
  std::size_t writing_ = 0;
  bool closing_ = false;
  std::exception_ptr error_;
  std::vector<std::jthread> helpers_;
};

// Calls each(0) ... each(count - 1) on up to `threads` threads; throws the first error when all have stopped.
void in_parallel(unsigned threads, std::size_t count, const std::function<void(std::size_t)>& each);

}  // namespace cloudedge::cube
