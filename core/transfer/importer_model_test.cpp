// The importer and the device's counters against a model: exports that come and go, handles of any
// of them, whole or altered, asked for in any order.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
#include <ostream>

#include "core/base/testing/seeded_check.h"
#include "tpsync/base/errors.h"
#include "tpsync/device/forwarding_device.h"
#include "tpsync/device/host_device.h"
#include "tpsync/transfer/importer.h"

namespace tpsync::transfer {
namespace {

constexpr std::size_t kSlots = 3;  // of exports, the last one on another device
constexpr std::uint64_t kSizes[] = {64, 128, 4096};

struct Slot {
  bool live = false;
  std::uint64_t bytes = 0;
  std::uint64_t serial = 0;  // of what was exported; a handle names it for ever
};

struct Model {
  std::array<Slot, kSlots> slots;
  std::uint64_t exported = 0;
  std::optional<Slot> open;  // as it was when it was opened
  std::uint64_t imports = 0;
  std::uint64_t closes = 0;
};

class CountingDevice final : public device::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  device::ImportedRegion import_region(ByteView handle) override {
    const device::ImportedRegion region = ForwardingDevice::import_region(handle);
    ++imports;
    return region;
  }
  void close_import(device::RegionId region) noexcept override {
    ++closes;
    ForwardingDevice::close_import(region);
  }
  std::uint64_t imports = 0;  // that were opened
  std::uint64_t closes = 0;
};

struct Sut {
  struct Export {
    device::RegionId region{};
    ByteBuffer handle;
  };
  device::HostMemory memory;
  std::unique_ptr<device::HostDevice> actor, foreign, worker;
  std::unique_ptr<CountingDevice> counted;
  std::unique_ptr<Importer> importer;
  std::array<Export, kSlots> exports;

  Sut() {
    memory.add_device("gpu-0", 1 << 20);
    memory.add_device("gpu-1", 1 << 20);
    const auto make = [this](const char* uuid) {
      return std::make_unique<device::HostDevice>(
          memory, device::HostDeviceOptions{uuid, device::Landing::kAtLaunch});
    };
    actor = make("gpu-0");
    foreign = make("gpu-1");
    worker = make("gpu-0");
    counted = std::make_unique<CountingDevice>(*worker);
    importer = std::make_unique<Importer>(*counted);
  }
  device::HostDevice& owner(std::size_t slot) { return slot + 1 == kSlots ? *foreign : *actor; }
};

enum class Action : std::uint8_t { kExport, kFree, kOpen, kOpenAltered, kOpenWithout, kRelease };
enum class Result : std::uint8_t { kOk, kMismatch, kIpc, kProtocolOrIpc };

struct Outcome {
  Result result = Result::kOk;
  std::uint64_t released = 0;
  Model next;
};

Outcome expected_of(const Model& model, Action action, std::size_t slot, std::uint64_t bytes) {
  Outcome outcome{.result = Result::kOk, .released = 0, .next = model};
  Model& next = outcome.next;
  Slot& at = next.slots[slot];
  const auto close = [&next] {
    if (next.open) ++next.closes;
    next.open.reset();
  };
  const auto is_open = [&] { return model.open && model.open->serial == at.serial; };
  switch (action) {
    case Action::kExport:
      at = {true, bytes, ++next.exported};
      break;
    case Action::kFree:
      at.live = false;
      break;
    case Action::kRelease:
      outcome.released = model.open ? 1 : 0;
      close();
      break;
    case Action::kOpenWithout:
      close();
      outcome.result = Result::kMismatch;
      break;
    case Action::kOpenAltered:
      close();
      outcome.result = Result::kProtocolOrIpc;
      break;
    case Action::kOpen:
      if (!is_open()) {
        close();
        if (!at.live) {
          outcome.result = Result::kIpc;
          break;
        }
        ++next.imports;
        next.open = at;
        if (slot + 1 == kSlots) {
          close();
          outcome.result = Result::kMismatch;
          break;
        }
      }
      if (next.open->bytes < bytes) {
        close();
        outcome.result = Result::kMismatch;
      }
      break;
  }
  return outcome;
}

class Step final : public rc::state::Command<Model, Sut> {
 public:
  Step()
      : action_(*rc::gen::weightedElement<Action>({{3, Action::kExport},
                                                   {2, Action::kFree},
                                                   {6, Action::kOpen},
                                                   {1, Action::kOpenAltered},
                                                   {1, Action::kOpenWithout},
                                                   {2, Action::kRelease}})),
        slot_(*rc::gen::weightedElement<std::size_t>({{4, 0}, {4, 1}, {1, 2}})),
        bytes_(
            *rc::gen::elementOf(std::vector<std::uint64_t>(std::begin(kSizes), std::end(kSizes)))),
        where_(*tpsync::fakes::any_of<std::size_t>(0, 64)) {}

  void checkPreconditions(const Model& model) const override {
    const Slot& slot = model.slots[slot_];
    RC_PRE(action_ != Action::kExport || !slot.live);
    RC_PRE(action_ != Action::kFree || slot.live);
    const bool needs_handle = action_ == Action::kOpen || action_ == Action::kOpenAltered;
    RC_PRE(!needs_handle || slot.serial != 0);
  }
  void apply(Model& model) const override {
    model = expected_of(model, action_, slot_, bytes_).next;
  }

  void run(const Model& model, Sut& sut) const override {
    const Outcome expected = expected_of(model, action_, slot_, bytes_);
    Sut::Export& at = sut.exports[slot_];
    switch (action_) {
      case Action::kExport:
        at.region = sut.owner(slot_).allocate(
            {.bytes = bytes_, .kind = device::RegionKind::kExportable, .tag = {}});
        at.handle = sut.owner(slot_).export_region(at.region);
        break;
      case Action::kFree:
        sut.owner(slot_).revoke_export(at.region);
        sut.owner(slot_).free(at.region);
        break;
      case Action::kRelease:
        RC_ASSERT(sut.importer->release() == expected.released);
        break;
      default:
        open(sut, expected.result);
    }
    const Model& next = expected.next;
    RC_ASSERT(sut.importer->is_open() == next.open.has_value());
    RC_ASSERT(sut.memory.open_imports() == (next.open ? 1u : 0u));
    RC_ASSERT(sut.counted->imports == next.imports);
    RC_ASSERT(sut.counted->closes == next.closes);
  }
  void show(std::ostream& out) const override {
    out << "action " << static_cast<int>(action_) << " slot " << slot_ << " bytes " << bytes_;
  }

 private:
  void open(Sut& sut, Result expected) const {
    wire::HandleMap handles;
    handles.entries.emplace_back(action_ == Action::kOpenWithout ? "gpu-7" : "gpu-0",
                                 sut.exports[slot_].handle);
    ByteBuffer& handle = handles.entries.back().second;
    if (action_ == Action::kOpenAltered) handle[where_ % handle.size()] ^= std::byte{0x40};
    Result found = Result::kOk;
    try {
      sut.importer->open_all(handles, std::vector{sut.worker->uuid()}, bytes_);
    } catch (const PeerViolation& error) {
      found = error.kind() == ErrorKind::kMismatch ? Result::kMismatch : Result::kProtocolOrIpc;
    } catch (const RuntimeBroken& error) {
      RC_ASSERT(error.kind() == ErrorKind::kIpc);
      found = expected == Result::kProtocolOrIpc ? expected : Result::kIpc;
    }
    RC_ASSERT(found == expected);
  }

  Action action_;
  std::size_t slot_;
  std::uint64_t bytes_;
  std::size_t where_;
};

TEST(ImporterModel, CountersEndWhereExportsAndReleasesSay) {
  EXPECT_TRUE(tpsync::fakes::model_holds<Step>("importer", [] { return std::make_unique<Sut>(); }));
}

}  // namespace
}  // namespace tpsync::transfer
