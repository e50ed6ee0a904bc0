// Careful file access: whole, or an error that names file and byte offset. The meaning of the bytes, and publishing
// (renaming) files, belong elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "descriptor.hpp"

namespace cloudedge {

class FileError : public std::runtime_error {
 public:
  enum class Kind {
    kDamaged,     // the bytes violate their format
    kRefused,     // well-formed, but unusable here
    kUnreadable,  // the system cannot open or read it
    kUnwritable,  // the system cannot create, write or sync it
  };
  static constexpr std::int64_t kNowhere = -1;  // the fault has no offset

  FileError(Kind kind, std::string path, std::int64_t offset, const std::string& what)
      : std::runtime_error(what), kind_(kind), path_(std::move(path)), offset_(offset) {}

  Kind kind() const { return kind_; }
  const std::string& path() const { return path_; }
  std::int64_t offset() const { return offset_; }

 private:
  Kind kind_;
  std::string path_;
  std::int64_t offset_;
};

[[noreturn]] void throw_damaged(const std::string& path, std::uint64_t offset, const std::string& what);
[[noreturn]] void throw_refused(const std::string& path, std::uint64_t offset, const std::string& what);
[[noreturn]] void throw_unreadable(const std::string& path, int error);
[[noreturn]] void throw_unwritable(const std::string& path, int error);

// A regular file opened for reading at any offset.
class InputFile {
 public:
  explicit InputFile(std::string path);
  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  int descriptor() const { return fd_.get(); }
  // Reads exactly `size` bytes; a file that ends earlier is damaged at the byte where it ends.
  void read(std::uint64_t offset, std::uint8_t* out, std::size_t size) const;

 private:
  std::string path_;
  Descriptor fd_;
  std::uint64_t size_ = 0;
};

// A file read front to back through a buffer whose size does not depend on the file's.
class ByteStream {
 public:
  explicit ByteStream(std::string path, std::size_t buffer_bytes = kDefaultBuffer);

  static constexpr std::size_t kDefaultBuffer = 1 << 20;  // read() in larger pieces is no faster
  const std::string& path() const { return file_.path(); }
  std::uint64_t size() const { return file_.size(); }
  std::uint64_t offset() const { return position_; }
  std::uint64_t left() const { return file_.size() - position_; }

  // The next `count` bytes, contiguous; the caller has checked that they are left. Valid until the next call.
  const std::uint8_t* peek(std::size_t count) {
    if (position_ >= start_ && position_ - start_ + count <= filled_) return buffer_.get() + (position_ - start_);
    return refill(count);
  }
  void skip(std::uint64_t count) { position_ += count; }
  void seek(std::uint64_t offset) { position_ = offset; }

 private:
  const std::uint8_t* refill(std::size_t count);

  InputFile file_;
  std::unique_ptr<std::uint8_t[]> buffer_;
  std::size_t capacity_;
  std::uint64_t start_ = 0;  // file offset of buffer_[0]
  std::size_t filled_ = 0;
  std::uint64_t position_ = 0;
};

// A new file, written from front to back through a buffer. Nothing is guaranteed before finish().
class OutputFile {
 public:
  explicit OutputFile(std::string path, std::size_t buffer_bytes = ByteStream::kDefaultBuffer);
  void append(const void* data, std::size_t size);
  // Writes the buffer and waits until the file is on the device.
  void finish();

 private:
  void flush();

  std::string path_;
  Descriptor fd_;
  std::unique_ptr<std::uint8_t[]> buffer_;
  std::size_t capacity_;
  std::size_t filled_ = 0;
};

// Writes all of `data` at `offset`, with as many system calls as needed.
void write_at(int fd, const std::string& path, std::uint64_t offset, std::span<const std::uint8_t> data);
// Waits until the file or directory is on the device.
void sync_path(const std::string& path);

// Pages of memory: a mapped file (read-only), or zeroed memory, in huge pages if the system has them.
class Pages {
 public:
  Pages() = default;
  static Pages of_file(const InputFile& file);
  static Pages zeroed(std::size_t size);
  Pages(Pages&& other) noexcept { *this = std::move(other); }
  Pages& operator=(Pages&& other) noexcept;
  ~Pages();

  std::uint8_t* data() const { return data_; }
  std::size_t size() const { return size_; }
  // Gives everything after the first `size` bytes back to the system.
  void shrink(std::size_t size);

 private:
  Pages(std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace cloudedge
