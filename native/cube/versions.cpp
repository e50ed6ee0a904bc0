#include "versions.hpp"

#include <algorithm>
#include <thread>

namespace cloudedge::cube {
namespace {

std::size_t this_thread_number() {
  static std::atomic<std::size_t> next{0};
  thread_local const std::size_t number = next.fetch_add(1, std::memory_order_relaxed);
  return number;
}

}  // namespace

// One version and, per lane, a pointer to it with a reference count of its own.
struct Versions::Member {
  struct alignas(64) Holder {
    VersionPtr version;
  };

  explicit Member(const VersionPtr& loaded) : version(loaded) {
    for (VersionPtr& pointer : lanes) {
      const auto holder = std::make_shared<Holder>(Holder{loaded});
      pointer = VersionPtr(holder, loaded.get());
    }
  }

  VersionPtr version;
  std::array<VersionPtr, kLanes> lanes;
};

struct Versions::List {
  std::vector<std::shared_ptr<const Member>> members;
  std::shared_ptr<const Member> active;

  // Readers use raw pointers: shared ones would make all of them write to the same count.
  const Member* peek(const std::string& name) const {
    const auto at = position(name);
    return at != members.end() ? at->get() : nullptr;
  }
  std::shared_ptr<const Member> find(const std::string& name) const {
    const auto at = position(name);
    return at != members.end() ? *at : nullptr;
  }

 private:
  decltype(members)::const_iterator position(const std::string& name) const {
    return std::ranges::find_if(members, [&](const auto& each) { return each->version->name() == name; });
  }
};

Versions::Versions() : list_(new List) {}

Versions::~Versions() { delete list_.load(); }

template <class Pick>
VersionPtr Versions::read(Pick pick) const {
  const std::size_t number = this_thread_number() % kLanes;
  struct Visit {
    std::atomic<std::uint32_t>& readers;
    // Announce first, look second, both in the one total order: a writer that finds the lane empty after its swap
    // knows that later readers see the new list.
    explicit Visit(Lane& lane) : readers(lane.readers) { readers.fetch_add(1, std::memory_order_seq_cst); }
    ~Visit() { readers.fetch_sub(1, std::memory_order_release); }
  } const visit(lanes_[number]);
  const Member* member = pick(*list_.load(std::memory_order_seq_cst));
  return member != nullptr ? member->lanes[number] : nullptr;
}

VersionPtr Versions::active() const {
  return read([](const List& list) { return list.active.get(); });
}

VersionPtr Versions::find(const std::string& name) const {
  return read([&](const List& list) { return list.peek(name); });
}

std::vector<VersionPtr> Versions::all() const {
  std::vector<VersionPtr> out;
  read([&](const List& list) {
    for (const auto& member : list.members) out.push_back(member->version);
    return static_cast<const Member*>(nullptr);
  });
  return out;
}

bool Versions::add(VersionPtr version) {
  const auto member = std::make_shared<const Member>(version);
  const std::lock_guard lock(writing_);
  const List& now = *list_.load();
  if (now.peek(version->name()) != nullptr) return false;
  auto next = std::make_unique<List>(now);
  next->members.push_back(member);
  publish(std::move(next));
  return true;
}

bool Versions::activate(const std::string& name) {
  const std::lock_guard lock(writing_);
  auto next = std::make_unique<List>(*list_.load());
  next->active = next->find(name);
  if (next->active == nullptr) return false;
  publish(std::move(next));
  return true;
}

void Versions::deactivate() {
  const std::lock_guard lock(writing_);
  auto next = std::make_unique<List>(*list_.load());
  next->active = nullptr;
  publish(std::move(next));
}

bool Versions::remove(const std::string& name) {
  const std::lock_guard lock(writing_);
  auto next = std::make_unique<List>(*list_.load());
  const auto member = next->find(name);
  if (member == nullptr || member == next->active) return false;
  std::erase(next->members, member);
  publish(std::move(next));
  return true;
}

void Versions::publish(std::unique_ptr<const List> next) {
  const std::unique_ptr<const List> old(list_.exchange(next.release(), std::memory_order_seq_cst));
  for (const Lane& lane : lanes_) {
    while (lane.readers.load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
  }
}

}  // namespace cloudedge::cube
