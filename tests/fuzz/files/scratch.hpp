// Files for parsers that want paths, kept in memory and written anew for every input.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>

namespace fuzz {

using Bytes = std::span<const std::uint8_t>;

inline void require(bool holds) {
  if (!holds) std::abort();
}

class Scratch {
 public:
  Scratch() {
    std::string name = std::filesystem::exists("/dev/shm") ? "/dev/shm/fuzz-XXXXXX" : "/tmp/fuzz-XXXXXX";
    require(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Scratch() { std::filesystem::remove_all(path_); }

  std::string path(const std::string& name = "") const { return name.empty() ? path_ : path_ + "/" + name; }
  std::string write(const std::string& name, Bytes content) const {
    const int fd = ::open(path(name).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    require(fd >= 0 && ::write(fd, content.data(), content.size()) == static_cast<ssize_t>(content.size()));
    ::close(fd);
    return path(name);
  }

 private:
  std::string path_;
};

}  // namespace fuzz
