// What a scenario's world is made of, independent of whether it is simulated, made of processes, or
// on GPUs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/config.h"
#include "sim/groups.h"
#include "tpsync/model/plan.h"
#include "tpsync/rollout/engine.h"
#include "tpsync/sync/options.h"

namespace tpsync::conformance {

inline constexpr std::uint64_t kRanksMax = sim::kMaxRanks;

enum class Storage : std::uint8_t { kSeparateExperts, kFusedExperts };

// How weights move between actors.
enum class Gather : std::uint8_t {
  kCollective,  // by the world's collective library: NCCL, Gloo
  kCopies,      // by copies alone (core/collective/peer_copy_shard_group.h)
};

struct WorldSpec {
  model::ModelConfig config;
  int tp = 4;
  int actors = 4;
  std::uint64_t seed = 1;

  // The trainer.
  Storage storage = Storage::kFusedExperts;
  DType stored = DType::kBFloat16;
  bool uneven_shards = false;              // bounds drawn by seed, some of them empty
  std::optional<std::string> lost_tensor;  // a state-dict entry that every trainer rank has lost

  // The publication.
  sync::SyncOptions sync;
  rollout::CommandTimeouts timeouts;
  std::int64_t base_version = 0;  // of the checkpoint that the workers load

  // Actors of real worlds agree over shared memory where they share a host; else over Gloo alone.
  bool shared_lane = true;
  // Those of simulated worlds do so too: core's lane then runs on simulated shared words.
  bool simulated_lane = false;

  Gather gather = Gather::kCollective;
  bool runtime_reshards = true;  // the runtime declares the reshard route
  // GPUs export their memory as descriptors of the virtual memory API rather than by CUDA IPC.
  bool vmm_exports = false;

  // Devices.
  std::uint64_t device_bytes = 0;  // 0: ample
  std::uint64_t kv_cache_bytes = 256;
  std::vector<std::string>
      actor_uuids;  // empty: the devices' own; else what actors' devices claim to be
  bool phantom = false;
  // Of each parameter that tokens depend on, from its first byte, a multiple of 8; 0: all. For
  // models too large to be made again by the judge; the content digest covers the rest.
  std::uint64_t lane_bytes = 0;

  // Of simulated worlds.
  sim::Cruelty cruelty;
};

// What the test runtime and its workers call their version, and actors require.
inline constexpr const char* kTestVersion = "tpsync-test";

// The routes that the test runtime and its workers declare.
std::vector<wire::Route> runtime_routes(const WorldSpec& spec);

// The UUID of the device with this index, from 0.
std::string device_uuid(int index);

// The model of worlds that name none: 1 layer, 4 experts, 4 heads over 2 KV heads, hidden 8.
model::ModelConfig tiny_tp4();
// tiny-tp4 or another small model with a bucket of 1 KiB, short timeouts, content digest on.
WorldSpec small_world(model::ModelConfig config, int tp);
// The timeouts of a spec by their names in files.
inline constexpr std::pair<const char*, Duration rollout::CommandTimeouts::*> kCommandTimeouts[] = {
    {"startup_timeout_ns", &rollout::CommandTimeouts::startup},
    {"generate_timeout_ns", &rollout::CommandTimeouts::generate},
    {"weight_update_timeout_ns", &rollout::CommandTimeouts::weight_update},
    {"health_timeout_ns", &rollout::CommandTimeouts::health},
    {"sleep_timeout_ns", &rollout::CommandTimeouts::sleep},
    {"wake_up_timeout_ns", &rollout::CommandTimeouts::wake_up},
    {"shutdown_timeout_ns", &rollout::CommandTimeouts::shutdown}};
// Timeouts for worlds whose time is real: long for a loaded machine, short for whoever waits until
// one of them passes. `worker_bytes` of weights are written, saved and hashed per worker.
void set_real_timeouts(WorldSpec& spec, std::uint64_t worker_bytes = 0);

// The cruelties of a simulated world by their names on the command line and in files.
inline constexpr std::pair<const char*, bool sim::Cruelty::*> kCruelties[] = {
    {"short_io", &sim::Cruelty::short_io},
    {"partial_groups", &sim::Cruelty::partial_groups},
    {"late_copies", &sim::Cruelty::late_copies},
    {"address_reuse", &sim::Cruelty::address_reuse},
    {"shuffled_times", &sim::Cruelty::shuffled_times},
    {"latency", &sim::Cruelty::latency},
    {"lost_copies", &sim::Cruelty::lost_copies},
    {"children_die_with_parent", &sim::Cruelty::children_die_with_parent}};
// Switches one off; false if there is none of this name.
bool switch_off(sim::Cruelty& cruelty, const std::string& name);
std::vector<std::string> switched_off(const sim::Cruelty& cruelty);

// The default bucket: 1 KiB for models below 1 MiB, 640 MiB otherwise.
std::uint64_t default_bucket_bytes(const model::CanonicalPlan& plan);

}  // namespace tpsync::conformance
