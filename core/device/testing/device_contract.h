// What every Device does, as tests over two participants of one device. A test program includes
// this file once and instantiates DeviceContract and DeviceContractDeathTest with its cases.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "tpsync/base/errors.h"
#include "tpsync/device/forwarding_device.h"
#include "tpsync/device/handles.h"
#include "tpsync/device/host_kernels.h"

namespace tpsync::device {

// Two participants of one device that can open each other's exports. At least 1000 bytes are free.
class ContractWorld {
 public:
  virtual ~ContractWorld() = default;
  virtual Device& actor() = 0;
  virtual Device& worker() = 0;
};

struct ContractCase {
  const char* name;
  // Why the world cannot be made on this machine; empty if it can.
  std::string (*missing)();
  std::unique_ptr<ContractWorld> (*make)();
};

inline void PrintTo(const ContractCase& one, std::ostream* out) { *out << one.name; }

inline std::string contract_case_name(const testing::TestParamInfo<ContractCase>& information) {
  return information.param.name;
}

template <typename Function>
ErrorRecord failure_of(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.record();
  }
  ADD_FAILURE() << "no error was thrown";
  return {};
}

inline AllocationRequest request(std::uint64_t bytes, RegionKind kind = RegionKind::kPlain) {
  AllocationRequest result;
  result.bytes = bytes;
  result.kind = kind;
  if (kind == RegionKind::kSleepable) result.tag = "weights";
  return result;
}

inline ByteBuffer counting(std::size_t bytes, int first = 0) {
  ByteBuffer buffer(bytes);
  for (std::size_t i = 0; i < bytes; ++i) buffer[i] = std::byte(first + static_cast<int>(i));
  return buffer;
}

inline void put(Device& device, RegionId region, ByteView bytes) {
  const Stream stream = create_stream(device);
  device.upload(stream.id(), region, 0, bytes);
  device.synchronize(stream.id(), Deadline::never());
}

inline ByteBuffer get(Device& device, RegionId region, std::uint64_t bytes) {
  ByteBuffer into(bytes);
  const Stream stream = create_stream(device);
  device.download(stream.id(), region, 0, into);
  device.synchronize(stream.id(), Deadline::never());
  return into;
}

class DeviceContract : public testing::TestWithParam<ContractCase> {
 protected:
  void SetUp() override {
    const std::string missing = GetParam().missing();
    if (!missing.empty()) GTEST_SKIP() << missing;
    world_ = GetParam().make();
    actor_ = &world_->actor();
    worker_ = &world_->worker();
  }

  std::unique_ptr<ContractWorld> world_;
  Device* actor_ = nullptr;
  Device* worker_ = nullptr;
};

TEST_P(DeviceContract, RegionIdsAreNeverReused) {
  const RegionId first = allocate(*actor_, request(1)).id();
  const RegionId second = allocate(*actor_, request(1)).id();
  EXPECT_LT(first, second);
}

TEST_P(DeviceContract, RegionsWithoutBytesAreAllowedExportedAndOpened) {
  const Region plain = allocate(*actor_, request(0));
  const Region sleepable = allocate(*actor_, request(0, RegionKind::kSleepable));
  const Region region = allocate(*actor_, request(0, RegionKind::kExportable));
  actor_->sleep("weights", true);
  actor_->wake("weights");
  const ImportedRegion imported = worker_->import_region(actor_->export_region(region.id()));
  const Import import(*worker_, imported.region);
  EXPECT_EQ(imported.bytes, 0u);
  EXPECT_EQ(imported.device_uuid, actor_->uuid());
  EXPECT_EQ(get(*worker_, import.id(), 0), ByteBuffer());
}

TEST_P(DeviceContract, ImportSharesTheExportersBytesInBothDirections) {
  const Region region = allocate(*actor_, request(8, RegionKind::kExportable));
  const ByteBuffer handle = actor_->export_region(region.id());
  const ImportedRegion imported = worker_->import_region(handle);
  const Import import(*worker_, imported.region);
  EXPECT_EQ(imported.bytes, 8u);
  EXPECT_EQ(imported.device_uuid, actor_->uuid());
  put(*actor_, region.id(), counting(8));
  EXPECT_EQ(get(*worker_, import.id(), 8), counting(8));
  put(*worker_, import.id(), counting(8, 50));
  EXPECT_EQ(get(*actor_, region.id(), 8), counting(8, 50));
}

TEST_P(DeviceContract, SecondImportIsTheSameMappingAndIsClosedOnce) {
  const Region region = allocate(*actor_, request(8, RegionKind::kExportable));
  const ByteBuffer handle = actor_->export_region(region.id());
  const ImportedRegion first = worker_->import_region(handle);
  EXPECT_EQ(worker_->import_region(handle).region, first.region);
  worker_->close_import(first.region);
  const ImportedRegion again = worker_->import_region(handle);
  EXPECT_NE(again.region, first.region);
  worker_->close_import(again.region);
}

TEST_P(DeviceContract, ImportIsRefusedForOwnRevokedAndFreedExports) {
  Region region = allocate(*actor_, request(8, RegionKind::kExportable));
  const ByteBuffer first = actor_->export_region(region.id());
  EXPECT_EQ(failure_of([&] { actor_->import_region(first); }).kind, ErrorKind::kIpc);
  EXPECT_EQ(failure_of([&] { actor_->export_region(region.id()); }).kind, ErrorKind::kIpc);
  actor_->revoke_export(region.id());
  actor_->revoke_export(region.id());
  EXPECT_EQ(failure_of([&] { worker_->import_region(first); }).kind, ErrorKind::kIpc);
  const ByteBuffer second = actor_->export_region(region.id());
  EXPECT_NE(first, second);
  EXPECT_EQ(failure_of([&] { worker_->import_region(first); }).kind, ErrorKind::kIpc);
  region.reset();
  EXPECT_EQ(failure_of([&] { worker_->import_region(second); }).kind, ErrorKind::kIpc);
}

TEST_P(DeviceContract, BytesThatAreNoHandleAreAViolationAndAlteredOnesAreRefused) {
  const Region region = allocate(*actor_, request(8, RegionKind::kExportable));
  const ByteBuffer handle = actor_->export_region(region.id());
  for (std::size_t bytes = 0; bytes < handle.size(); ++bytes) {
    EXPECT_EQ(failure_of([&] { worker_->import_region(ByteView(handle).first(bytes)); }).kind,
              ErrorKind::kProtocol);
  }
  for (std::size_t i = 0; i < handle.size(); ++i) {
    ByteBuffer altered = handle;
    altered[i] ^= std::byte{1};
    EXPECT_EQ(failure_of([&] { worker_->import_region(altered); }).kind,
              i < 8 ? ErrorKind::kProtocol : ErrorKind::kIpc)
        << i;
  }
}

TEST_P(DeviceContract, OnlyExportableRegionsAreExported) {
  const Region plain = allocate(*actor_, request(8));
  const Region sleepable = allocate(*actor_, request(8, RegionKind::kSleepable));
  EXPECT_EQ(failure_of([&] { actor_->export_region(plain.id()); }).kind, ErrorKind::kIpc);
  EXPECT_EQ(failure_of([&] { actor_->export_region(sleepable.id()); }).kind, ErrorKind::kIpc);
}

TEST_P(DeviceContract, WakeRestoresWhatSleepKeptAndBothMayBeRepeated) {
  const Region one = allocate(*worker_, request(100, RegionKind::kSleepable));
  const Region other = allocate(*worker_, request(50, RegionKind::kSleepable));
  for (const int round : {1, 2}) {
    put(*worker_, one.id(), counting(100, round));
    put(*worker_, other.id(), counting(50, round + 7));
    worker_->sleep("weights", true);
    worker_->sleep("weights", false);  // asleep already: changes nothing
    worker_->sleep("kv_cache", false);
    worker_->wake("kv_cache");
    worker_->wake("weights");
    worker_->wake("weights");
    EXPECT_EQ(get(*worker_, one.id(), 100), counting(100, round));
    EXPECT_EQ(get(*worker_, other.id(), 50), counting(50, round + 7));
  }
  worker_->sleep("weights", false);
  worker_->wake("weights");
  put(*worker_, one.id(), counting(100, 3));
  EXPECT_EQ(get(*worker_, one.id(), 100), counting(100, 3));
}

TEST_P(DeviceContract, RegionAllocatedBesideSleepingOnesFallsAsleepWithTheNextSleep) {
  const Region first = allocate(*worker_, request(100, RegionKind::kSleepable));
  put(*worker_, first.id(), counting(100));
  worker_->sleep("weights", true);
  const Region second = allocate(*worker_, request(50, RegionKind::kSleepable));
  put(*worker_, second.id(), counting(50, 9));
  worker_->sleep("weights", true);
  worker_->wake("weights");
  EXPECT_EQ(get(*worker_, first.id(), 100), counting(100));
  EXPECT_EQ(get(*worker_, second.id(), 50), counting(50, 9));
}

TEST_P(DeviceContract, SleepingRegionMayBeFreed) {
  Region region = allocate(*worker_, request(100, RegionKind::kSleepable));
  worker_->sleep("weights", true);
  region.reset();
  worker_->wake("weights");
}

TEST_P(DeviceContract, PreparedCopiesServeManyBindings) {
  const Region source = allocate(*actor_, request(12));
  put(*actor_, source.id(), counting(12));
  TileCopy copy;
  copy.dst = 1;
  copy.src = 0;
  copy.dst_offset = 1;
  copy.dst_pitch = 2;
  copy.src_offset = 2;
  copy.src_pitch = 4;
  copy.row_bytes = 2;
  copy.rows = 2;
  const auto batch = actor_->prepare_copies({&copy, 1});
  for (int i = 0; i < 2; ++i) {
    const Region target = allocate(*actor_, request(6));
    const Stream stream = create_stream(*actor_);
    actor_->fill(stream.id(), target.id(), 0, 6, std::byte{9});
    const std::array<RegionId, 2> bindings{source.id(), target.id()};
    actor_->launch(stream.id(), *batch, bindings);
    actor_->synchronize(stream.id(), Deadline::never());
    EXPECT_EQ(get(*actor_, target.id(), 6), (ByteBuffer{std::byte{9}, std::byte{2}, std::byte{3},
                                                        std::byte{6}, std::byte{7}, std::byte{9}}));
  }
}

TEST_P(DeviceContract, RunsAreCopiedInTheOrderOfTheStream) {
  const Region source = allocate(*actor_, request(12));
  const Region target = allocate(*actor_, request(12));
  put(*actor_, source.id(), counting(12));
  put(*actor_, target.id(), ByteBuffer(12, std::byte{0x77}));
  const Stream stream = create_stream(*actor_);
  actor_->fill(stream.id(), source.id(), 3, 1, std::byte{0x55});
  actor_->copy(
      stream.id(),
      {.dst = target.id(), .src = source.id(), .dst_offset = 1, .src_offset = 2, .bytes = 3});
  actor_->fill(stream.id(), source.id(), 4, 1, std::byte{0x66});
  actor_->copy(
      stream.id(),
      {.dst = target.id(), .src = target.id(), .dst_offset = 8, .src_offset = 1, .bytes = 3});
  actor_->copy(stream.id(), {.dst = target.id(), .src = source.id(), .bytes = 0});
  actor_->synchronize(stream.id(), Deadline::never());
  ByteBuffer expected(12, std::byte{0x77});
  expected[1] = expected[8] = std::byte{2};
  expected[2] = expected[9] = std::byte{0x55};
  expected[3] = expected[10] = std::byte{4};
  EXPECT_EQ(get(*actor_, target.id(), 12), expected);
}

TEST_P(DeviceContract, EmptyBatchesAreAllowed) {
  const Stream stream = create_stream(*actor_);
  const auto copies = actor_->prepare_copies({});
  const auto packs = actor_->prepare_packs({});
  const auto digests = actor_->prepare_digests({});
  actor_->launch(stream.id(), *copies, {});
  actor_->launch(stream.id(), *packs, {});
  actor_->launch_digests(stream.id(), *digests, {}, {});
  actor_->synchronize(stream.id(), Deadline::never());
}

TEST_P(DeviceContract, PreparedPacksConvert) {
  const Region source = allocate(*actor_, request(8));
  const Region target = allocate(*actor_, request(5));
  const std::array<float, 2> values{1.0F, -2.0F};
  put(*actor_, source.id(), std::as_bytes(std::span(values)));
  put(*actor_, target.id(), ByteBuffer(5, std::byte{0x77}));
  PackPiece piece;
  piece.dst = 1;
  piece.dst_offset = 1;
  piece.count = 2;
  piece.src_dtype = DType::kFloat32;
  const auto batch = actor_->prepare_packs({&piece, 1});
  const Stream stream = create_stream(*actor_);
  const std::array<RegionId, 2> bindings{source.id(), target.id()};
  actor_->launch(stream.id(), *batch, bindings);
  actor_->synchronize(stream.id(), Deadline::never());
  EXPECT_EQ(get(*actor_, target.id(), 5),
            (ByteBuffer{std::byte{0x77}, std::byte{0x80}, std::byte{0x3f}, std::byte{0x00},
                        std::byte{0xc0}}));
}

TEST_P(DeviceContract, PreparedDigestsWriteOneSumEachAtEveryLaunch) {
  const Region region = allocate(*actor_, request(24));
  std::vector<DigestItem> items(3);
  items[0] = {0, 0, 12, 2, 0, 2, 0, 6, 77};
  items[1] = {0, 4, 12, 4, 5, 2, 8, 2, 78};
  items[2].key = 79;  // of no elements
  const auto batch = actor_->prepare_digests(items);
  const Stream stream = create_stream(*actor_);
  const RegionId binding = region.id();
  for (const int first : {0, 100}) {
    const ByteBuffer content = counting(24, first);
    put(*actor_, region.id(), content);
    std::array<std::uint64_t, 3> sums{1, 1, 1};
    actor_->launch_digests(stream.id(), *batch, {&binding, 1}, sums);
    actor_->synchronize(stream.id(), Deadline::never());
    EXPECT_EQ(sums[0], digest_rect(content.data(), 12, 2, 0, 2, 0, 6, 77));
    EXPECT_EQ(sums[1], digest_rect(content.data() + 4, 12, 4, 5, 2, 8, 2, 78));
    EXPECT_EQ(sums[2], 0u);
  }
}

TEST_P(DeviceContract, WorkOfOneStreamIsDoneInOrder) {
  const Region region = allocate(*actor_, request(4));
  const Stream stream = create_stream(*actor_);
  actor_->fill(stream.id(), region.id(), 0, 4, std::byte{1});
  actor_->fill(stream.id(), region.id(), 1, 2, std::byte{2});
  const ByteBuffer last = counting(1, 5);
  actor_->upload(stream.id(), region.id(), 3, last);
  ByteBuffer into(4);
  actor_->download(stream.id(), region.id(), 0, into);
  actor_->fill(stream.id(), region.id(), 0, 4, std::byte{3});
  actor_->synchronize(stream.id(), Deadline::never());
  EXPECT_EQ(into, (ByteBuffer{std::byte{1}, std::byte{2}, std::byte{2}, std::byte{5}}));
  EXPECT_EQ(get(*actor_, region.id(), 4), ByteBuffer(4, std::byte{3}));
}

TEST_P(DeviceContract, ForwardingDeviceReachesTheWrappedOne) {
  ForwardingDevice wrapped(*actor_);
  const Region region = allocate(wrapped, request(8, RegionKind::kExportable));
  const Export exported(wrapped, region.id());
  const Import import(*worker_, worker_->import_region(wrapped.export_region(region.id())).region);
  put(wrapped, region.id(), counting(8));
  EXPECT_EQ(get(*worker_, import.id(), 8), counting(8));
  EXPECT_EQ(wrapped.uuid(), actor_->uuid());
  EXPECT_EQ(wrapped.memory().total_bytes, actor_->memory().total_bytes);
}

using DeviceContractDeathTest = DeviceContract;

TEST_P(DeviceContractDeathTest, EveryByteOutOfBoundsAssertsAtLaunch) {
  const Region small = allocate(*actor_, request(8));
  const Region large = allocate(*actor_, request(64));
  const Stream stream = create_stream(*actor_);
  const std::array<RegionId, 2> bindings{small.id(), large.id()};
  ByteBuffer host(9);
  EXPECT_DEATH(actor_->fill(stream.id(), small.id(), 4, 5, std::byte{}), "bytes");
  EXPECT_DEATH(actor_->fill(stream.id(), small.id(), UINT64_MAX, 2, std::byte{}), "bytes");
  EXPECT_DEATH(actor_->upload(stream.id(), small.id(), 0, host), "bytes");
  EXPECT_DEATH(actor_->download(stream.id(), small.id(), 0, host), "bytes");
  TileCopy copy{1, 0, 0, 4, 0, 4, 2, 3};
  copy.src_offset = 0;  // rows at 0, 4 and 8 of eight bytes
  const auto copies = actor_->prepare_copies({&copy, 1});
  EXPECT_DEATH(actor_->launch(stream.id(), *copies, bindings), "bytes");
  copy = {1, 0, 0, UINT64_MAX, 0, 0, 2, 3};
  const auto overflowing = actor_->prepare_copies({&copy, 1});
  EXPECT_DEATH(actor_->launch(stream.id(), *overflowing, bindings), "has_value");
  PackPiece piece;
  piece.dst = 1;
  piece.count = 5;
  const auto packs = actor_->prepare_packs({&piece, 1});
  EXPECT_DEATH(actor_->launch(stream.id(), *packs, bindings), "bytes");
  DigestItem item;
  item.rows = 1;
  item.cols = 5;
  const auto digests = actor_->prepare_digests({&item, 1});
  std::uint64_t sum = 0;
  EXPECT_DEATH(actor_->launch_digests(stream.id(), *digests, bindings, {&sum, 1}), "bytes");
  EXPECT_DEATH(actor_->launch_digests(stream.id(), *digests, bindings, {}), "sums.size");
  EXPECT_DEATH(actor_->launch(stream.id(), *packs, {bindings.data(), 1}), "bindings.size");
}

TEST_P(DeviceContractDeathTest, UseOfDeadSleepingAndForeignRegionsAsserts) {
  const Stream stream = create_stream(*actor_);
  const RegionId dead = allocate(*actor_, request(8)).id();
  const Region sleeping = allocate(*actor_, request(8, RegionKind::kSleepable));
  actor_->sleep("weights", true);
  EXPECT_DEATH(actor_->fill(stream.id(), dead, 0, 1, std::byte{}), "regions_?.end");
  EXPECT_DEATH(actor_->fill(stream.id(), sleeping.id(), 0, 1, std::byte{}), "region.awake");
  EXPECT_DEATH(actor_->free(dead), "regions_?.end");
  EXPECT_DEATH(actor_->close_import(sleeping.id()), "import");
}

}  // namespace tpsync::device
