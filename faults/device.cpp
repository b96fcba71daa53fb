// The device's decorator: refused and misreported memory, exports and imports, late streams, work
// that fails or does something else, and a context that is lost.
//
// Where single tiles matter, prepared batches are wrapped together with their tiles, so that the
// launch in question can be made again without some of them, or what it wrote be overwritten.
#include <algorithm>
#include <utility>

#include "faults/injector.h"
#include "faults/late_streams.h"
#include "tpsync/base/errors.h"
#include "tpsync/device/forwarding_device.h"

namespace tpsync::faults {
namespace {

using device::Prepared;
using device::RegionId;
using device::StreamId;
using device::TileCopy;

constexpr std::string_view kWeightsTag = "weights";  // of a worker's resident weights
constexpr std::uint64_t kCorruptedBytes = 2;
constexpr std::byte kCorruption{0xa5};

class KnownBatch final : public Prepared {
 public:
  KnownBatch(std::unique_ptr<Prepared> inner, std::vector<TileCopy> tiles)
      : inner_(std::move(inner)), tiles_(std::move(tiles)) {}
  const Prepared& inner() const { return *inner_; }
  const std::vector<TileCopy>& tiles() const { return tiles_; }

 private:
  std::unique_ptr<Prepared> inner_;
  std::vector<TileCopy> tiles_;  // empty for packs and digests
};

bool touches(const TileCopy& tile, const std::vector<ByteRange>& places) {
  if (tile.rows == 0 || tile.row_bytes == 0) return false;
  const std::uint64_t end = tile.dst_offset + (tile.rows - 1) * tile.dst_pitch + tile.row_bytes;
  return std::any_of(places.begin(), places.end(), [&](const ByteRange& place) {
    return tile.dst_offset < place.offset + place.bytes && place.offset < end;
  });
}

class FaultDevice final : public device::ForwardingDevice {
 public:
  FaultDevice(ProcessFaults& faults, device::Device& inner)
      : ForwardingDevice(inner),
        faults_(faults),
        knows_tiles_(faults.has(Action::kLoseExpert, "loader") ||
                     faults.has(Action::kDistortCopies)) {}

  device::MemoryInfo memory() override {
    faults_.pass("device.memory");
    const Fault* fault = faults_.fire(Action::kMisreportMemory, "device.memory");
    device::MemoryInfo info = ForwardingDevice::memory();
    if (fault != nullptr) info.free_bytes = 0;
    return info;
  }
  RegionId allocate(const device::AllocationRequest& request) override {
    begin("device.allocate");
    refuse_memory("device.allocate");
    const RegionId region = ForwardingDevice::allocate(request);
    if (request.tag == kWeightsTag) weights_ = region;
    return region;
  }
  void free(RegionId region) noexcept override {
    faults_.pass("device.free");
    ForwardingDevice::free(region);
  }
  ByteBuffer export_region(RegionId region) override {
    begin("device.export");
    if (faults_.fire(Action::kRefuseExport, "device.export") != nullptr) {
      throw_broken(ErrorKind::kIpc, "export", "this memory cannot be shared");
    }
    const Fault* stale = faults_.due(Action::kStaleExport, "device.export");
    ByteBuffer handle = ForwardingDevice::export_region(region);
    if (first_handle_.empty()) {
      first_handle_ = handle;
    } else if (stale != nullptr) {
      faults_.apply(*stale);
      return first_handle_;
    }
    return handle;
  }
  void revoke_export(RegionId region) noexcept override {
    faults_.pass("device.revoke");
    ForwardingDevice::revoke_export(region);
  }
  device::ImportedRegion import_region(ByteView handle) override {
    begin("device.import");
    if (faults_.fire(Action::kRefuseImport, "device.import") != nullptr) {
      throw_broken(ErrorKind::kIpc, "import", "opening the export is not permitted");
    }
    const Fault* fault = faults_.fire(Action::kMisreportImport, "device.import");
    device::ImportedRegion imported = ForwardingDevice::import_region(handle);
    if (fault != nullptr && fault->name == "ipc.wrong_device") imported.device_uuid += "-other";
    if (fault != nullptr && fault->name == "ipc.wrong_size") imported.bytes /= 2;
    return imported;
  }
  void close_import(RegionId region) noexcept override {
    faults_.pass("device.close_import");
    ForwardingDevice::close_import(region);
  }
  void sleep(std::string_view tag, bool keep) override {
    begin("device.sleep");
    ForwardingDevice::sleep(tag, keep);
  }
  void wake(std::string_view tag) override {
    begin("device.wake");
    refuse_memory("device.wake");
    ForwardingDevice::wake(tag);
  }
  StreamId create_stream() override {
    begin("device.create_stream");
    return ForwardingDevice::create_stream();
  }
  void destroy_stream(StreamId stream) noexcept override {
    faults_.pass("device.destroy_stream");
    faults_.late().drop(stream);
    ForwardingDevice::destroy_stream(stream);
  }

  std::unique_ptr<Prepared> prepare_copies(std::span<const TileCopy> copies) override {
    begin_prepare();
    return known(ForwardingDevice::prepare_copies(copies), {copies.begin(), copies.end()});
  }
  std::unique_ptr<Prepared> prepare_packs(std::span<const device::PackPiece> pieces) override {
    begin_prepare();
    return known(ForwardingDevice::prepare_packs(pieces), {});
  }
  std::unique_ptr<Prepared> prepare_digests(std::span<const device::DigestItem> items) override {
    begin_prepare();
    return known(ForwardingDevice::prepare_digests(items), {});
  }

  void launch(StreamId stream, const Prepared& batch, std::span<const RegionId> bindings) override {
    enter("device.launch", stream);
    const Prepared* issued = &inner_of(batch);
    const Fault* fault = nullptr;
    if (knows_tiles_) {
      fault = faults_.fire(Action::kDistortCopies, "device.launch");
      if (fault != nullptr && fault->name == "copy.lost") return;
      issued = without_expert(batch, bindings, issued);
      if (issued == nullptr) return;  // nothing of the batch is left
    }
    issue_launch(stream, *issued, bindings);
    if (fault == nullptr) return;
    if (fault->name == "copy.twice") {
      issue_launch(stream, *issued, bindings);
    } else {
      overwrite(*fault, stream, static_cast<const KnownBatch&>(batch).tiles(), bindings);
    }
  }
  void launch_digests(StreamId stream, const Prepared& batch, std::span<const RegionId> bindings,
                      std::span<std::uint64_t> sums) override {
    enter("device.launch_digests", stream);
    issue(stream, [this, stream, issued = &inner_of(batch),
                   kept = std::vector(bindings.begin(), bindings.end()),
                   sums] { ForwardingDevice::launch_digests(stream, *issued, kept, sums); });
  }
  void fill(StreamId stream, RegionId region, std::uint64_t offset, std::uint64_t bytes,
            std::byte value) override {
    enter("device.fill", stream);
    issue(stream, [=, this] { ForwardingDevice::fill(stream, region, offset, bytes, value); });
  }
  void copy(StreamId stream, const device::RunCopy& run) override {
    enter("device.launch", stream);  // as it is traced
    issue(stream, [=, this] { ForwardingDevice::copy(stream, run); });
  }
  void upload(StreamId stream, RegionId region, std::uint64_t offset, ByteView from) override {
    enter("device.upload", stream);
    issue(stream, [=, this] { ForwardingDevice::upload(stream, region, offset, from); });
  }
  void download(StreamId stream, RegionId region, std::uint64_t offset,
                MutableByteView into) override {
    enter("device.download", stream);
    issue(stream, [=, this] { ForwardingDevice::download(stream, region, offset, into); });
  }
  void synchronize(StreamId stream, Deadline deadline) override {
    begin("device.synchronize");
    const Fault* fault = faults_.fire(Action::kFailSync, "device.synchronize");
    faults_.late().flush(stream);
    ForwardingDevice::synchronize(stream, deadline);
    if (fault != nullptr) throw_broken(ErrorKind::kDevice, "stream", "its work failed");
  }

 private:
  // Of everything that a lost context makes fail.
  void begin(std::string_view op) {
    faults_.pass(op);
    if (faults_.fire(Action::kLoseContext, op) != nullptr) is_lost_ = true;
    if (is_lost_) throw_broken(ErrorKind::kDevice, "device context", "is lost");
  }

  void begin_prepare() {
    begin("device.prepare");
    if (faults_.fire(Action::kRefusePrepare, "device.prepare") != nullptr) {
      throw_broken(ErrorKind::kOutOfMemory, "device memory", "there is none for this batch");
    }
  }

  void enter(std::string_view op, StreamId stream) {
    begin(op);
    if (faults_.fire(Action::kFailCopy, op) != nullptr) {
      throw_broken(ErrorKind::kDevice, "stream", "the driver refused the work");
    }
    if (faults_.fire(Action::kDelayCopies, op) != nullptr) faults_.late().delay(stream);
  }

  template <typename Work>
  void issue(StreamId stream, Work work) {
    if (faults_.late().holds(stream, faults_.active())) {
      faults_.late().hold(stream, std::move(work));
    } else {
      work();
    }
  }

  void issue_launch(StreamId stream, const Prepared& batch, std::span<const RegionId> bindings) {
    issue(stream,
          [this, stream, issued = &batch, kept = std::vector(bindings.begin(), bindings.end())] {
            ForwardingDevice::launch(stream, *issued, kept);
          });
  }

  // Behind the batch, what it wrote at its first place, or at its last, is something else.
  void overwrite(const Fault& fault, StreamId stream, const std::vector<TileCopy>& tiles,
                 std::span<const RegionId> bindings) {
    if (tiles.empty()) return;
    const TileCopy& first = tiles.front();
    if (fault.name == "copy.corrupted") {
      issue(stream, [=, this, region = bindings[first.dst], offset = first.dst_offset] {
        ForwardingDevice::fill(stream, region, offset, kCorruptedBytes, kCorruption);
      });
      return;
    }
    const TileCopy& last = tiles.back();
    device::RunCopy run;
    run.src = bindings[first.dst];
    run.dst = bindings[last.dst];
    run.src_offset = first.dst_offset;
    run.dst_offset = last.dst_offset + (last.rows - 1) * last.dst_pitch;
    run.bytes = std::min(first.row_bytes, last.row_bytes);
    if (run.src_offset == run.dst_offset) {  // one row alone: its halves
      run.bytes /= 2;
      run.dst_offset += run.bytes;
    }
    issue(stream, [=, this] { ForwardingDevice::copy(stream, run); });
  }

  void refuse_memory(std::string_view op) {
    if (faults_.fire(Action::kRefuseMemory, op) == nullptr) return;
    throw_broken(ErrorKind::kOutOfMemory, "device memory", "the allocation failed");
  }

  std::unique_ptr<Prepared> known(std::unique_ptr<Prepared> inner, std::vector<TileCopy> tiles) {
    if (!knows_tiles_) return inner;
    return std::make_unique<KnownBatch>(std::move(inner), std::move(tiles));
  }

  const Prepared& inner_of(const Prepared& batch) const {
    return knows_tiles_ ? static_cast<const KnownBatch&>(batch).inner() : batch;
  }

  // The batch without the tiles that a fault loses now; `whole` if it loses none.
  const Prepared* without_expert(const Prepared& batch, std::span<const RegionId> bindings,
                                 const Prepared* whole) {
    const Fault* fault = faults_.due(Action::kLoseExpert, "device.launch");
    if (fault == nullptr || !faults_.ports().resident_places) return whole;
    const auto places = faults_.ports().resident_places(expert_of(*fault));
    std::vector<TileCopy> rest;
    const auto& tiles = static_cast<const KnownBatch&>(batch).tiles();
    for (const TileCopy& tile : tiles) {
      const bool is_lost = bindings[tile.dst] == weights_ && touches(tile, places);
      if (!is_lost) rest.push_back(tile);
    }
    if (rest.size() == tiles.size()) return whole;
    faults_.apply(*fault);
    if (rest.empty()) return nullptr;
    lossy_batches_.push_back(ForwardingDevice::prepare_copies(rest));
    return lossy_batches_.back().get();
  }

  ProcessFaults& faults_;
  const bool knows_tiles_;
  RegionId weights_ = RegionId::kNone;
  ByteBuffer first_handle_;  // that this process exported
  bool is_lost_ = false;
  std::vector<std::unique_ptr<Prepared>> lossy_batches_;
};

}  // namespace

std::unique_ptr<device::Device> ProcessFaults::device(device::Device& inner) {
  plain_device_ = &inner;
  if (!wants(Seam::kDevice)) return nullptr;
  return std::make_unique<FaultDevice>(*this, inner);
}

}  // namespace tpsync::faults
