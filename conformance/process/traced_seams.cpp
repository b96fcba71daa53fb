#include "conformance/process/traced_seams.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "conformance/judge/content.h"
#include "tpsync/base/errors.h"

namespace tpsync::conformance {

using sim::EventKind;
using sim::Op;

namespace {

std::uint64_t number_of(device::RegionId region) { return static_cast<std::uint64_t>(region); }
std::uint64_t number_of(device::StreamId stream) { return static_cast<std::uint64_t>(stream); }

}  // namespace

std::uint64_t hash_of_bytes(ByteView bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

ProcessTracer::Operation ProcessTracer::begin(Op op, std::uint64_t a, std::uint64_t b,
                                              std::uint64_t c) {
  const std::lock_guard lock(mutex_);
  Operation operation;
  operation.phase = phase_;
  sim::Event& event = operation.event;
  event.time = monotonic_ns();
  event.a = a;
  event.b = b;
  event.c = c;
  event.chunk = static_cast<std::int32_t>(chunk_);
  event.occurrence = counts_[Place(phase_, chunk_, op)]++;
  event.kind = static_cast<std::uint16_t>(EventKind::kOp);
  event.op = static_cast<std::uint16_t>(op);
  return operation;
}

void ProcessTracer::finish(Operation& operation, std::uint16_t result) {
  operation.event.end = monotonic_ns();
  operation.event.result = result;
  stream_.send(operation.event, operation.phase, {});
}

void ProcessTracer::record(std::uint16_t kind, std::uint64_t a, std::uint64_t b, std::uint64_t c,
                           std::string_view text, std::uint16_t result) {
  const std::lock_guard lock(mutex_);
  sim::Event event;
  event.time = event.end = monotonic_ns();
  event.a = a;
  event.b = b;
  event.c = c;
  event.chunk = static_cast<std::int32_t>(chunk_);
  event.kind = kind;
  event.result = result;
  stream_.send(event, phase_, text);
}

void ProcessTracer::enter_phase(std::string_view phase, std::int64_t chunk) {
  const std::lock_guard lock(mutex_);
  phase_ = *phases_.emplace(phase).first;
  chunk_ = chunk;
}

std::string_view ProcessTracer::phase() {
  const std::lock_guard lock(mutex_);
  return phase_;
}

std::int64_t ProcessTracer::chunk() {
  const std::lock_guard lock(mutex_);
  return chunk_;
}

std::uint64_t ProcessTracer::occurrences(Op op) {
  const std::lock_guard lock(mutex_);
  const auto found = counts_.find(Place(phase_, chunk_, op));
  return found == counts_.end() ? 0 : found->second;
}

void TracedLog::record(const LogRecord& record) noexcept {
  if (record.event == LogEvent::kPhaseEntered) tracer_.enter_phase(record.subject, record.a);
  if (record.event == LogEvent::kCommandReceived) tracer_.enter_phase(record.subject, record.b);
  tracer_.record(EventKind::kLog, static_cast<std::uint64_t>(record.a),
                 static_cast<std::uint64_t>(record.b), static_cast<std::uint64_t>(record.event),
                 record.subject);
  if (!record.text.empty())
    tracer_.record(EventKind::kLogText, 0, 0, static_cast<std::uint64_t>(record.event),
                   record.text);
}

void TracedRecorder::record(judge::Record kind, std::uint64_t a, std::uint64_t b, std::uint64_t c,
                            std::string_view text) {
  if (kind == judge::Record::kCallEnd) tracer_.stream().barrier();
  tracer_.record(static_cast<std::uint16_t>(kind), a, b, c, text);
}

TracedControlGroup::TracedControlGroup(std::unique_ptr<collective::ControlGroup> inner,
                                       ProcessTracer& tracer, std::uint64_t id)
    : ForwardingControlGroup(std::move(inner)), tracer_(tracer), id_(id) {
  tracer_.record(EventKind::kGroupMember, id_, static_cast<std::uint64_t>(rank()), 1);
}

template <typename Call>
auto TracedControlGroup::collective(Op op, std::uint64_t kind, int root, std::uint64_t bytes,
                                    std::uint64_t contribution, Call&& call) {
  return tracer_.run(op, id_, sequence_, contribution, [&](sim::Event&) {
    tracer_.record(EventKind::kGroupEnter, id_, sequence_,
                   kind << 56 | static_cast<std::uint64_t>(root) << 48 | bytes);
    try {
      const std::uint64_t received = call();
      tracer_.record(EventKind::kGroupComplete, id_, sequence_, received);
      ++sequence_;
    } catch (const Error& error) {
      tracer_.record(EventKind::kGroupFail, id_, sequence_,
                     static_cast<std::uint64_t>(error.record().rank + 1), {},
                     static_cast<std::uint16_t>(error.kind()));
      throw;
    }
  });
}

void TracedControlGroup::all_gather_word(std::uint64_t word, std::span<std::uint64_t> words,
                                         Deadline deadline) {
  collective(Op::kControlWord, 1, 0, 8, word, [&] {
    inner().all_gather_word(word, words, deadline);
    return XXH3_64bits(words.data(), words.size_bytes());
  });
}

std::vector<ByteBuffer> TracedControlGroup::all_gather(ByteView bytes, Deadline deadline) {
  std::vector<ByteBuffer> gathered;
  collective(Op::kControlGather, 2, 0, bytes.size(), hash_of_bytes(bytes), [&] {
    gathered = inner().all_gather(bytes, deadline);
    std::uint64_t hash = 0;
    for (const ByteBuffer& part : gathered) hash = judge::mix(hash ^ hash_of_bytes(part));
    return hash;
  });
  return gathered;
}

void TracedControlGroup::broadcast(ByteBuffer& bytes, int root, Deadline deadline) {
  const bool sends = root == rank();
  collective(Op::kControlBroadcast, 3, root, sends ? bytes.size() : 0,
             sends ? hash_of_bytes(bytes) : 0, [&] {
               inner().broadcast(bytes, root, deadline);
               return hash_of_bytes(bytes);
             });
}

std::optional<int> TracedControlGroup::lost_peer() {
  return tracer_.run(Op::kControlLostPeer, id_, 0, 0, [&](sim::Event& event) {
    const auto lost = inner().lost_peer();
    event.b = lost ? 1 : 0;
    event.c = static_cast<std::uint64_t>(lost.value_or(0));
    return lost;
  });
}

void TracedControlGroup::raise_alarm() noexcept {
  auto operation = tracer_.begin(Op::kControlRaiseAlarm, id_);
  tracer_.record(EventKind::kGroupAlarm, id_, static_cast<std::uint64_t>(rank()));
  inner().raise_alarm();
  tracer_.finish(operation);
}

std::optional<int> TracedControlGroup::alarm() {
  return tracer_.run(Op::kControlAlarm, id_, 0, 0, [&](sim::Event& event) {
    const auto found = inner().alarm();
    event.b = found ? 1 : 0;
    event.c = static_cast<std::uint64_t>(found.value_or(0));
    return found;
  });
}

void TracedControlGroup::leave() noexcept {
  if (std::exchange(left_, true)) return;
  auto operation = tracer_.begin(Op::kControlLeave, id_);
  tracer_.record(EventKind::kGroupLeave, id_, static_cast<std::uint64_t>(rank()));
  inner().leave();
  tracer_.finish(operation);
}

TracedShardGroup::TracedShardGroup(std::unique_ptr<collective::ShardGroup> inner,
                                   ProcessTracer& tracer, std::uint64_t id)
    : ForwardingShardGroup(std::move(inner)), tracer_(tracer), id_(id) {
  tracer_.record(EventKind::kGroupMember, id_, static_cast<std::uint64_t>(rank()), 2);
}

void TracedShardGroup::note_leave() {
  if (std::exchange(left_, true)) return;
  tracer_.record(EventKind::kGroupLeave, id_, static_cast<std::uint64_t>(rank()));
}

void TracedShardGroup::all_gather(device::StreamId stream, device::RegionId buffer,
                                  std::span<const collective::GatherPart> parts) {
  std::uint64_t total = 0;
  for (const collective::GatherPart& part : parts) total += part.bytes;
  tracer_.run(Op::kShardGather, id_, sequence_, total, [&](sim::Event&) {
    tracer_.record(EventKind::kGroupEnter, id_, sequence_, std::uint64_t{4} << 56 | total);
    ++sequence_;
    inner().all_gather(stream, buffer, parts);
  });
}

void TracedShardGroup::wait(device::StreamId stream, Deadline deadline,
                            collective::ControlGroup& watch) {
  tracer_.run(Op::kShardWait, id_, sequence_, 0, [&](sim::Event&) {
    try {
      inner().wait(stream, deadline, watch);
      tracer_.record(EventKind::kGroupComplete, id_, sequence_);
    } catch (const Error& error) {
      note_leave();
      tracer_.record(EventKind::kGroupFail, id_, sequence_,
                     static_cast<std::uint64_t>(error.record().rank + 1), {},
                     static_cast<std::uint16_t>(error.kind()));
      throw;
    }
  });
}

void TracedShardGroup::abort() noexcept {
  auto operation = tracer_.begin(Op::kShardAbort, id_);
  note_leave();
  inner().abort();
  tracer_.finish(operation);
}

device::MemoryInfo TracedDevice::memory() {
  return tracer_.run(Op::kDeviceMemory, 0, 0, 0, [&](sim::Event& event) {
    const device::MemoryInfo info = inner().memory();
    event.a = info.free_bytes;
    event.b = info.total_bytes;
    return info;
  });
}

device::RegionId TracedDevice::allocate(const device::AllocationRequest& request) {
  return tracer_.run(Op::kDeviceAllocate, 0, request.bytes,
                     static_cast<std::uint64_t>(request.kind), [&](sim::Event& event) {
                       const device::RegionId region = inner().allocate(request);
                       event.a = number_of(region);
                       ++regions_;
                       note_peak();
                       return region;
                     });
}

void TracedDevice::free(device::RegionId region) noexcept {
  auto operation = tracer_.begin(Op::kDeviceFree, number_of(region), used());
  exports_.erase(region);
  --regions_;
  inner().free(region);
  tracer_.finish(operation);
}

ByteBuffer TracedDevice::export_region(device::RegionId region) {
  return tracer_.run(Op::kDeviceExport, number_of(region), 0, 0, [&](sim::Event&) {
    ByteBuffer handle = inner().export_region(region);
    exports_.insert(region);
    return handle;
  });
}

void TracedDevice::revoke_export(device::RegionId region) noexcept {
  auto operation = tracer_.begin(Op::kDeviceRevoke, number_of(region));
  exports_.erase(region);
  inner().revoke_export(region);
  tracer_.finish(operation);
}

device::ImportedRegion TracedDevice::import_region(ByteView handle) {
  return tracer_.run(Op::kDeviceImport, 0, handle.size(), hash_of_bytes(handle),
                     [&](sim::Event& event) {
                       device::ImportedRegion imported = inner().import_region(handle);
                       event.a = number_of(imported.region);
                       imports_.insert(imported.region);
                       return imported;
                     });
}

void TracedDevice::close_import(device::RegionId region) noexcept {
  auto operation = tracer_.begin(Op::kDeviceCloseImport, number_of(region));
  imports_.erase(region);
  inner().close_import(region);
  tracer_.finish(operation);
}

void TracedDevice::sleep(std::string_view tag, bool keep) {
  tracer_.run(Op::kDeviceSleep, 0, 0, keep ? 1 : 0, [&](sim::Event&) { inner().sleep(tag, keep); });
}

void TracedDevice::wake(std::string_view tag) {
  tracer_.run(Op::kDeviceWake, 0, 0, 0, [&](sim::Event&) { inner().wake(tag); });
  note_peak();
}

std::uint64_t TracedDevice::used() noexcept {
  try {
    const device::MemoryInfo info = inner().memory();
    return info.total_bytes - info.free_bytes;
  } catch (const std::exception&) {
    return 0;  // a broken device says so where an error may be thrown
  }
}

void TracedDevice::note_peak() {
  const std::uint64_t now = used();
  if (now <= peak_) return;
  peak_ = now;
  tracer_.record(EventKind::kDevicePeak, static_cast<std::uint64_t>(index_), now);
}

device::StreamId TracedDevice::create_stream() {
  return tracer_.run(Op::kDeviceCreateStream, 0, 0, 0, [&](sim::Event& event) {
    const device::StreamId stream = inner().create_stream();
    event.a = number_of(stream);
    return stream;
  });
}

void TracedDevice::destroy_stream(device::StreamId stream) noexcept {
  auto operation = tracer_.begin(Op::kDeviceDestroyStream, number_of(stream));
  inner().destroy_stream(stream);
  tracer_.finish(operation);
}

std::unique_ptr<device::Prepared> TracedDevice::prepare_copies(
    std::span<const device::TileCopy> copies) {
  return tracer_.run(Op::kDevicePrepare, 0, copies.size(), 1,
                     [&](sim::Event&) { return inner().prepare_copies(copies); });
}

std::unique_ptr<device::Prepared> TracedDevice::prepare_packs(
    std::span<const device::PackPiece> pieces) {
  return tracer_.run(Op::kDevicePrepare, 0, pieces.size(), 2,
                     [&](sim::Event&) { return inner().prepare_packs(pieces); });
}

std::unique_ptr<device::Prepared> TracedDevice::prepare_digests(
    std::span<const device::DigestItem> items) {
  return tracer_.run(Op::kDevicePrepare, 0, items.size(), 3,
                     [&](sim::Event&) { return inner().prepare_digests(items); });
}

void TracedDevice::launch(device::StreamId stream, const device::Prepared& batch,
                          std::span<const device::RegionId> bindings) {
  tracer_.run(Op::kDeviceLaunch, number_of(stream), 0, 0,
              [&](sim::Event&) { inner().launch(stream, batch, bindings); });
}

void TracedDevice::launch_digests(device::StreamId stream, const device::Prepared& batch,
                                  std::span<const device::RegionId> bindings,
                                  std::span<std::uint64_t> sums) {
  tracer_.run(Op::kDeviceLaunchDigests, number_of(stream), 0, sums.size(),
              [&](sim::Event&) { inner().launch_digests(stream, batch, bindings, sums); });
}

void TracedDevice::fill(device::StreamId stream, device::RegionId region, std::uint64_t offset,
                        std::uint64_t bytes, std::byte value) {
  tracer_.run(Op::kDeviceFill, number_of(stream), 0, bytes,
              [&](sim::Event&) { inner().fill(stream, region, offset, bytes, value); });
}

void TracedDevice::copy(device::StreamId stream, const device::RunCopy& run) {
  tracer_.run(Op::kDeviceLaunch, number_of(stream), 0, 0,
              [&](sim::Event&) { inner().copy(stream, run); });
}

void TracedDevice::upload(device::StreamId stream, device::RegionId region, std::uint64_t offset,
                          ByteView from) {
  tracer_.run(Op::kDeviceUpload, number_of(stream), 0, from.size(),
              [&](sim::Event&) { inner().upload(stream, region, offset, from); });
}

void TracedDevice::download(device::StreamId stream, device::RegionId region, std::uint64_t offset,
                            MutableByteView into) {
  tracer_.run(Op::kDeviceDownload, number_of(stream), 0, into.size(),
              [&](sim::Event&) { inner().download(stream, region, offset, into); });
}

void TracedDevice::synchronize(device::StreamId stream, Deadline deadline) {
  tracer_.run(Op::kDeviceSynchronize, number_of(stream), 0, 0,
              [&](sim::Event&) { inner().synchronize(stream, deadline); });
}

}  // namespace tpsync::conformance
