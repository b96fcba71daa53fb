// The seams of a real process, with every operation on record as the simulator records it: the same
// names, counted in the same phases, so that fault plans name the same moments and judges read the
// same traces.
//
// Not recorded are what the simulator itself would add (pieces of a gather, landings of copies) and
// the operations of clock, host, random numbers and threads, whose events nothing refers to here.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <tuple>

#include "conformance/process/event_stream.h"
#include "conformance/world/ports.h"
#include "tpsync/collective/forwarding_groups.h"
#include "tpsync/device/forwarding_device.h"

namespace tpsync::conformance {

std::uint64_t hash_of_bytes(ByteView bytes);

// What one process records. May be used by several threads.
class ProcessTracer {
 public:
  explicit ProcessTracer(EventStream& stream) : stream_(stream) {}

  struct Operation {
    sim::Event event;
    std::string_view phase;
  };
  // Enters an operation: it gets its number in the present phase.
  Operation begin(sim::Op op, std::uint64_t a = 0, std::uint64_t b = 0, std::uint64_t c = 0);
  void finish(Operation& operation, std::uint16_t result = sim::kOk);
  // Runs `body`, which may fill in the operation's values, and records how it ended.
  template <typename Body>
  auto run(sim::Op op, std::uint64_t a, std::uint64_t b, std::uint64_t c, Body&& body) {
    Operation operation = begin(op, a, b, c);
    try {
      if constexpr (std::is_void_v<decltype(body(operation.event))>) {
        body(operation.event);
        finish(operation);
      } else {
        auto value = body(operation.event);
        finish(operation);
        return value;
      }
    } catch (const Error& error) {
      finish(operation, static_cast<std::uint16_t>(error.kind()));
      throw;
    }
  }

  void record(std::uint16_t kind, std::uint64_t a = 0, std::uint64_t b = 0, std::uint64_t c = 0,
              std::string_view text = {}, std::uint16_t result = sim::kOk);
  void record(sim::EventKind kind, std::uint64_t a = 0, std::uint64_t b = 0, std::uint64_t c = 0,
              std::string_view text = {}, std::uint16_t result = sim::kOk) {
    record(static_cast<std::uint16_t>(kind), a, b, c, text, result);
  }
  void enter_phase(std::string_view phase, std::int64_t chunk);

  // Where the process stands, for fault plans.
  std::string_view phase();  // lives as long as the tracer
  std::int64_t chunk();
  std::uint64_t occurrences(sim::Op op);

  EventStream& stream() { return stream_; }

 private:
  using Place = std::tuple<std::string_view, std::int64_t, sim::Op>;

  EventStream& stream_;
  std::mutex mutex_;
  std::set<std::string, std::less<>> phases_ = {""};
  std::string_view phase_;  // one of them
  std::int64_t chunk_ = 0;
  std::map<Place, std::uint32_t> counts_;
};

// Core's log records as events; phases follow them.
class TracedLog final : public Log {
 public:
  explicit TracedLog(ProcessTracer& tracer) : tracer_(tracer) {}
  bool wants(LogLevel level) const noexcept override { return level != LogLevel::kDebug; }
  void record(const LogRecord& record) noexcept override;

 private:
  ProcessTracer& tracer_;
};

// The harness's own records. The end of a call is a barrier: who had died before it is on record as
// ended before it.
class TracedRecorder final : public Recorder {
 public:
  explicit TracedRecorder(ProcessTracer& tracer) : tracer_(tracer) {}
  void record(judge::Record kind, std::uint64_t a, std::uint64_t b, std::uint64_t c,
              std::string_view text) override;

 private:
  ProcessTracer& tracer_;
};

class TracedControlGroup final : public collective::ForwardingControlGroup {
 public:
  TracedControlGroup(std::unique_ptr<collective::ControlGroup> inner, ProcessTracer& tracer,
                     std::uint64_t id);
  ~TracedControlGroup() override { leave(); }
  void all_gather_word(std::uint64_t word, std::span<std::uint64_t> words,
                       Deadline deadline) override;
  std::vector<ByteBuffer> all_gather(ByteView bytes, Deadline deadline) override;
  void broadcast(ByteBuffer& bytes, int root, Deadline deadline) override;
  std::optional<int> lost_peer() override;
  void raise_alarm() noexcept override;
  std::optional<int> alarm() override;
  void leave() noexcept override;

 private:
  template <typename Call>
  auto collective(sim::Op op, std::uint64_t kind, int root, std::uint64_t bytes,
                  std::uint64_t contribution, Call&& call);

  ProcessTracer& tracer_;
  std::uint64_t id_;
  std::uint64_t sequence_ = 0;
  bool left_ = false;
};

class TracedShardGroup final : public collective::ForwardingShardGroup {
 public:
  TracedShardGroup(std::unique_ptr<collective::ShardGroup> inner, ProcessTracer& tracer,
                   std::uint64_t id);
  ~TracedShardGroup() override { note_leave(); }
  void all_gather(device::StreamId stream, device::RegionId buffer,
                  std::span<const collective::GatherPart> parts) override;
  void wait(device::StreamId stream, Deadline deadline, collective::ControlGroup& watch) override;
  void abort() noexcept override;

 private:
  void note_leave();

  ProcessTracer& tracer_;
  std::uint64_t id_;
  std::uint64_t sequence_ = 0;
  bool left_ = false;
};

// Counts what the process holds, so that its end can say what it left, and records each new peak of
// what is in use on the device as this process sees it.
class TracedDevice final : public device::ForwardingDevice {
 public:
  // `index`: of the device among the world's.
  TracedDevice(device::Device& inner, ProcessTracer& tracer, int index)
      : ForwardingDevice(inner), tracer_(tracer), index_(index) {}
  device::MemoryInfo memory() override;
  device::RegionId allocate(const device::AllocationRequest& request) override;
  void free(device::RegionId region) noexcept override;
  ByteBuffer export_region(device::RegionId region) override;
  void revoke_export(device::RegionId region) noexcept override;
  device::ImportedRegion import_region(ByteView handle) override;
  void close_import(device::RegionId region) noexcept override;
  void sleep(std::string_view tag, bool keep) override;
  void wake(std::string_view tag) override;
  device::StreamId create_stream() override;
  void destroy_stream(device::StreamId stream) noexcept override;
  std::unique_ptr<device::Prepared> prepare_copies(
      std::span<const device::TileCopy> copies) override;
  std::unique_ptr<device::Prepared> prepare_packs(
      std::span<const device::PackPiece> pieces) override;
  std::unique_ptr<device::Prepared> prepare_digests(
      std::span<const device::DigestItem> items) override;
  void launch(device::StreamId stream, const device::Prepared& batch,
              std::span<const device::RegionId> bindings) override;
  void launch_digests(device::StreamId stream, const device::Prepared& batch,
                      std::span<const device::RegionId> bindings,
                      std::span<std::uint64_t> sums) override;
  void fill(device::StreamId stream, device::RegionId region, std::uint64_t offset,
            std::uint64_t bytes, std::byte value) override;
  void copy(device::StreamId stream, const device::RunCopy& run) override;
  void upload(device::StreamId stream, device::RegionId region, std::uint64_t offset,
              ByteView from) override;
  void download(device::StreamId stream, device::RegionId region, std::uint64_t offset,
                MutableByteView into) override;
  void synchronize(device::StreamId stream, Deadline deadline) override;

  std::uint64_t exports() const { return exports_.size(); }
  std::uint64_t imports() const { return imports_.size(); }
  std::uint64_t regions() const { return regions_; }

 private:
  std::uint64_t used() noexcept;  // bytes on the device; 0 where it does not say
  void note_peak();

  ProcessTracer& tracer_;
  int index_;
  std::uint64_t peak_ = 0;
  std::set<device::RegionId> exports_;
  std::set<device::RegionId> imports_;
  std::uint64_t regions_ = 0;
};

}  // namespace tpsync::conformance
