#include "files.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

namespace cloudedge {
namespace {

constexpr std::size_t kHugePage = 2 << 20;
constexpr std::size_t kPage = 4096;

std::string reason(int error) { return std::strerror(error); }

}  // namespace

void throw_damaged(const std::string& path, std::uint64_t offset, const std::string& what) {
  throw FileError(FileError::Kind::kDamaged, path, static_cast<std::int64_t>(offset), what);
}

void throw_refused(const std::string& path, std::uint64_t offset, const std::string& what) {
  throw FileError(FileError::Kind::kRefused, path, static_cast<std::int64_t>(offset), what);
}

void throw_unreadable(const std::string& path, int error) {
  throw FileError(FileError::Kind::kUnreadable, path, FileError::kNowhere, reason(error));
}

void throw_unwritable(const std::string& path, int error) {
  throw FileError(FileError::Kind::kUnwritable, path, FileError::kNowhere, reason(error));
}

InputFile::InputFile(std::string path) : path_(std::move(path)), fd_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
  struct stat status {};
  if (fd_.get() < 0 || ::fstat(fd_.get(), &status) != 0) throw_unreadable(path_, errno);
  if (!S_ISREG(status.st_mode)) throw_unreadable(path_, S_ISDIR(status.st_mode) ? EISDIR : EINVAL);
  size_ = static_cast<std::uint64_t>(status.st_size);
}

void InputFile::read(std::uint64_t offset, std::uint8_t* out, std::size_t size) const {
  while (size > 0) {
    const ssize_t got = ::pread(fd_.get(), out, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_unreadable(path_, errno);
    if (got == 0) throw_damaged(path_, offset, "the file ends here; it was longer when it was opened");
    out += got;
    offset += static_cast<std::uint64_t>(got);
    size -= static_cast<std::size_t>(got);
  }
}

ByteStream::ByteStream(std::string path, std::size_t buffer_bytes)
    : file_(std::move(path)), capacity_(std::max<std::size_t>(buffer_bytes, 64)) {
  capacity_ = std::min<std::size_t>(capacity_, std::max<std::uint64_t>(file_.size(), 64));
  buffer_ = std::make_unique_for_overwrite<std::uint8_t[]>(capacity_);
  ::posix_fadvise(file_.descriptor(), 0, 0, POSIX_FADV_SEQUENTIAL);
}

const std::uint8_t* ByteStream::refill(std::size_t count) {
  if (count > left()) throw_damaged(path(), size(), "the file ends inside something it announced");
  if (count > capacity_) {
    capacity_ = count;
    buffer_ = std::make_unique_for_overwrite<std::uint8_t[]>(capacity_);
    filled_ = 0;
  } else if (position_ >= start_ && position_ - start_ < filled_) {
    const std::size_t used = position_ - start_;
    filled_ -= used;
    std::memmove(buffer_.get(), buffer_.get() + used, filled_);
  } else {
    filled_ = 0;
  }
  start_ = position_;
  const std::size_t more = std::min<std::uint64_t>(capacity_, left()) - filled_;
  file_.read(start_ + filled_, buffer_.get() + filled_, more);
  filled_ += more;
  return buffer_.get();
}

OutputFile::OutputFile(std::string path, std::size_t buffer_bytes)
    : path_(std::move(path)),
      fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)),
      buffer_(std::make_unique_for_overwrite<std::uint8_t[]>(buffer_bytes)),
      capacity_(buffer_bytes) {
  if (fd_.get() < 0) throw_unwritable(path_, errno);
}

void OutputFile::append(const void* data, std::size_t size) {
  const auto* from = static_cast<const std::uint8_t*>(data);
  while (size > 0) {
    const std::size_t now = std::min(size, capacity_ - filled_);
    std::memcpy(buffer_.get() + filled_, from, now);
    filled_ += now;
    from += now;
    size -= now;
    if (filled_ == capacity_) flush();
  }
}

void OutputFile::flush() {
  const std::uint8_t* from = buffer_.get();
  while (filled_ > 0) {
    const ssize_t put = ::write(fd_.get(), from, filled_);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw_unwritable(path_, errno);
    from += put;
    filled_ -= static_cast<std::size_t>(put);
  }
}

void OutputFile::finish() {
  flush();
  if (::fsync(fd_.get()) != 0) throw_unwritable(path_, errno);
}

void write_at(int fd, const std::string& path, std::uint64_t offset, std::span<const std::uint8_t> data) {
  while (!data.empty()) {
    const ssize_t put = ::pwrite(fd, data.data(), data.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw_unwritable(path, errno);
    offset += static_cast<std::uint64_t>(put);
    data = data.subspan(static_cast<std::size_t>(put));
  }
}

void sync_path(const std::string& path) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0 || ::fsync(fd.get()) != 0) throw_unwritable(path, errno);
}

Pages Pages::of_file(const InputFile& file) {
  if (file.size() == 0) return {};
  void* at = ::mmap(nullptr, file.size(), PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (at == MAP_FAILED) throw_unreadable(file.path(), errno);
  return {static_cast<std::uint8_t*>(at), file.size()};
}

Pages Pages::zeroed(std::size_t size) {
  if (size == 0) return {};
  if (size < kHugePage) {
    void* at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    return {static_cast<std::uint8_t*>(at), size};
  }
  // The system places mappings at 4 KiB; only an aligned 2 MiB can become a huge page, so map one more and give the
  // edges back.
  const std::size_t whole = (size + kHugePage - 1) / kHugePage * kHugePage;
  void* at = ::mmap(nullptr, whole + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                    -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  auto* first = static_cast<std::uint8_t*>(at);
  const std::size_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(first) % kHugePage) % kHugePage;
  if (before > 0) ::munmap(first, before);
  if (before < kHugePage) ::munmap(first + before + whole, kHugePage - before);
  ::madvise(first + before, whole, MADV_HUGEPAGE);
  return {first + before, whole};
}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Pages::~Pages() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

void Pages::shrink(std::size_t size) {
  const std::size_t kept = (size + kPage - 1) / kPage * kPage;
  if (kept >= size_ || kept == 0) return;
  ::munmap(data_ + kept, size_ - kept);
  size_ = kept;
}

}  // namespace cloudedge
