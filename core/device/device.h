// Seam: one device as one process sees it: memory that can be exported, imported, copied and put to
// sleep. CUDA or host shared memory in production.
//
// Core holds no raw pointer to device memory, only (region, offset, length). All work is
// stream-ordered: a batched operation is prepared once, launched many times, and is complete when
// its stream was synchronized. A destination is undefined in between, and a source is read at any
// time in between.
//
// Failures of every call: RuntimeBroken kDevice if the context is lost (fatal for this process),
// plus what is said at the call. Bounds are checked at launch and violations assert: sizes from
// outside are validated above this seam.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tpsync/base/bytes.h"
#include "tpsync/base/clock.h"
#include "tpsync/base/dtype.h"

namespace tpsync::device {

// Never reused within a process. 0 names nothing.
enum class RegionId : std::uint64_t { kNone = 0 };
enum class StreamId : std::uint32_t { kNone = 0 };

enum class RegionKind : std::uint8_t {
  kPlain,       // ordinary memory of this process
  kExportable,  // can be exported; never put to sleep
  kSleepable,   // fixed address, physical memory can be given back; never exported or registered
};

struct AllocationRequest {
  std::uint64_t bytes = 0;  // 0 is allowed and takes no memory
  RegionKind kind = RegionKind::kPlain;
  std::string_view tag;  // of sleepable regions: "weights", "kv_cache"; static storage
};

struct MemoryInfo {
  std::uint64_t free_bytes =
      0;  // the driver's figure: memory cached by an allocator counts as used
  std::uint64_t total_bytes = 0;
};

// A region is named in a prepared batch by its place in the binding list that is given at launch,
// so that a plan made once serves every publication.
using Binding = std::uint32_t;

// `rows` runs of `row_bytes`, `*_pitch` bytes apart. Source and destination of one batch never
// overlap.
struct TileCopy {
  Binding dst = 0;
  Binding src = 0;
  std::uint64_t dst_offset = 0;
  std::uint64_t dst_pitch = 0;
  std::uint64_t src_offset = 0;
  std::uint64_t src_pitch = 0;
  std::uint64_t row_bytes = 0;
  std::uint64_t rows = 0;
};

// One contiguous run, between regions or within one. Source and destination never overlap.
struct RunCopy {
  RegionId dst = RegionId::kNone;
  RegionId src = RegionId::kNone;
  std::uint64_t dst_offset = 0;
  std::uint64_t src_offset = 0;
  std::uint64_t bytes = 0;
};

// `count` contiguous elements, converted where the types differ (round to nearest even).
struct PackPiece {
  Binding dst = 0;
  Binding src = 0;
  std::uint64_t dst_offset = 0;
  std::uint64_t src_offset = 0;
  std::uint64_t count = 0;
  DType dst_dtype = DType::kBFloat16;
  DType src_dtype = DType::kBFloat16;
};

// The sum, modulo 2^64, over a rectangle of a tensor of bits(row, col) * row_weight(key, row) *
// col_weight(key, col); see digest_weights.h. Rows and columns are those of the full tensor; the
// element (row0, col0) lies at `offset`.
struct DigestItem {
  Binding region = 0;
  std::uint64_t offset = 0;
  std::uint64_t pitch = 0;       // bytes between rows
  std::uint32_t item_bytes = 2;  // 1, 2, 4 or 8
  std::uint64_t row0 = 0, rows = 0;
  std::uint64_t col0 = 0, cols = 0;
  std::uint64_t key = 0;  // of the tensor
};

// A batch of operations of one kind, checked and made resident once. Owned by the caller, destroyed
// before its device.
class Prepared {
 public:
  virtual ~Prepared() = default;
};

struct ImportedRegion {
  RegionId region = RegionId::kNone;
  std::uint64_t bytes = 0;
  std::string device_uuid;  // of the device behind the mapping, as the driver names it
};

class Device {
 public:
  virtual ~Device() = default;

  // Lower-case hex with dashes, without prefix.
  virtual std::string uuid() = 0;
  virtual MemoryInfo memory() = 0;

  // Throws RuntimeBroken kOutOfMemory; then nothing is allocated. The content is undefined.
  virtual RegionId allocate(const AllocationRequest& request) = 0;
  // Frees an allocated region. Work that uses it must be complete, and no other process may still
  // have it imported.
  virtual void free(RegionId region) noexcept = 0;

  // Makes an exportable region openable by other processes of this host and returns its handle:
  // opaque bytes that name exporter, region and size. One export per region; it ends with revoke or
  // free. Throws RuntimeBroken kIpc.
  virtual ByteBuffer export_region(RegionId region) = 0;
  virtual void revoke_export(RegionId region) noexcept = 0;

  // Opens another process's export. Opening an export of another device succeeds where the platform
  // lets it, so the caller compares device_uuid. A second import of the same export gives the same
  // mapping; close once. Throws RuntimeBroken kIpc (not permitted, gone, malformed); PeerViolation
  // kProtocol for bytes that are no handle.
  virtual ImportedRegion import_region(ByteView handle) = 0;
  virtual void close_import(RegionId region) noexcept = 0;

  // Gives back the physical memory of all sleepable regions of `tag`; with `keep` the content is
  // saved on the host. wake brings the regions back at the same place, with the saved content, or
  // undefined. Both are idempotent per tag. wake throws RuntimeBroken kOutOfMemory (regions stay
  // asleep). Work that uses the regions must be complete.
  virtual void sleep(std::string_view tag, bool keep) = 0;
  virtual void wake(std::string_view tag) = 0;

  // Work of one stream is done in the order of its launches; streams are not ordered to one
  // another. Ends with destroy_stream, which drops what is pending: its destinations are undefined.
  virtual StreamId create_stream() = 0;
  virtual void destroy_stream(StreamId stream) noexcept = 0;

  // The list is copied; the caller may drop it. What needs no region is checked here (types that
  // cannot be converted, item sizes) and asserts; what needs the bindings (offsets, extents) is
  // checked at each launch. An empty list is allowed. Throws RuntimeBroken kOutOfMemory if the
  // batch cannot be made resident; then nothing is left of it.
  virtual std::unique_ptr<Prepared> prepare_copies(std::span<const TileCopy> copies) = 0;
  virtual std::unique_ptr<Prepared> prepare_packs(std::span<const PackPiece> pieces) = 0;
  virtual std::unique_ptr<Prepared> prepare_digests(std::span<const DigestItem> items) = 0;

  // Launches what prepare_copies or prepare_packs made. `batch` and the regions stay alive until
  // synchronized.
  virtual void launch(StreamId stream, const Prepared& batch,
                      std::span<const RegionId> bindings) = 0;
  // Launches what prepare_digests made; `sums` (one per item) is written by the time the stream is
  // synchronized and must stay alive until then, or until the stream is destroyed.
  virtual void launch_digests(StreamId stream, const Prepared& batch,
                              std::span<const RegionId> bindings,
                              std::span<std::uint64_t> sums) = 0;
  virtual void fill(StreamId stream, RegionId region, std::uint64_t offset, std::uint64_t bytes,
                    std::byte value) = 0;
  // Copies a run without preparation, by a copy engine where the device has some, so that it goes
  // on beside kernels; for few long runs, since each is an operation of its own. Either region may
  // be an import, another device's too. No bytes are no operation.
  virtual void copy(StreamId stream, const RunCopy& run) = 0;
  // Host copies; the host side stays alive and untouched until synchronized.
  virtual void upload(StreamId stream, RegionId region, std::uint64_t offset, ByteView from) = 0;
  virtual void download(StreamId stream, RegionId region, std::uint64_t offset,
                        MutableByteView into) = 0;

  // Blocks until all work of the stream is complete. Throws RuntimeBroken kDevice if some of it
  // failed or was lost (its destinations are undefined), kTimeout at the deadline.
  virtual void synchronize(StreamId stream, Deadline deadline) = 0;
};

}  // namespace tpsync::device
