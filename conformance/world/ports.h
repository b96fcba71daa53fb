// What scripts need of a world beyond core's seams: a place for evidence, and direct access to
// weights, outside of time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/judge/records.h"
#include "tpsync/collective/control_group.h"
#include "tpsync/collective/shard_group.h"
#include "tpsync/device/device.h"
#include "tpsync/runtime/inference_engine.h"
#include "tpsync/transfer/weight_source.h"

namespace tpsync::conformance {

// Evidence for the judge.
class Recorder {
 public:
  virtual ~Recorder() = default;
  virtual void record(judge::Record kind, std::uint64_t a = 0, std::uint64_t b = 0,
                      std::uint64_t c = 0, std::string_view text = {}) = 0;
};

// A rectangle of a tensor in a version: `rows` runs of `count` elements; a run begins `stride`
// elements after the one before it in the tensor, and `pitch` bytes after it in memory.
struct ContentRect {
  std::string_view tensor;
  std::uint64_t version = 0;
  DType dtype = DType::kBFloat16;
  std::uint64_t element = 0;
  std::uint64_t count = 0;
  std::uint64_t rows = 1;
  std::uint64_t stride = 0;
  std::uint64_t pitch = 0;
};

// The bytes of test weights in device memory (judge/content.h), or their identity in worlds without
// bytes.
class ContentPort {
 public:
  virtual ~ContentPort() = default;
  virtual void write(device::Device& device, device::RegionId region, std::uint64_t offset,
                     const ContentRect& content) = 0;
  // A parameter's bytes hash as generate combines it (judge::lane_term's second argument).
  virtual std::uint64_t hash_parameter(const runtime::ResidentModel& resident,
                                       std::size_t parameter) = 0;
  // Where the resident weights are not those of this version, by tensor, rows, columns and bytes;
  // empty in worlds that cannot tell.
  virtual std::vector<std::string> differences(const runtime::ResidentModel&, std::int64_t) {
    return {};
  }
};

}  // namespace tpsync::conformance
