// A simulated stream: operations that land in order, in pieces, when it pleases the seed.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "sim/device.h"

namespace tpsync::sim {

struct StreamOperation {
  enum class Kind : std::uint8_t { kBatch, kFill, kUpload, kDownload, kGather };
  static constexpr std::size_t kMostPieces = 3;

  Kind kind = Kind::kBatch;
  std::uint64_t serial = 0;
  std::shared_ptr<const BatchData> batch;
  std::vector<Memory*> memories;  // by binding; fill, upload, download, gather: one
  std::uint64_t bindings_hash = 0;
  std::span<std::uint64_t> sums;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  const std::byte* from = nullptr;
  std::byte* into = nullptr;
  std::byte value{};

  std::uint64_t units = 0;  // items, or rows of the only item, or bytes
  std::size_t pieces = 1;
  std::size_t landed = 0;
  std::array<std::uint64_t, kMostPieces> ends{};
  std::array<std::int64_t, kMostPieces> due{};

  // Gathers land elsewhere (shard_group.cpp); the stream waits until they are complete.
  bool complete = false;
  std::function<void()> reached;  // called once, when all before it has landed
};

class Stream final : public TimerTarget {
 public:
  Stream(SimDevice& device, std::uint32_t number) : device_(device), number_(number) {}

  bool timer_live(std::uint64_t argument) const override;
  void on_timer(std::uint64_t argument) override;

  void push(std::unique_ptr<StreamOperation> operation, std::int64_t cost_ns);
  // Lands what is due; with `all`, everything up to a gather that is not complete. True if nothing
  // is left.
  bool land(bool all);
  // The process is gone: what is pending lands, lands in part, or vanishes.
  void abandon();
  // Nothing of what is pending lands.
  void drop();
  void drop_gathers();
  std::uint32_t number() const { return number_; }
  std::int64_t busy_until() const { return busy_until_; }
  bool idle() const { return operations_.empty(); }
  // Everything up to here is known to be complete by the process.
  std::size_t settle();

  WaitQueue progress;
  bool failed = false;
  bool destroyed = false;

 private:
  static constexpr std::uint64_t kForce = 1;  // timer argument: the hardware catches up

  void land_piece(StreamOperation& operation);
  std::uint64_t land_batch(const StreamOperation& operation, std::uint64_t first,
                           std::uint64_t last);
  std::uint64_t land_simple(const StreamOperation& operation, std::uint64_t first,
                            std::uint64_t last);

  SimDevice& device_;
  std::uint32_t number_;
  std::int64_t busy_until_ = 0;
  std::size_t completed_ = 0;  // since the last settle
  std::vector<std::unique_ptr<StreamOperation>> operations_;
};

}  // namespace tpsync::sim
