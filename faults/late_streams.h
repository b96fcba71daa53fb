// Streams whose work is held back until somebody waits for them. Shared by a process's device and
// shard group, so that stream order holds across both.
//
// Used by one thread at a time per stream, as streams are.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "faults/injector.h"

namespace tpsync::faults {

class ProcessFaults::LateStreams {
 public:
  void delay(device::StreamId stream) { find_or_add(stream).late = true; }

  // Whether work on `stream` is to be held: it is late and faults are active, or earlier work of it
  // is still held.
  bool holds(device::StreamId stream, bool active) const {
    const Stream* found = find(stream);
    return found != nullptr && ((found->late && active) || !found->work.empty());
  }
  void hold(device::StreamId stream, std::function<void()> work) {
    find_or_add(stream).work.push_back(std::move(work));
  }
  // Issues what is held, in order. If one piece throws, the rest is dropped.
  void flush(device::StreamId stream) {
    Stream* found = find(stream);
    if (found == nullptr) return;
    const auto work = std::exchange(found->work, {});
    for (const auto& piece : work) piece();
  }
  void drop(device::StreamId stream) noexcept {
    Stream* found = find(stream);
    if (found != nullptr) found->work.clear();
  }

 private:
  struct Stream {
    device::StreamId id = device::StreamId::kNone;
    bool late = false;
    std::vector<std::function<void()>> work;
  };

  const Stream* find(device::StreamId id) const {
    for (const Stream& stream : streams_) {
      if (stream.id == id) return &stream;
    }
    return nullptr;
  }
  Stream* find(device::StreamId id) { return const_cast<Stream*>(std::as_const(*this).find(id)); }
  Stream& find_or_add(device::StreamId id) {
    if (Stream* found = find(id)) return *found;
    Stream& stream = streams_.emplace_back();
    stream.id = id;
    return stream;
  }

  std::vector<Stream> streams_;
};

}  // namespace tpsync::faults
