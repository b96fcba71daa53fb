// Forwarding wrappers for ControlGroup and ShardGroup: each call goes to the wrapped object, so
// that a decorator overrides only what it changes. Each borrows its object, which must then outlive
// it, or owns it where it came as a unique_ptr.
//
// ShardGroup::wait hands its `watch` through as it is: a wrapped control group is watched through
// its wrapper, whose lost_peer() and alarm() are all that an implementation may call on it.
#pragma once

#include <memory>
#include <utility>

#include "tpsync/base/forwarding.h"
#include "tpsync/collective/control_group.h"
#include "tpsync/collective/shard_group.h"

namespace tpsync::collective {

class ForwardingControlGroup : public ControlGroup {
 public:
  explicit ForwardingControlGroup(ControlGroup& inner) : inner_(inner) {}
  explicit ForwardingControlGroup(std::unique_ptr<ControlGroup> inner) : inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void all_gather_word(std::uint64_t word, std::span<std::uint64_t> words,
                       Deadline deadline) override {
    inner_->all_gather_word(word, words, deadline);
  }
  std::vector<ByteBuffer> all_gather(ByteView bytes, Deadline deadline) override {
    return inner_->all_gather(bytes, deadline);
  }
  void broadcast(ByteBuffer& bytes, int root, Deadline deadline) override {
    inner_->broadcast(bytes, root, deadline);
  }
  std::optional<int> lost_peer() override { return inner_->lost_peer(); }
  void raise_alarm() noexcept override { inner_->raise_alarm(); }
  std::optional<int> alarm() override { return inner_->alarm(); }
  void leave() noexcept override { inner_->leave(); }
  ControlGroup& inner() noexcept { return *inner_; }

 private:
  Wrapped<ControlGroup> inner_;
};

class ForwardingShardGroup : public ShardGroup {
 public:
  explicit ForwardingShardGroup(ShardGroup& inner) : inner_(inner) {}
  explicit ForwardingShardGroup(std::unique_ptr<ShardGroup> inner) : inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void all_gather(device::StreamId stream, device::RegionId buffer,
                  std::span<const GatherPart> parts) override {
    inner_->all_gather(stream, buffer, parts);
  }
  void wait(device::StreamId stream, Deadline deadline, ControlGroup& watch) override {
    inner_->wait(stream, deadline, watch);
  }
  bool reads_peers() const override { return inner_->reads_peers(); }
  void attach(device::RegionId buffer, ByteView handle) override { inner_->attach(buffer, handle); }
  bool detach(device::RegionId buffer, Deadline deadline) override {
    return inner_->detach(buffer, deadline);
  }
  void abort() noexcept override { inner_->abort(); }
  bool usable() const noexcept override { return inner_->usable(); }
  ShardGroup& inner() noexcept { return *inner_; }

 private:
  Wrapped<ShardGroup> inner_;
};

}  // namespace tpsync::collective
