// One loaded version of one shard: immutable rows, looked up by key in batches. Fetching files, choosing the active
// version (see versions.hpp) and the network belong elsewhere.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "../rows.hpp"  // Checksum

namespace cloudedge::cube {

struct Value {
  const std::uint8_t* data;  // valid while the Version lives
  std::uint32_t size;
  bool found;

  // Found, but longer than servers deliver. Its key counts as missing, and `size` is not 0.
  bool too_long() const { return !found && size > 0; }
};

// Shared from itself, so that a version that passed through Python is released without Python.
class Version : public std::enable_shared_from_this<Version> {
 public:
  virtual ~Version() = default;
  virtual const std::string& name() const = 0;
  virtual std::uint64_t rows() const = 0;
  virtual Checksum checksum() const = 0;
  virtual std::size_t memory_bytes() const = 0;  // the memory that this version alone adds
  // Looks up every key, in order; out.size() == keys.size(). Never throws. Called from many threads.
  virtual void lookup(std::span<const std::uint64_t> keys, std::span<Value> out) const = 0;
};

using VersionPtr = std::shared_ptr<const Version>;

}  // namespace cloudedge::cube
