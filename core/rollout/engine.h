// The rollout engine of one trainer rank. On TP rank 0 it owns a spawned runtime; on the others it
// is a no-op, so that trainer code is the same on every rank.
//
// It keeps what must be right even if the runtime is not: sleep states, the pending publication,
// the committed version, whether the weights are those of a version at all. What it refuses by
// itself it refuses before anything is sent (NothingHappened kInvalidState). After any other
// failure of sleep, wake-up or a native command the runtime is gone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tpsync/base/world.h"
#include "tpsync/rollout/connection.h"
#include "tpsync/sync/publication_target.h"
#include "tpsync/wire/messages.h"

namespace tpsync::rollout {

struct CommandTimeouts {
  Duration startup = std::chrono::seconds(600);
  Duration generate = std::chrono::seconds(1800);
  Duration weight_update =
      std::chrono::seconds(300);  // each of the five native commands, and probe_ipc
  Duration health = std::chrono::seconds(30);
  Duration sleep = std::chrono::seconds(120);
  Duration wake_up = std::chrono::seconds(120);
  Duration shutdown = std::chrono::seconds(30);
};

// What a runtime must grant its workers for a reply, at least.
Duration longest(const CommandTimeouts& timeouts);

struct EngineOptions {
  std::int64_t tp_size = 1;
  std::int64_t tp_rank = 0;  // 0 spawns
  CommandTimeouts timeouts;
  std::string runtime_version;  // required of the runtime and of each worker; empty: any
  std::string model_type = "qwen3_moe";
  SpawnRequest runtime;  // program, arguments, environment; the channel is made here
};

enum class SleepState : std::uint8_t { kAwake, kAsleep, kWeightsOnly };
std::string_view to_string(SleepState state);

struct Generation {
  std::vector<wire::GeneratedRow> rows;
  std::int64_t version = 0;  // of the weights, taken when the request was dispatched
};

class RolloutEngine final : public sync::PublicationTarget {
 public:
  // On TP rank 0: spawns the runtime and checks its startup reply in this order: its event is
  // "ready"; the runtime's version, model type, process group; the number of workers, their ranks,
  // world sizes, UUIDs and versions; the committed version, above which one must be left. Throws
  // InvalidInput for options; RuntimeBroken or PeerViolation if the runtime does not come up right;
  // then nothing of it is left.
  RolloutEngine(World world, EngineOptions options);
  // Ends a runtime that was not shut down; blocks for at most the kill routine.
  ~RolloutEngine() override = default;

  // nullopt on ranks > 0. Refused while asleep or weights-only, while a publication is pending, and
  // while the weights are lost (a level-2 sleep without a publication since). NothingHappened
  // kRemote if the runtime failed it.
  std::optional<Generation> generate(const wire::GenerateRequest& request);
  // Returns if the runtime and every worker answered; nothing is asked on ranks > 0. Throws
  // NothingHappened kRemote if one of them reported a failure; else what Connection::request
  // throws.
  void health_check();

  // Puts the runtime to sleep at the configured level (or 1, once, if the weights are to be
  // preserved). No-op while asleep.
  void sleep();
  // Empty tags wake everything. Partial wake-ups lead to weights-only, whatever they name; no-ops
  // as in the table below.
  //              AWAKE            ASLEEP                    WEIGHTS_ONLY
  //   sleep      -> ASLEEP        no-op                     -> ASLEEP
  //   wake tags  no-op            -> WEIGHTS_ONLY           no-op
  //   wake all   no-op            -> AWAKE                  sends ["kv_cache"] -> AWAKE
  // A partial wake-up that left the weights asleep gives no publication; a full one after it sends
  // no tags, so that AWAKE always means everything.
  void wake_up(const std::vector<std::string>& tags = {});
  void set_weight_sync_sleep_level(const sync::SleepPolicy& policy) override;
  void preserve_weights_for_next_sleep() { preserve_next_sleep_ = true; }

  // Only before the first publication, and never lower. Throws NothingHappened kInvalidState after
  // one or while one is pending; InvalidInput kInvalidConfig for a lower version, or one that
  // leaves none above it. The version then stays.
  void set_version(std::int64_t version);
  std::int64_t version() const { return version_; }

  SleepState sleep_state() const { return sleep_; }
  bool publication_pending() const { return stage_ != Stage::kNone; }
  bool weights_lost() const { return weights_lost_; }
  std::optional<ConnectionState> connection_state() const;

  // sync::PublicationTarget
  sync::TargetTopology topology() override;
  Duration weight_update_timeout() const override { return options_.timeouts.weight_update; }
  void probe_ipc(const wire::ProbeIpcRequest& request) override;
  void init_publication() override;
  void start_publication(const wire::StartRequest& request) override;
  void send_update(const wire::EncodedUpdate& update, const wire::HandleMap& handles) override;
  void await_update() override;
  wire::CommitResult finish_publication(const wire::FinishRequest& request) override;
  void release_publication() override;
  void poison(std::string_view reason) noexcept override;

  // Asks the runtime to end, waits, and ends it anyway; idempotent. Blocks for at most twice the
  // shutdown timeout and the kill routine.
  void shutdown();

 private:
  enum class Stage : std::uint8_t { kNone, kInitialized, kStarted };

  void start_runtime();
  void check_startup(const wire::StartupResult& result);
  Connection& connection(std::string_view command);
  void refuse(std::string_view command, const std::string& why) const;
  void refuse_if_pending(std::string_view command) const;

  World world_;
  EngineOptions options_;
  std::unique_ptr<Connection> connection_;
  std::vector<std::string> device_uuids_;
  std::vector<std::int64_t> worker_pids_;
  std::vector<wire::Layout> layouts_;
  std::vector<wire::Route> routes_;
  SleepState sleep_ = SleepState::kAwake;
  bool weights_awake_ = true;  // WEIGHTS_ONLY does not say: its name is upstream's for any tag
  int sleep_level_ = 1;
  bool preserve_next_sleep_ = false;
  bool weights_lost_ = false;
  bool published_ = false;
  std::int64_t version_ = 0;
  Stage stage_ = Stage::kNone;
  wire::PublicationHeader header_;  // while started
};

}  // namespace tpsync::rollout
