// The device's decorator: refused memory and imports, late streams, and tiles that a worker's
// launch loses.
//
// Where tiles can be lost, prepared batches are wrapped together with their tiles, so that the
// launch in question can be made again without some of them.
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
        knows_tiles_(faults.has(Action::kLoseExpert, "loader")) {}

  device::MemoryInfo memory() override {
    faults_.pass("device.memory");
    return ForwardingDevice::memory();
  }
  RegionId allocate(const device::AllocationRequest& request) override {
    faults_.pass("device.allocate");
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
    faults_.pass("device.export");
    return ForwardingDevice::export_region(region);
  }
  void revoke_export(RegionId region) noexcept override {
    faults_.pass("device.revoke");
    ForwardingDevice::revoke_export(region);
  }
  device::ImportedRegion import_region(ByteView handle) override {
    faults_.pass("device.import");
    if (faults_.fire(Action::kRefuseImport, "device.import") != nullptr) {
      throw_broken(ErrorKind::kIpc, "import", "opening the export is not permitted");
    }
    return ForwardingDevice::import_region(handle);
  }
  void close_import(RegionId region) noexcept override {
    faults_.pass("device.close_import");
    ForwardingDevice::close_import(region);
  }
  void sleep(std::string_view tag, bool keep) override {
    faults_.pass("device.sleep");
    ForwardingDevice::sleep(tag, keep);
  }
  void wake(std::string_view tag) override {
    faults_.pass("device.wake");
    refuse_memory("device.wake");
    ForwardingDevice::wake(tag);
  }
  StreamId create_stream() override {
    faults_.pass("device.create_stream");
    return ForwardingDevice::create_stream();
  }
  void destroy_stream(StreamId stream) noexcept override {
    faults_.pass("device.destroy_stream");
    faults_.late().drop(stream);
    ForwardingDevice::destroy_stream(stream);
  }

  std::unique_ptr<Prepared> prepare_copies(std::span<const TileCopy> copies) override {
    faults_.pass("device.prepare");
    return known(ForwardingDevice::prepare_copies(copies), {copies.begin(), copies.end()});
  }
  std::unique_ptr<Prepared> prepare_packs(std::span<const device::PackPiece> pieces) override {
    faults_.pass("device.prepare");
    return known(ForwardingDevice::prepare_packs(pieces), {});
  }
  std::unique_ptr<Prepared> prepare_digests(std::span<const device::DigestItem> items) override {
    faults_.pass("device.prepare");
    return known(ForwardingDevice::prepare_digests(items), {});
  }

  void launch(StreamId stream, const Prepared& batch, std::span<const RegionId> bindings) override {
    enter("device.launch", stream);
    const Prepared* issued = &inner_of(batch);
    if (knows_tiles_) {
      issued = without_expert(batch, bindings, issued);
      if (issued == nullptr) return;  // nothing of the batch is left
    }
    issue(stream, [this, stream, issued, kept = std::vector(bindings.begin(), bindings.end())] {
      ForwardingDevice::launch(stream, *issued, kept);
    });
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
    faults_.pass("device.synchronize");
    faults_.late().flush(stream);
    ForwardingDevice::synchronize(stream, deadline);
  }

 private:
  void enter(std::string_view op, StreamId stream) {
    faults_.pass(op);
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
  std::vector<std::unique_ptr<Prepared>> lossy_batches_;
};

}  // namespace

std::unique_ptr<device::Device> ProcessFaults::device(device::Device& inner) {
  if (!wants(Seam::kDevice)) return nullptr;
  return std::make_unique<FaultDevice>(*this, inner);
}

}  // namespace tpsync::faults
