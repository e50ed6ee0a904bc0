#include "versions.hpp"

namespace cloudedge::cube {

VersionPtr Versions::active() const {
  const std::lock_guard lock(mutex_);
  return active_;
}

VersionPtr Versions::find(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = loaded_.find(name);
  return found == loaded_.end() ? nullptr : found->second;
}

std::vector<VersionPtr> Versions::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<VersionPtr> out;
  for (const auto& [name, version] : loaded_) out.push_back(version);
  return out;
}

bool Versions::add(VersionPtr version) {
  const std::lock_guard lock(mutex_);
  const std::string name = version->name();
  return loaded_.emplace(name, std::move(version)).second;
}

bool Versions::activate(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = loaded_.find(name);
  if (found == loaded_.end()) return false;
  active_ = found->second;
  return true;
}

bool Versions::remove(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (active_ != nullptr && active_->name() == name) return false;
  return loaded_.erase(name) > 0;
}

}  // namespace cloudedge::cube
