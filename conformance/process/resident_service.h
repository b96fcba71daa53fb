// A worker's answer to whoever looks at its weights from outside, where their memory cannot be read
// from another process: a thread that hashes them when asked over a socket in the world's folder.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace tpsync::conformance {

class ResidentService {
 public:
  // `lane` is called on the service's thread, one call at a time: the lane that generate would
  // give now, or nullopt where the weights are away. Replaces what was at `path`. Throws
  // RuntimeBroken kIo.
  ResidentService(const std::string& path, std::function<std::optional<std::int64_t>()> lane);
  ~ResidentService();
  ResidentService(const ResidentService&) = delete;
  ResidentService& operator=(const ResidentService&) = delete;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Asks the service at `path`; blocks for at most 5 s. nullopt if nobody answers, or the weights are
// away.
std::optional<std::int64_t> ask_resident(const std::string& path);

}  // namespace tpsync::conformance
