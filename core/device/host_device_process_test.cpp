// Host devices of several real processes: what they share, what each refuses of the others, and
// what is left when one of them is killed. Peers are host_device_process_test_child.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "tpsync/base/errors.h"
#include "tpsync/base/testing/temporary_folder.h"
#include "tpsync/device/handles.h"
#include "tpsync/device/host_device.h"
#include "tpsync/device/testing/device_peer.h"
#include "tpsync/device/testing/hex.h"

namespace tpsync::device {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;

constexpr std::uint64_t kTotal = 1000;

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

AllocationRequest request(std::uint64_t bytes, RegionKind kind = RegionKind::kPlain) {
  AllocationRequest result;
  result.bytes = bytes;
  result.kind = kind;
  if (kind == RegionKind::kSleepable) result.tag = "weights";
  return result;
}

class HostDeviceProcesses : public testing::Test, protected DevicePeers {
 protected:
  using Peer = DevicePeer;

  HostDeviceProcesses() {
    memory_->add_device("device-0", kTotal);
    memory_->add_device("device-1", kTotal);
    own_ = std::make_unique<HostDevice>(*memory_, HostDeviceOptions{"device-0"});
  }

  Peer start() { return DevicePeers::start(TPSYNC_TEST_CHILD); }
  Peer join(const std::string& uuid = "device-0") {
    Peer peer = start();
    EXPECT_EQ(ask(peer, "open " + memory_->path() + " " + uuid), "ok ");
    return peer;
  }

  void put(RegionId region, std::byte value) {
    const Stream stream = create_stream(*own_);
    own_->fill(stream.id(), region, 0, 1, value);
    own_->synchronize(stream.id(), Deadline::never());
  }
  std::byte first_byte(RegionId region) {
    std::byte value{};
    const Stream stream = create_stream(*own_);
    own_->download(stream.id(), region, 0, {&value, 1});
    own_->synchronize(stream.id(), Deadline::never());
    return value;
  }
  std::uint64_t free_bytes() { return own_->memory().free_bytes; }
  Region exportable(std::uint64_t bytes) {
    return allocate(*own_, request(bytes, RegionKind::kExportable));
  }

  std::unique_ptr<HostMemory> memory_ = HostMemory::create();
  std::unique_ptr<HostDevice> own_;
};

TEST_F(HostDeviceProcesses, ImportSeesWhatTheOtherProcessWritesLaterInBothDirections) {
  Peer worker = join();
  const Region region = exportable(8);
  const std::string handle = to_hex(own_->export_region(region.id()));
  put(region.id(), std::byte{1});
  const std::string answer = ask(worker, "import " + handle);
  EXPECT_THAT(answer, MatchesRegex("ok [0-9]+ 8 device-0"));
  const std::string import = answer.substr(3, answer.find(' ', 3) - 3);
  EXPECT_EQ(get(worker, "read " + import), "1");
  put(region.id(), std::byte{2});
  EXPECT_EQ(get(worker, "read " + import), "2");
  EXPECT_EQ(ask(worker, "write " + import + " 3"), "ok ");
  EXPECT_EQ(first_byte(region.id()), std::byte{3});
  EXPECT_EQ(get(worker, "import " + handle), import) << "a second import is the same mapping";
  EXPECT_EQ(memory_->open_imports(), 1u);
  EXPECT_EQ(ask(worker, "close " + import), "ok ");
  EXPECT_EQ(memory_->open_imports(), 0u);
}

TEST_F(HostDeviceProcesses, ImportNamesTheDeviceBehindIt) {
  Peer worker = join("device-1");
  const Region region = exportable(8);
  EXPECT_THAT(ask(worker, "import " + to_hex(own_->export_region(region.id()))),
              MatchesRegex("ok [0-9]+ 8 device-0"));
}

TEST_F(HostDeviceProcesses, ImportOfAKilledExporterStaysReadableAndChargedUntilItIsClosed) {
  Peer actor = join();
  const std::string region = get(actor, "allocate 600 exportable");
  const std::string text = get(actor, "export " + region);
  EXPECT_EQ(ask(actor, "write " + region + " 7"), "ok ");
  EXPECT_EQ(ask(actor, "write " + region + " 9"), "ok ");
  const ByteBuffer handle = from_hex(text);
  Import import(*own_, own_->import_region(handle).region);
  kill(actor);
  EXPECT_EQ(first_byte(import.id()), std::byte{9});
  EXPECT_EQ(memory_->live_exports(), 0u);
  EXPECT_EQ(free_bytes(), kTotal - 600);
  HostDevice late(*memory_, {"device-0"});
  const ErrorRecord record = failure_of([&] { late.import_region(handle); });
  EXPECT_EQ(record.kind, ErrorKind::kIpc);
  EXPECT_EQ(record.detail, "the export is gone, or the handle was altered");
  import.reset();
  EXPECT_EQ(free_bytes(), kTotal);
}

TEST_F(HostDeviceProcesses, HandleThatIsAlteredInAnyFieldOpensNothing) {
  Peer worker = join();
  const Region region = exportable(8);
  const Region decoy = exportable(8);
  const ByteBuffer handle = own_->export_region(region.id());
  const ByteBuffer other = own_->export_region(decoy.id());
  constexpr std::size_t kFieldBytes = 8;
  ASSERT_EQ(handle.size() % kFieldBytes, 0u);
  for (std::size_t field = 0; field < handle.size(); field += kFieldBytes) {
    ByteBuffer altered = handle;
    altered[field] ^= std::byte{1};
    EXPECT_THAT(ask(worker, "import " + to_hex(altered)),
                StartsWith(field == 0 ? "error protocol import" : "error ipc import"));
    // Another export's field in its place: valid by itself, but not with the rest.
    ByteBuffer mixed = handle;
    std::copy_n(other.begin() + static_cast<std::ptrdiff_t>(field), kFieldBytes,
                mixed.begin() + static_cast<std::ptrdiff_t>(field));
    const std::string answer = ask(worker, "import " + to_hex(mixed));
    if (mixed == handle) {
      EXPECT_THAT(answer, StartsWith("ok "));
      EXPECT_EQ(ask(worker, "close " + answer.substr(3, answer.find(' ', 3) - 3)), "ok ");
    } else {
      EXPECT_THAT(answer, StartsWith("error ipc import"));
    }
  }
  EXPECT_EQ(memory_->open_imports(), 0u);
}

TEST_F(HostDeviceProcesses, RevokedAndFreedExportsOpenNoMore) {
  Peer worker = join();
  Region region = exportable(8);
  const std::string first = to_hex(own_->export_region(region.id()));
  own_->revoke_export(region.id());
  EXPECT_THAT(ask(worker, "import " + first), StartsWith("error ipc import: the export is gone"));
  const std::string second = to_hex(own_->export_region(region.id()));
  EXPECT_THAT(ask(worker, "import " + first), StartsWith("error ipc import: the export is gone"));
  EXPECT_THAT(ask(worker, "import " + second), StartsWith("ok "));
  region.reset();
  EXPECT_THAT(ask(worker, "import " + second), StartsWith("error ipc import: the export is gone"));
}

TEST_F(HostDeviceProcesses, DescriptorThatStandsForAnotherFileIsRefused) {
  Peer actor = join();
  Peer worker = join();
  const std::string region = get(actor, "allocate 8 exportable");
  const std::string handle = get(actor, "export " + region);
  EXPECT_EQ(ask(actor, "replace-descriptor"), "ok ");
  EXPECT_THAT(ask(worker, "import " + handle),
              MatchesRegex("error ipc import: descriptor [0-9]+ of process [0-9]+ is no longer the "
                           "export.*"));
  EXPECT_EQ(memory_->open_imports(), 0u);
}

TEST_F(HostDeviceProcesses, ImportByAnotherUserIsRefusedAndSaysWhatToDo) {
  Peer worker = join();
  if (ask(worker, "become-nobody") != "ok ") GTEST_SKIP() << "only root may change its user";
  const Region region = exportable(8);
  const std::string answer = ask(worker, "import " + to_hex(own_->export_region(region.id())));
  EXPECT_THAT(answer, StartsWith("error ipc import: opening the export of process "));
  EXPECT_THAT(answer, HasSubstr("is not permitted (EACCES): run exporter and importer as the same "
                                "user"));
  EXPECT_EQ(memory_->open_imports(), 0u);
}

TEST_F(HostDeviceProcesses, ExportOfAnotherAccountIsGone) {
  const auto elsewhere = HostMemory::create();
  elsewhere->add_device("device-0", kTotal);
  HostDevice stranger(*elsewhere, {"device-0"});
  const RegionId region = stranger.allocate(request(8, RegionKind::kExportable));
  const ByteBuffer handle = stranger.export_region(region);
  EXPECT_EQ(failure_of([&] { own_->import_region(handle); }).kind, ErrorKind::kIpc);
}

TEST_F(HostDeviceProcesses, AllocationInOneProcessIsMissingInAnother) {
  Peer other = join();
  const std::string region = get(other, "allocate 600");
  EXPECT_EQ(free_bytes(), 400u);
  EXPECT_EQ(get(other, "memory"), "400");
  const ErrorRecord record = failure_of([&] { allocate(*own_, request(401)); });
  EXPECT_EQ(record.kind, ErrorKind::kOutOfMemory);
  EXPECT_EQ(record.detail, "401 bytes are needed and 400 of 1000 are free on device device-0");
  {
    const Region rest = allocate(*own_, request(400));
    EXPECT_EQ(ask(other, "allocate 1 exportable"),
              "error out of memory allocation: 1 bytes are needed and 0 of 1000 are free on device "
              "device-0");
  }
  EXPECT_EQ(ask(other, "free " + region), "ok ");
  EXPECT_EQ(free_bytes(), kTotal);
}

TEST_F(HostDeviceProcesses, WakeFailsWhileAnotherProcessHoldsTheMemory) {
  Peer other = join();
  const Region region = allocate(*own_, request(600, RegionKind::kSleepable));
  put(region.id(), std::byte{5});
  own_->sleep("weights", true);
  const std::string taken = get(other, "allocate 600");
  EXPECT_EQ(failure_of([&] { own_->wake("weights"); }).kind, ErrorKind::kOutOfMemory);
  EXPECT_EQ(ask(other, "free " + taken), "ok ");
  own_->wake("weights");
  EXPECT_EQ(first_byte(region.id()), std::byte{5});
}

TEST_F(HostDeviceProcesses, KilledProcessLeavesNoCharges) {
  for (const bool asked : {true, false}) {
    Peer other = join();
    get(other, "allocate 300");
    get(other, "export " + get(other, "allocate 600 exportable"));
    EXPECT_EQ(memory_->live_exports(), 1u);
    kill(other);
    if (asked) {
      EXPECT_EQ(free_bytes(), kTotal);
    }
    const Region all = allocate(*own_, request(kTotal));  // finds it without having been asked
    EXPECT_EQ(memory_->live_exports(), 0u);
  }
}

TEST_F(HostDeviceProcesses, KilledImporterLeavesNoImport) {
  Peer worker = join();
  Region region = exportable(600);
  get(worker, "import " + to_hex(own_->export_region(region.id())));
  region.reset();
  EXPECT_EQ(memory_->open_imports(), 1u);
  EXPECT_EQ(free_bytes(), kTotal - 600) << "the import holds what its owner freed";
  kill(worker);
  EXPECT_EQ(memory_->open_imports(), 0u);
  EXPECT_EQ(free_bytes(), kTotal);
}

TEST_F(HostDeviceProcesses, UsersOfOneAccountNeverGetMoreThanThereIs) {
  std::vector<Peer> peers;
  for (int i = 0; i < 4; ++i) peers.push_back(join());
  const TemporaryFolder folder;
  // Of 1000 bytes: one has room.
  for (Peer& peer : peers) tell(peer, "hammer 2000 600 1 " + folder.path().string());
  for (Peer& peer : peers) EXPECT_THAT(answer_of(peer), MatchesRegex("ok [0-9]+"));
  EXPECT_EQ(free_bytes(), kTotal);
}

TEST_F(HostDeviceProcesses, AccountStaysUsableWhereverItsUsersAreKilled) {
  for (int round = 0; round < 10; ++round) {
    std::vector<Peer> peers;
    for (int i = 0; i < 2; ++i) peers.push_back(join());
    const TemporaryFolder folder;
    for (Peer& peer : peers) tell(peer, "hammer 100000000 100 9 " + folder.path().string());
    for (int i = 0; i < 50; ++i) allocate(*own_, request(100));
    for (Peer& peer : peers) kill(peer);
    EXPECT_EQ(free_bytes(), kTotal);
  }
}

TEST_F(HostDeviceProcesses, OpenedAccountOutlivesItsMakerAndEndsWithItsLastUser) {
  Peer maker_of_nothing = join();
  const std::string path = memory_->path();
  own_.reset();
  memory_.reset();
  EXPECT_EQ(get(maker_of_nothing, "memory"), "1000");
  Peer late = start();
  EXPECT_THAT(ask(late, "open " + path + " device-0"),
              MatchesRegex("error invalid configuration memory account: '" + path + "' .*"));
}

// ---- the account's file -------------------------------------------------------------------------

class AccountFile : public testing::Test {
 protected:
  std::string path() const { return folder_.path() / "account"; }
  static void expect_refused(const std::string& path) {
    const ErrorRecord record = failure_of([&] { HostMemory::open(path); });
    EXPECT_EQ(record.kind, ErrorKind::kInvalidConfig);
    EXPECT_EQ(record.remedy, Remedy::kFixInput);
    EXPECT_EQ(record.subject, "memory account");
    EXPECT_THAT(record.detail, HasSubstr(path));
  }
  TemporaryFolder folder_;
};

TEST_F(AccountFile, IsSharedByPathAndRemovedByItsMaker) {
  auto made = HostMemory::create(path());
  made->add_device("device-0", kTotal);
  {
    const auto opened = HostMemory::open(path());
    HostDevice one(*made, {"device-0"});
    HostDevice other(*opened, {"device-0"});
    const Region region = allocate(other, request(600));
    EXPECT_EQ(one.memory().free_bytes, 400u);
    EXPECT_EQ(failure_of([&] { opened->add_device("device-1", 1); }).kind,
              ErrorKind::kInvalidState);
  }
  EXPECT_TRUE(std::filesystem::exists(path())) << "whoever opened it removes nothing";
  EXPECT_EQ(failure_of([&] { HostMemory::create(path()); }).kind, ErrorKind::kInvalidConfig);
  made.reset();
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(AccountFile, AnotherFileInItsPlaceIsLeftAlone) {
  auto made = HostMemory::create(path());
  std::filesystem::remove(path());
  std::ofstream(path()) << "another";
  made.reset();
  EXPECT_TRUE(std::filesystem::exists(path()));
}

TEST_F(AccountFile, CannotBeMadeInAFolderThatIsNotThere) {
  EXPECT_EQ(failure_of([&] { HostMemory::create(folder_.path() / "none" / "account"); }).kind,
            ErrorKind::kInvalidConfig);
}

TEST_F(AccountFile, WrongTruncatedAndForeignFilesAreRefused) {
  expect_refused(path());          // nothing there
  expect_refused(folder_.path());  // a folder
  expect_refused("/dev/null");
  std::ofstream(path()) << "text";
  expect_refused(path());
  std::filesystem::remove(path());
  std::string content;
  {
    const auto made = HostMemory::create(path());
    std::ifstream file(path(), std::ios::binary);
    content.assign(std::istreambuf_iterator<char>(file), {});
  }
  const auto write = [&](const std::string& text) {
    std::ofstream(path(), std::ios::binary) << text;
  };
  write(content);
  EXPECT_NO_THROW(HostMemory::open(path()));
  write(content.substr(0, content.size() - 1));
  expect_refused(path());
  write(content + "x");
  expect_refused(path());
  for (const std::size_t place : {0, 8, 16}) {  // mark, size, process namespace
    std::string altered = content;
    altered[place] = static_cast<char>(altered[place] ^ 1);
    write(altered);
    expect_refused(path());
  }
}

// ---- nothing is left ----------------------------------------------------------------------------

struct Footprint {
  std::ptrdiff_t descriptors = 0;
  std::ptrdiff_t mappings = 0;
  std::ptrdiff_t memory_files = 0;
  std::int64_t pages = 0;     // of address space
  std::int64_t resident = 0;  // pages
};

Footprint footprint() {
  Footprint found;
  using std::filesystem::directory_iterator;
  found.descriptors = std::distance(directory_iterator("/proc/self/fd"), directory_iterator());
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line); ++found.mappings) {
    found.memory_files += line.find("/memfd:tpsync") != std::string::npos ? 1 : 0;
  }
  std::ifstream("/proc/self/statm") >> found.pages >> found.resident;
  return found;
}

TEST(HostDeviceFootprint, CyclesOfEverythingLeaveNoDescriptorMappingOrMemory) {
  constexpr std::uint64_t kBytes = 1 << 20;
  constexpr std::int64_t kPageBytes = 4096;
  HostMemory memory;
  memory.add_device("device-0", 8 * kBytes);
  const auto cycle = [&] {
    HostDevice actor(memory, {"device-0"});
    HostDevice worker(memory, {"device-0"});
    const Region plain = allocate(actor, request(kBytes));
    const Region sleepable = allocate(worker, request(kBytes, RegionKind::kSleepable));
    worker.sleep("weights", true);
    worker.wake("weights");
    Region region = allocate(actor, request(kBytes, RegionKind::kExportable));
    const Import import(worker, worker.import_region(actor.export_region(region.id())).region);
    EXPECT_THROW(worker.allocate(request(8 * kBytes)), RuntimeBroken);
    actor.allocate(request(kBytes, RegionKind::kExportable));  // the destructor's
  };
  cycle();
  const Footprint before = footprint();
  for (int i = 0; i < 100; ++i) cycle();
  const Footprint after = footprint();
  EXPECT_EQ(after.descriptors, before.descriptors);
  EXPECT_EQ(after.memory_files, before.memory_files);
  // A leak is one a cycle; a sanitizer's own mappings come and go.
  EXPECT_LT(after.mappings, before.mappings + 50);
  EXPECT_LT(after.pages, before.pages + 50 * static_cast<std::int64_t>(kBytes) / kPageBytes);
  HostDevice last(memory, {"device-0"});
  EXPECT_EQ(last.memory().free_bytes, 8 * kBytes);
}

TEST(HostDeviceFootprint, SleepReallyGivesPagesBackAndWakeTakesThemAgain) {
  constexpr std::uint64_t kBytes = 64 << 20;
  constexpr std::int64_t kMostOfIt = (kBytes - (kBytes >> 3)) / 4096;
  HostMemory memory;
  memory.add_device("device-0", kBytes);
  HostDevice device(memory, {"device-0"});
  const Region region = allocate(device, request(kBytes, RegionKind::kSleepable));
  const std::int64_t awake = footprint().resident;
  device.sleep("weights", false);
  const std::int64_t asleep = footprint().resident;
  EXPECT_GT(awake - asleep, kMostOfIt);
  device.wake("weights");
  EXPECT_GT(footprint().resident - asleep, kMostOfIt);
}

}  // namespace
}  // namespace tpsync::device
