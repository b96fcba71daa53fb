// The CUDA device on a real GPU: what every device does (testing/device_contract.h), its kernels
// against the host's arithmetic, sleep and wake, and waits that end at their deadline. Skipped
// where there is no device.
#include "tpsync/device/cuda_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tpsync/base/os_clock.h"
#include "tpsync/device/testing/batches.h"
#include "tpsync/device/testing/device_contract.h"

namespace tpsync::device {
namespace {

std::string no_device() { return find_cuda_devices().reason; }

class CudaWorld final : public ContractWorld {
 public:
  CudaWorld() : actor_(clock_, options()), worker_(clock_, options()) {}
  Device& actor() override { return actor_; }
  Device& worker() override { return worker_; }

 private:
  // The other kind never opens within one process.
  static CudaDeviceOptions options() {
    CudaDeviceOptions result;
    result.export_kind = CudaExportKind::kVmmFd;
    return result;
  }
  OsClock clock_;
  CudaDevice actor_, worker_;
};

const ContractCase kCuda{"Cuda", no_device, []() -> std::unique_ptr<ContractWorld> {
                           return std::make_unique<CudaWorld>();
                         }};
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceContract, testing::Values(kCuda), contract_case_name);
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceContractDeathTest, testing::Values(kCuda), contract_case_name);

class CudaDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = no_device(); !reason.empty()) GTEST_SKIP() << reason;
    device_ = std::make_unique<CudaDevice>(clock_, CudaDeviceOptions{});
  }
  Region filled(ByteView bytes) {
    Region region = allocate(*device_, request(bytes.size()));
    put(*device_, region.id(), bytes);
    return region;
  }
  // Launches a batch from the bytes of binding 0 to those of binding 1 and returns the latter.
  ByteBuffer result_of(const Prepared& batch, ByteView src, ByteView dst) {
    const Region from = filled(src), into = filled(dst);
    const Stream stream = create_stream(*device_);
    device_->launch(stream.id(), batch, std::array{from.id(), into.id()});
    device_->synchronize(stream.id(), Deadline::never());
    return get(*device_, into.id(), dst.size());
  }
  // Work that takes a good while: 200 fills of 1 GiB.
  void occupy(StreamId stream, RegionId large) {
    for (int i = 0; i < 200; ++i) device_->fill(stream, large, 0, kGiB, std::byte(i));
  }

  OsClock clock_;
  std::unique_ptr<CudaDevice> device_;
};

TEST(CudaDeviceWithoutOne, SaysWhyAndNamesTheOrdinal) {
  OsClock clock;
  const CudaDevices found = find_cuda_devices();
  EXPECT_EQ(found.count == 0, !found.reason.empty());
  CudaDeviceOptions options;
  options.ordinal = found.count;
  const ErrorRecord record = failure_of([&] { CudaDevice(clock, options); });
  EXPECT_EQ(record.kind, ErrorKind::kInvalidConfig);
  EXPECT_EQ(record.subject, "ordinal");
  EXPECT_THAT(record.detail, testing::HasSubstr(found.reason));
}

TEST_F(CudaDeviceTest, UuidIsLowerCaseWithDashesAndWithoutPrefix) {
  EXPECT_THAT(device_->uuid(), testing::MatchesRegex(
                                   "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"));
}

TEST_F(CudaDeviceTest, CopiesOfEveryShapeAndAlignmentEqualTheHosts) {
  for (std::uint64_t key = 0; key < 20; ++key) {
    const CopyBatch batch = random_copies(key, 60);
    const ByteBuffer src = random_bytes(batch.src_bytes, key);
    const ByteBuffer dst(batch.dst_bytes, std::byte{0xee});
    ByteBuffer expected = dst;
    for (const TileCopy& copy : batch.copies) apply(copy, src, expected);
    ASSERT_TRUE(result_of(*device_->prepare_copies(batch.copies), src, dst) == expected) << key;
  }
}

TEST_F(CudaDeviceTest, RowsOf768And192BytesAreCopiedExactly) {
  for (const std::uint64_t row_bytes : {768, 192}) {
    const TileCopy copy{1, 0, 0, row_bytes, row_bytes, 1536, row_bytes, 2048};
    const ByteBuffer src = random_bytes(1536 * 2048, row_bytes);
    const ByteBuffer dst(row_bytes * 2048, std::byte{0xee});
    ByteBuffer expected = dst;
    apply(copy, src, expected);
    EXPECT_TRUE(result_of(*device_->prepare_copies({&copy, 1}), src, dst) == expected);
  }
}

TEST_F(CudaDeviceTest, PacksOfAllTypesAndAlignmentsEqualTheHosts) {
  const PackBatch batch = all_packs(1);
  const ByteBuffer src = random_bytes(batch.src_bytes, 2);
  const ByteBuffer dst(batch.dst_bytes, std::byte{0xee});
  ByteBuffer expected = dst;
  for (const PackPiece& piece : batch.pieces) apply(piece, src, expected);
  EXPECT_TRUE(result_of(*device_->prepare_packs(batch.pieces), src, dst) == expected);
}

TEST_F(CudaDeviceTest, EveryPatternOfSixteenBitsAndNeighboursOfEachAsFloatConvertsAsOnTheHost) {
  constexpr std::uint64_t kPatterns = 65536;
  std::vector<std::uint16_t> narrow(kPatterns);
  std::vector<std::uint32_t> wide;
  for (std::uint32_t i = 0; i < kPatterns; ++i) {
    narrow[i] = static_cast<std::uint16_t>(i);
    // Around each value of bf16 and the middle to the next; around those of f16 by the odd steps.
    for (const std::uint32_t low : {0x0U, 0x1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU, 0x1000U,
                                    0x0fffU, 0x1001U, 0x3000U, 0xdfffU, 0xe001U}) {
      wide.push_back(i << 16 | low);
    }
  }
  const auto check = [&](DType dst_dtype, DType src_dtype, ByteView src, std::uint64_t count) {
    PackPiece piece;
    piece.dst = 1;
    piece.dst_dtype = dst_dtype;
    piece.src_dtype = src_dtype;
    piece.count = count;
    const ByteBuffer dst(count * item_size(dst_dtype));
    ByteBuffer expected = dst;
    apply(piece, src, expected);
    EXPECT_TRUE(result_of(*device_->prepare_packs({&piece, 1}), src, dst) == expected)
        << bare_name(src_dtype) << " to " << bare_name(dst_dtype);
  };
  const ByteView small = std::as_bytes(std::span(narrow));
  const ByteView large = std::as_bytes(std::span(wide));
  check(DType::kBFloat16, DType::kFloat32, large, wide.size());
  check(DType::kFloat16, DType::kFloat32, large, wide.size());
  check(DType::kFloat32, DType::kBFloat16, small, kPatterns);
  check(DType::kFloat32, DType::kFloat16, small, kPatterns);
  check(DType::kFloat16, DType::kBFloat16, small, kPatterns);
  check(DType::kBFloat16, DType::kFloat16, small, kPatterns);
}

TEST_F(CudaDeviceTest, DigestsOfEveryShapeAndAlignmentEqualTheHosts) {
  const ByteBuffer bytes = random_bytes(4'000'000, 1);
  const std::vector<DigestItem> items = random_digests(2, 500, bytes.size());
  const Region region = filled(bytes);
  const auto batch = device_->prepare_digests(items);
  std::vector<std::uint64_t> sums(items.size(), 1);
  const Stream stream = create_stream(*device_);
  device_->launch_digests(stream.id(), *batch, std::array{region.id()}, sums);
  device_->synchronize(stream.id(), Deadline::never());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const DigestItem& item = items[i];
    EXPECT_EQ(sums[i], digest_of(item, bytes))
        << "items of " << item.item_bytes << ", " << item.rows << " x " << item.cols << ", pitch "
        << item.pitch << ", offset " << item.offset;
  }
}

TEST_F(CudaDeviceTest, ManyBindingsReachTheKernelThroughMemoryAndMayChange) {
  constexpr std::uint32_t kCount = 1000;
  std::vector<PackPiece> pieces(kCount);
  std::vector<RegionId> bindings(kCount + 1);
  std::vector<Region> sources;
  for (std::uint32_t i = 0; i < kCount; ++i) {
    pieces[i].src = i;
    pieces[i].dst = kCount;
    pieces[i].dst_offset = i;
    pieces[i].count = 1;
    pieces[i].dst_dtype = pieces[i].src_dtype = DType::kUInt8;
    sources.push_back(allocate(*device_, request(1)));
    put(*device_, sources.back().id(), counting(1, static_cast<int>(i % 251)));
    bindings[i] = sources.back().id();
  }
  const auto batch = device_->prepare_packs(pieces);
  const Stream first = create_stream(*device_), second = create_stream(*device_);
  const Region one = allocate(*device_, request(kCount)),
               other = allocate(*device_, request(kCount));
  for (int round = 0; round < 2; ++round) {  // the same addresses again, too
    bindings[kCount] = one.id();
    device_->launch(first.id(), *batch, bindings);
    bindings[kCount] = other.id();
    device_->launch(second.id(), *batch, bindings);
  }
  device_->synchronize(first.id(), Deadline::never());
  device_->synchronize(second.id(), Deadline::never());
  for (const RegionId region : {one.id(), other.id()}) {
    const ByteBuffer found = get(*device_, region, kCount);
    for (std::uint32_t i = 0; i < kCount; ++i) ASSERT_EQ(found[i], std::byte(i % 251)) << i;
  }
}

TEST_F(CudaDeviceTest, OneDigestBatchOnTwoStreamsAtATimeKeepsItsSumsApart) {
  const ByteBuffer bytes = random_bytes(10'000'000, 1), others = random_bytes(10'000'000, 2);
  const Region one = filled(bytes), other = filled(others);
  DigestItem item;
  item.rows = 1000;
  item.cols = 5000;
  item.pitch = 10'000;
  const auto batch = device_->prepare_digests({&item, 1});
  const Stream first = create_stream(*device_), second = create_stream(*device_);
  for (int i = 0; i < 20; ++i) {
    std::uint64_t sum = 0, other_sum = 0;
    device_->launch_digests(first.id(), *batch, std::array{one.id()}, {&sum, 1});
    device_->launch_digests(second.id(), *batch, std::array{other.id()}, {&other_sum, 1});
    device_->synchronize(second.id(), Deadline::never());
    device_->synchronize(first.id(), Deadline::never());
    ASSERT_EQ(sum, digest_of(item, bytes));
    ASSERT_EQ(other_sum, digest_of(item, others));
  }
}

TEST_F(CudaDeviceTest, HostCopiesLargerThanTheStagingArriveWhole) {
  const ByteBuffer bytes = random_bytes(21'000'001, 1);
  const Region region = filled(bytes);
  EXPECT_TRUE(get(*device_, region.id(), bytes.size()) == bytes);
}

TEST_F(CudaDeviceTest, SleepReturnsTheMemoryAndWakeTakesItAtTheSameAddress) {
  const Region region = allocate(*device_, request(4 * kGiB, RegionKind::kSleepable));
  const ByteBuffer bytes = random_bytes(1000, 1);
  for (const bool keep : {true, false}) {
    put(*device_, region.id(), bytes);
    void* address = device_->address_of(region.id());
    const std::uint64_t awake = device_->memory().free_bytes;
    device_->sleep("weights", keep);
    // The driver may have taken some for the tables of pinned memory.
    EXPECT_GE(device_->memory().free_bytes, awake + 4 * kGiB - 64 * kMiB);
    device_->wake("weights");
    EXPECT_LE(device_->memory().free_bytes, awake);
    EXPECT_EQ(device_->address_of(region.id()), address);
    if (keep) {
      EXPECT_EQ(get(*device_, region.id(), bytes.size()), bytes);
    }
  }
}

TEST_F(CudaDeviceTest, WakeWithoutMemoryFailsForAllRegionsAndMayBeRepeated) {
  const Region one = allocate(*device_, request(2 * kGiB, RegionKind::kSleepable));
  const Region other = allocate(*device_, request(2 * kGiB, RegionKind::kSleepable));
  put(*device_, one.id(), counting(100));
  device_->sleep("weights", true);
  {
    const Region taken = allocate(*device_, request(device_->memory().free_bytes - 3 * kGiB));
    const std::uint64_t free_bytes = device_->memory().free_bytes;
    const ErrorRecord record = failure_of([&] { device_->wake("weights"); });
    EXPECT_EQ(record.kind, ErrorKind::kOutOfMemory);
    EXPECT_EQ(record.subject, "weights");
    EXPECT_THAT(record.detail, testing::HasSubstr("cuMemCreate of 2147483648 bytes failed on CUDA "
                                                  "device 0 (cudaErrorMemoryAllocation)"));
    EXPECT_EQ(device_->memory().free_bytes, free_bytes) << "a part of the tag woke";
  }
  device_->wake("weights");
  EXPECT_EQ(get(*device_, one.id(), 100), counting(100));
}

TEST_F(CudaDeviceTest, AllocationsBeyondTheMemoryAreRefusedAndLeaveTheDeviceUsable) {
  for (const RegionKind kind :
       {RegionKind::kPlain, RegionKind::kExportable, RegionKind::kSleepable}) {
    for (const std::uint64_t bytes : {device_->memory().total_bytes, UINT64_MAX}) {
      const ErrorRecord record = failure_of([&] { allocate(*device_, request(bytes, kind)); });
      EXPECT_EQ(record.kind, ErrorKind::kOutOfMemory);
      EXPECT_EQ(record.remedy, Remedy::kRebuildRuntime);
      EXPECT_EQ(record.subject, kind == RegionKind::kSleepable ? "weights" : "allocation");
    }
  }
  const Region region = filled(counting(8));
  EXPECT_EQ(get(*device_, region.id(), 8), counting(8));
}

TEST_F(CudaDeviceTest, FreeMemoryIsTheReadingThatWasGiven) {
  CudaDeviceOptions options;
  options.free_memory = [] { return MemoryInfo{123, 456}; };
  CudaDevice device(clock_, options);
  EXPECT_EQ(device.memory().free_bytes, 123u);
  EXPECT_EQ(device.memory().total_bytes, 456u);
}

TEST_F(CudaDeviceTest, OwnExportIsRefusedAlsoAmongDevicesOfOneProcess) {
  const Region region = allocate(*device_, request(8, RegionKind::kExportable));
  const ByteBuffer handle = device_->export_region(region.id());
  CudaDevice other(clock_, {});
  const ErrorRecord record = failure_of([&] { other.import_region(handle); });
  EXPECT_EQ(record.kind, ErrorKind::kIpc);
  EXPECT_EQ(record.detail,
            "this process exported it itself, and CUDA IPC opens in other processes alone");
}

TEST_F(CudaDeviceTest, SynchronizeEndsAtItsDeadlineAndMayBeRepeated) {
  const Region large = allocate(*device_, request(kGiB));
  const Stream stream = create_stream(*device_);
  occupy(stream.id(), large.id());
  ByteBuffer into(4);
  device_->download(stream.id(), large.id(), 0, into);
  const ErrorRecord record =
      failure_of([&] { device_->synchronize(stream.id(), Deadline::at(clock_.now())); });
  EXPECT_EQ(record.kind, ErrorKind::kTimeout);
  EXPECT_EQ(record.subject, "stream");
  device_->synchronize(stream.id(), Deadline::never());
  EXPECT_EQ(into, ByteBuffer(4, std::byte{199}));
}

TEST_F(CudaDeviceTest, DestroyedStreamDropsItsDownloadsAndMemoryIsFreedOnceItsWorkIsDone) {
  const std::uint64_t before = device_->memory().free_bytes;
  Region large = allocate(*device_, request(kGiB));
  ByteBuffer into(4, std::byte{0x11});
  {
    const Stream stream = create_stream(*device_);
    occupy(stream.id(), large.id());
    device_->download(stream.id(), large.id(), 0, into);
  }
  large.reset();
  EXPECT_EQ(into, ByteBuffer(4, std::byte{0x11}));
  const Deadline deadline = Deadline::after(clock_, std::chrono::seconds(30));
  while (device_->memory().free_bytes < before && !deadline.passed(clock_.now())) {
  }
  EXPECT_GE(device_->memory().free_bytes, before);
  EXPECT_EQ(into, ByteBuffer(4, std::byte{0x11}));
}

TEST_F(CudaDeviceTest, EndOfADeviceWithPendingWorkDoesNotWaitForIt) {
  const RegionId large = device_->allocate(request(kGiB));
  const StreamId stream = device_->create_stream();
  occupy(stream, large);
  device_.reset();
  device_ = std::make_unique<CudaDevice>(clock_, CudaDeviceOptions{});
  const Region region = filled(counting(8));
  EXPECT_EQ(get(*device_, region.id(), 8), counting(8));
}

TEST_F(CudaDeviceTest, CyclesOfEverythingLeaveNoMemory) {
  const auto cycle = [&] {
    CudaDeviceOptions options;
    options.export_kind = CudaExportKind::kVmmFd;
    CudaDevice actor(clock_, options), worker(clock_, options);
    const Region plain = allocate(actor, request(kMiB));
    const Region sleepable = allocate(worker, request(kMiB, RegionKind::kSleepable));
    worker.sleep("weights", true);
    worker.wake("weights");
    Region region = allocate(actor, request(kMiB, RegionKind::kExportable));
    const Import import(worker, worker.import_region(actor.export_region(region.id())).region);
    const auto batch = actor.prepare_digests(random_digests(1, 10, kMiB));
    std::array<std::uint64_t, 10> sums{};
    const Stream stream = create_stream(actor);
    actor.launch_digests(stream.id(), *batch, std::array{plain.id()}, sums);
    actor.synchronize(stream.id(), Deadline::never());
    actor.allocate(request(kMiB, RegionKind::kExportable));  // the destructor's
  };
  cycle();
  const std::uint64_t before = device_->memory().free_bytes;
  for (int i = 0; i < 50; ++i) cycle();
  EXPECT_EQ(device_->memory().free_bytes, before);
}

}  // namespace
}  // namespace tpsync::device
