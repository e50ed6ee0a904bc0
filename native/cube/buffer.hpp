// A byte buffer that grows at the end and is consumed from the front, without zeroing: responses are written into it,
// and half-received messages wait in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <span>
#include <string_view>
#include <utility>

namespace cloudedge::cube {

class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer() { std::free(memory_); }

  void swap(Buffer& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(capacity_, other.capacity_);
    std::swap(begin_, other.begin_);
    std::swap(end_, other.end_);
  }

  const std::uint8_t* data() const { return memory_ + begin_; }
  std::uint8_t* data() { return memory_ + begin_; }
  std::size_t size() const { return end_ - begin_; }
  bool empty() const { return begin_ == end_; }
  std::size_t capacity() const { return capacity_; }
  std::span<const std::uint8_t> bytes() const { return {data(), size()}; }

  // Returns at least `more` writable bytes after the content; commit() makes written bytes part of it.
  std::uint8_t* prepare(std::size_t more) {
    if (capacity_ - end_ < more) make_room(more);
    return memory_ + end_;
  }
  std::size_t room() const { return capacity_ - end_; }
  void commit(std::size_t written) { end_ += written; }

  void append(const void* bytes, std::size_t size) {
    if (size == 0) return;
    std::memcpy(prepare(size), bytes, size);
    commit(size);
  }
  void append(std::string_view text) { append(text.data(), text.size()); }
  void push(std::uint8_t byte) {
    *prepare(1) = byte;
    commit(1);
  }

  void consume(std::size_t taken) {
    begin_ += taken;
    if (begin_ == end_) begin_ = end_ = 0;
  }
  void truncate(std::size_t size) { end_ = begin_ + size; }
  void clear() { begin_ = end_ = 0; }
  void release() { Buffer().swap(*this); }

 private:
  void make_room(std::size_t more) {
    const std::size_t used = size();
    // Moving the content down pays only when at least half of the memory becomes free; so adding and consuming
    // single bytes stays cheap on average.
    if (begin_ >= capacity_ / 2 && used + more <= capacity_) {
      std::memmove(memory_, memory_ + begin_, used);
    } else {
      std::size_t wanted = capacity_ < 512 ? 1024 : capacity_ * 2;
      if (wanted < used + more) wanted = used + more;
      auto* memory = static_cast<std::uint8_t*>(std::malloc(wanted));
      if (memory == nullptr) throw std::bad_alloc();
      if (used > 0) std::memcpy(memory, memory_ + begin_, used);
      std::free(memory_);
      memory_ = memory;
      capacity_ = wanted;
    }
    begin_ = 0;
    end_ = used;
  }

  std::uint8_t* memory_ = nullptr;
  std::size_t capacity_ = 0;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace cloudedge::cube
