// CUDA devices of several real processes: what they share by either kind of export, what each
// refuses, and what is left when one of them is killed. Peers are
// cuda_device_process_test_child.cpp. Skipped where there is no device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>

#include "tpsync/base/errors.h"
#include "tpsync/device/cuda_device.h"
#include "tpsync/device/cuda_exports.h"
#include "tpsync/device/handles.h"
#include "tpsync/device/testing/device_peer.h"
#include "tpsync/device/testing/hex.h"

namespace tpsync::device {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;

// All devices are opened by peers: this process only counts them.
class CudaDeviceProcesses : public testing::TestWithParam<std::string>, protected DevicePeers {
 protected:
  using Peer = DevicePeer;

  void SetUp() override {
    const CudaDevices found = find_cuda_devices();
    if (found.count == 0) GTEST_SKIP() << found.reason;
    devices_ = found.count;
  }
  Peer join(int ordinal = 0) {
    Peer peer = start(TPSYNC_CUDA_TEST_CHILD);
    uuid_ = get(peer, "open " + std::to_string(ordinal) + " " + GetParam());
    return peer;
  }
  std::string first_of(const std::string& answer) {
    return answer.substr(3, answer.find(' ', 3) - 3);
  }
  // What a driver does where nothing of ours depends on it.
  void record(const std::string& what, const std::string& answer) {
    RecordProperty(what, answer);
    std::cout << "[ RECORDED ] " << what << ": " << answer << "\n";
  }
  std::uint64_t free_bytes(Peer& peer) { return std::stoull(get(peer, "memory")); }

  int devices_ = 0;
  std::string uuid_;  // of the device opened last
};

INSTANTIATE_TEST_SUITE_P(By, CudaDeviceProcesses, testing::Values("cuda_ipc", "vmm_fd"),
                         [](const auto& information) { return information.param; });

TEST_P(CudaDeviceProcesses, ImportSeesWhatTheOtherProcessWritesLaterInBothDirections) {
  Peer actor = join(), worker = join();
  const std::string region = get(actor, "allocate 3000000 exportable");
  const std::string handle = get(actor, "export " + region);
  get(actor, "write " + region + " 1");
  const std::string answer = ask(worker, "import " + handle);
  EXPECT_THAT(answer, MatchesRegex("ok [0-9]+ 3000000 " + uuid_));
  const std::string import = first_of(answer);
  EXPECT_EQ(get(worker, "read " + import), "1");
  ask(actor, "write " + region + " 2");
  EXPECT_EQ(get(worker, "read " + import), "2");
  EXPECT_EQ(ask(worker, "write " + import + " 3"), "ok ");
  EXPECT_EQ(get(actor, "read " + region), "3");
  EXPECT_EQ(get(worker, "import " + handle), import) << "a second import is the same mapping";
  EXPECT_EQ(ask(worker, "close " + import), "ok ");
  const std::string again = get(worker, "import " + handle);
  EXPECT_EQ(get(worker, "read " + again), "3");
}

TEST_P(CudaDeviceProcesses, ManyRegionsAreOpenedEachWithItsOwnBytes) {
  Peer actor = join(), worker = join();
  for (int i = 0; i < 20; ++i) {
    const std::string region = get(actor, "allocate 100 exportable");
    ask(actor, "write " + region + " " + std::to_string(i));
    const std::string import = get(worker, "import " + get(actor, "export " + region));
    EXPECT_EQ(get(worker, "read " + import), std::to_string(i));
  }
}

// What is passed on as descriptors may be made of pieces; nobody sees where one ends.
TEST_P(CudaDeviceProcesses, ALargeRegionIsWholeInItsImporter) {
  Peer actor = join(), worker = join();
  const std::uint64_t before = free_bytes(worker);
  const std::uint64_t piece = cuda::kPieceUnit;
  const std::string region =
      get(actor, "allocate " + std::to_string(2 * piece + 100) + " exportable");
  int value = 0;
  std::vector<std::uint64_t> offsets = {0,         piece - 1,     piece, 2 * piece - 1,
                                        2 * piece, 2 * piece + 99};
  for (const std::uint64_t offset : offsets) {
    EXPECT_EQ(ask(actor, fmt::format("write {} {} {}", region, ++value, offset)), "ok ");
  }
  const std::string handle = get(actor, "export " + region);
  const std::string answer = ask(worker, "import " + handle);
  EXPECT_THAT(answer, MatchesRegex(fmt::format("ok [0-9]+ {} {}", 2 * piece + 100, uuid_)));
  value = 0;
  for (const std::uint64_t offset : offsets) {
    EXPECT_EQ(get(worker, fmt::format("read {} {}", first_of(answer), offset)),
              std::to_string(++value));
  }
  EXPECT_EQ(ask(worker, "close " + first_of(answer)), "ok ");
  EXPECT_EQ(ask(actor, "free " + region), "ok ");
  EXPECT_GE(free_bytes(worker) + piece, before) << "but for what the driver keeps of its own";
}

TEST_P(CudaDeviceProcesses, RevokedFreedAndAlteredExportsOpenNoMore) {
  Peer actor = join(), worker = join();
  const std::string region = get(actor, "allocate 8 exportable");
  const std::string first = get(actor, "export " + region);
  ask(actor, "revoke " + region);
  EXPECT_THAT(ask(worker, "import " + first), StartsWith("error ipc import: the export is gone"));
  const std::string second = get(actor, "export " + region);
  EXPECT_THAT(ask(worker, "import " + first), StartsWith("error ipc import: the export is gone"));
  ByteBuffer altered = from_hex(second);
  altered.back() ^= std::byte{1};
  EXPECT_THAT(ask(worker, "import " + to_hex(altered)),
              StartsWith("error ipc import: the export is gone"));
  EXPECT_THAT(ask(worker, "import " + second.substr(2)), StartsWith("error protocol import"));
  const std::string import = get(worker, "import " + second);
  ask(worker, "close " + import);
  ask(actor, "free " + region);
  EXPECT_THAT(ask(worker, "import " + second), StartsWith("error ipc import: the export is gone"));
}

TEST_P(CudaDeviceProcesses, DriverAloneIsAskedForOpenFreedAndReplacedExports) {
  if (GetParam() != "cuda_ipc") GTEST_SKIP() << "the driver's handle is a descriptor";
  Peer actor = join(), worker = join();
  std::string region = get(actor, "allocate 3000000 exportable");
  const std::string handle = get(actor, "export " + region);
  EXPECT_EQ(get(worker, "driver-opens " + handle), "cudaSuccess");
  const std::string import = get(worker, "import " + handle);
  record("driver_opens_once_more", get(worker, "driver-opens " + handle));
  ask(worker, "close " + import);
  ask(actor, "free " + region);
  record("driver_opens_freed_export", get(worker, "driver-opens " + handle));
  get(actor, "allocate 3000000 exportable");
  record("driver_opens_replaced_export", get(worker, "driver-opens " + handle));
  kill(actor);
  record("driver_opens_export_of_killed", get(worker, "driver-opens " + handle));
}

TEST_P(CudaDeviceProcesses, ExportOfAKilledExporterIsGoneAndItsMemoryReturns) {
  Peer worker = join();
  const std::uint64_t before = free_bytes(worker);
  Peer actor = join();
  const std::string handle = get(actor, "export " + get(actor, "allocate 4294967296 exportable"));
  kill(actor);
  EXPECT_THAT(ask(worker, "import " + handle), StartsWith("error ipc import: the export is gone"));
  OsClock clock;
  const Deadline deadline = Deadline::after(clock, std::chrono::seconds(10));
  while (free_bytes(worker) < before && !deadline.passed(clock.now())) {
  }
  EXPECT_GE(free_bytes(worker), before);
}

TEST_P(CudaDeviceProcesses, ImportOfAKilledExporterStaysReadableUntilItIsClosed) {
  Peer worker = join(), actor = join();
  const std::string region = get(actor, "allocate 3000000 exportable");
  ask(actor, "write " + region + " 9");
  const std::string import = get(worker, "import " + get(actor, "export " + region));
  kill(actor);
  EXPECT_EQ(get(worker, "read " + import), "9");
  EXPECT_EQ(ask(worker, "close " + import), "ok ");
  const std::string own = get(worker, "allocate 8");
  EXPECT_EQ(ask(worker, "write " + own + " 4"), "ok ");
  EXPECT_EQ(get(worker, "read " + own), "4");
}

TEST_P(CudaDeviceProcesses, KilledImporterLeavesTheExporterUntouched) {
  Peer actor = join(), worker = join();
  const std::string region = get(actor, "allocate 3000000 exportable");
  const std::string handle = get(actor, "export " + region);
  const std::string import = get(worker, "import " + handle);
  ask(worker, "write " + import + " 5");
  kill(worker);
  EXPECT_EQ(get(actor, "read " + region), "5");
  Peer late = join();
  EXPECT_EQ(get(late, "read " + get(late, "import " + handle)), "5");
}

TEST_P(CudaDeviceProcesses, LostContextIsNamedByEveryLaterCallAndHarmsNoOtherProcess) {
  Peer broken = join(), other = join();
  const std::string region = get(other, "allocate 8");
  const std::string first = ask(broken, "break-context");
  EXPECT_THAT(first, HasSubstr("error device CUDA device 0: the context of this process is lost "
                               "since cudaStreamQuery failed (cudaErrorIllegalAddress)"));
  EXPECT_EQ(ask(broken, "allocate 8"), first);
  EXPECT_EQ(ask(broken, "memory").substr(0, 12), "error device");
  EXPECT_EQ(ask(other, "write " + region + " 4"), "ok ");
  EXPECT_EQ(get(other, "read " + region), "4");
}

TEST_P(CudaDeviceProcesses, ImportByAnotherUserIsRefusedAndSaysWhatToDo) {
  Peer actor = join(), worker = join();
  if (ask(worker, "become-nobody") != "ok ") GTEST_SKIP() << "only root may change its user";
  const std::string handle = get(actor, "export " + get(actor, "allocate 8 exportable"));
  const std::string answer = ask(worker, "import " + handle);
  EXPECT_THAT(answer, StartsWith("error ipc import: opening the export of process "));
  EXPECT_THAT(answer, HasSubstr("run exporter and importer as the same user"));
}

TEST_P(CudaDeviceProcesses, ImportOfAnotherDevicesExportNamesThatDevice) {
  if (devices_ < 2) GTEST_SKIP() << "needs two CUDA devices";
  Peer actor = join(1);
  const std::string foreign = uuid_;
  Peer worker = join(0);
  ASSERT_NE(foreign, uuid_);
  const std::string region = get(actor, "allocate 3000000 exportable");
  ask(actor, "write " + region + " 6");
  const std::string answer = ask(worker, "import " + get(actor, "export " + region));
  ASSERT_THAT(answer, MatchesRegex("ok [0-9]+ 3000000 " + foreign));
  EXPECT_EQ(get(worker, "read " + first_of(answer)), "6");
  record("driver_names_for_another_devices_export", ask(worker, "driver-says " + first_of(answer)));
}

}  // namespace
}  // namespace tpsync::device
