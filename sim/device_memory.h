// Device memory of the simulated world, as the driver knows it: budgets, addresses, who owns, who
// exported, who imported, what is asleep, and which accesses are ordered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/phantom.h"
#include "sim/vector_clock.h"
#include "sim/world.h"

namespace tpsync::sim {

// What prepare_*() made: shared with whatever is still under way when its owner is destroyed.
struct BatchData {
  std::vector<device::TileCopy> copies;
  std::vector<device::PackPiece> packs;
  std::vector<device::DigestItem> digests;
  std::uint64_t hash = 0;
  std::uint64_t bytes = 0;
  // Per binding: the hull of what is read and of what is written; begin > end: nothing.
  struct Hull {
    std::uint64_t read_begin = UINT64_MAX, read_end = 0;
    std::uint64_t write_begin = UINT64_MAX, write_end = 0;
  };
  std::vector<Hull> hulls;

  std::size_t items() const { return copies.size() + packs.size() + digests.size(); }
};

// One use of a memory by one stream operation.
struct Access {
  std::uint32_t process = 0;
  std::uint32_t stream = 0;
  std::uint64_t operation = 0;
  bool write = false;
  bool done = false;
  std::uint32_t done_at = 0;  // the process's own clock when it knew
  std::uint64_t begin = 0, end = 0;
  std::shared_ptr<const BatchData> batch;  // for an exact look, where hulls meet
  device::Binding binding = 0;
};

struct StreamOperation;

struct Memory {
  std::uint64_t key = 0;
  SimProcess* owner = nullptr;
  std::size_t device = 0;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  device::RegionKind kind = device::RegionKind::kPlain;
  std::string tag;
  bool owned = true;  // false: freed, or its owner ended
  bool exported = false;
  bool asleep = false;
  bool kept = false;  // asleep, with the content saved
  bool physical = false;
  std::uint32_t imports = 0;
  std::vector<std::byte> data;  // unless phantom
  ExtentMap extents;            // if phantom
  std::vector<Access> accesses;
};

class DeviceSystem {
 public:
  explicit DeviceSystem(SimWorld& world);
  ~DeviceSystem();

  struct Physical {
    std::uint64_t used = 0;
    std::uint64_t peak = 0;
    std::uint64_t next_address = 0x10000;
    struct Hole {
      std::uint64_t address = 0;
      std::uint64_t bytes = 0;
    };
    std::vector<Hole> holes;  // by address
  };

  SimWorld& world() { return world_; }
  Physical& physical(std::size_t device) { return physical_[device]; }
  std::uint64_t free_bytes(std::size_t device) const;
  std::uint64_t peak_bytes(std::size_t device) const { return physical_[device].peak; }
  std::uint64_t used_bytes(std::size_t device) const { return physical_[device].used; }
  std::span<const std::unique_ptr<Memory>> memories() const { return memories_; }

  // nullptr: the budget does not allow it.
  Memory* allocate(SimProcess& owner, std::size_t device, const device::AllocationRequest& request);
  void give_up(Memory& memory);  // by its owner; stays while others have it imported
  void close_import(Memory& memory);
  bool sleep(Memory& memory, bool keep);
  void wake(Memory& memory);
  Memory* exported_at(std::int64_t pid, std::uint64_t address);

  // Finds accesses that the new one is not ordered after, says so, and notes it.
  void note_access(SimProcess& process, Memory& memory, Access access);
  // An empty operation with the next serial number; give_operation takes it back for another use.
  std::unique_ptr<StreamOperation> take_operation();
  void give_operation(std::unique_ptr<StreamOperation> operation);

  void process_ended(SimProcess& process);
  void record_counters();

  std::uint64_t streams = 0;  // that exist

 private:
  void take_physical(Memory& memory);
  void give_physical(Memory& memory);
  void make_content(Memory& memory);
  void drop_content(Memory& memory);
  std::uint64_t take_address(Physical& physical, std::uint64_t bytes);

  SimWorld& world_;
  std::vector<Physical> physical_;
  std::vector<std::unique_ptr<Memory>> memories_;
  std::uint64_t operations_ = 0;
  std::vector<std::unique_ptr<StreamOperation>> spare_operations_;
};

}  // namespace tpsync::sim
