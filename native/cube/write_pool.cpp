#include "write_pool.hpp"

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "../files.hpp"

namespace cloudedge::cube {
namespace {

// Opens the file for each block: a build of a thousand shards needs no thousand descriptors, and opening costs little
// beside writing.
void write_block(const std::string& path, std::uint64_t offset, std::span<const std::uint8_t> data) {
  const Descriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  if (fd.get() < 0) throw_unwritable(path, errno);
  write_at(fd.get(), path, offset, data);
#ifdef __linux__
  // Starts the device early, so that the final fsync has little left to do.
  ::sync_file_range(fd.get(), static_cast<off_t>(offset), static_cast<off_t>(data.size()), SYNC_FILE_RANGE_WRITE);
#endif
}

}  // namespace

WritePool::WritePool(unsigned threads, std::size_t blocks, std::size_t block_bytes)
    : block_bytes_(block_bytes), blocks_(blocks) {
  free_.reserve(blocks);
  for (Block& block : blocks_) free_.push_back(&block);
  for (unsigned i = 1; i < threads; ++i) helpers_.emplace_back([this] { help(); });
}

WritePool::~WritePool() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    jobs_.clear();
  }
  changed_.notify_all();
}

void WritePool::help() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return closing_ || !jobs_.empty(); });
    if (closing_) return;
    work(lock);
  }
}

// Writes one block with the lock released.
void WritePool::work(std::unique_lock<std::mutex>& lock) {
  const Job job = std::move(jobs_.front());
  jobs_.pop_front();
  if (error_ == nullptr) {
    ++writing_;
    lock.unlock();
    std::exception_ptr error;
    try {
      write_block(job.path, job.offset, {job.block->data.get(), job.block->filled});
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    --writing_;
    if (error != nullptr && error_ == nullptr) error_ = error;
  }
  job.block->filled = 0;
  free_.push_back(job.block);
  changed_.notify_all();
}

void WritePool::rethrow() const {
  if (error_ != nullptr) std::rethrow_exception(error_);
}

WritePool::Block* WritePool::acquire() {
  std::unique_lock lock(mutex_);
  while (free_.empty()) {
    if (jobs_.empty()) {
      changed_.wait(lock, [&] { return !free_.empty() || !jobs_.empty(); });
    } else {
      work(lock);
    }
  }
  rethrow();
  Block* block = free_.back();
  free_.pop_back();
  if (block->data == nullptr) block->data = std::make_unique_for_overwrite<std::uint8_t[]>(block_bytes_);
  return block;
}

void WritePool::submit(std::string path, std::uint64_t offset, Block* block) {
  {
    const std::lock_guard lock(mutex_);
    rethrow();
    jobs_.push_back({std::move(path), offset, block});
  }
  changed_.notify_one();
}

void WritePool::drain() {
  std::unique_lock lock(mutex_);
  while (!jobs_.empty() || writing_ > 0) {
    if (jobs_.empty()) {
      changed_.wait(lock);
    } else {
      work(lock);
    }
  }
  rethrow();
}

void WritePool::cancel() {
  std::unique_lock lock(mutex_);
  jobs_.clear();
  changed_.wait(lock, [&] { return writing_ == 0; });
}

void in_parallel(unsigned threads, std::size_t count, const std::function<void(std::size_t)>& each) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  const auto run = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        each(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (error == nullptr) error = std::current_exception();
        next = count;
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (std::size_t i = 1; i < std::min<std::size_t>(threads, count); ++i) helpers.emplace_back(run);
    run();
  }
  if (error != nullptr) std::rethrow_exception(error);
}

}  // namespace cloudedge::cube
