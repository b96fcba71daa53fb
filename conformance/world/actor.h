// One trainer rank as scenarios speak of it: start the engine, take an optimizer step, publish,
// sleep, wake, generate. The same vocabulary in every world; each call leaves its evidence in the
// trace and returns what came of it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "conformance/world/actor_log.h"
#include "conformance/world/ports.h"
#include "conformance/world/spec.h"
#include "conformance/world/test_trainer.h"
#include "tpsync/base/errors.h"
#include "tpsync/base/world.h"
#include "tpsync/rollout/engine.h"
#include "tpsync/sync/ipc_weight_sync.h"
#include "tpsync/trainer/exporter.h"

namespace tpsync::conformance {

struct ActorPorts {
  World world;
  device::Device& device;
  int rank = 0;
  Recorder& recorder;
  ContentPort& content;
  std::function<std::unique_ptr<collective::ControlGroup>()> join_control;
  std::function<std::unique_ptr<collective::ShardGroup>()> join_shards;
  // How to start the test runtime that takes over at `version`.
  std::function<SpawnRequest(std::int64_t version)> runtime;
  // Puts a decorator around the weight source; null for none. The result is owned by the actor.
  std::function<std::unique_ptr<transfer::WeightSource>(transfer::WeightSource&)> wrap_source;
  // Records what every living worker holds (kResident), stamped with `version`.
  std::function<void(std::int64_t version)> observe;
  // No fault applies any more, on any process.
  std::function<void()> heal;
  // SIGKILL to this process.
  std::function<void()> die;
};

class Actor {
 public:
  Actor(const WorldSpec& spec, ActorPorts ports);
  ~Actor();
  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;

  int rank() const { return ports_.rank; }
  const WorldSpec& spec() const { return spec_; }

  Outcome start_engine();
  Outcome setup();                // groups, exporter, IpcWeightSync
  void train(Duration duration);  // passes
  void step();                    // the trainer now holds the version that the next publish carries
  Outcome publish();
  Outcome sleep();
  Outcome wake_weights();
  Outcome wake_all();
  Outcome generate();  // on rank 0; ok and empty elsewhere
  Outcome health();

  // The halves of a publication, on the engine alone (rank 0, one actor): for command sequences.
  Outcome init_and_start();
  Outcome update();
  Outcome finish();

  // After a failure: every command on the old runtime must fail as broken.
  void poke_broken();
  // A new engine and a new sync object, from the highest version that this actor returned; faults
  // are healed first.
  Outcome rebuild();

  void cleanup();   // of the sync object
  void shutdown();  // of the engine
  // What the world's log says of this actor afterwards (actor_log.h). Returns it.
  Outcome keep(Outcome outcome);
  // An expectation of the script; what fails is said in the world's log.
  void check(bool condition, std::string_view what);
  // The process is killed, as from outside. May return: its next operation then ends it.
  void die() { ports_.die(); }
  TimePoint now() const { return ports_.world.clock.now(); }
  void mark(std::string_view text) {
    ports_.recorder.record(judge::Record::kScript, 0, 0, 0, text);
  }

  rollout::RolloutEngine* engine() { return engine_.get(); }
  sync::IpcWeightSync* sync() { return sync_.get(); }

 private:
  template <typename Body>
  Outcome call(judge::Call call, std::uint64_t argument, Body&& body);
  void observe();

  WorldSpec spec_;
  ActorPorts ports_;
  TestTrainer trainer_;
  std::unique_ptr<collective::ShardGroup> shards_;
  std::unique_ptr<trainer::Exporter> exporter_;
  std::unique_ptr<transfer::WeightSource> decorated_;
  std::unique_ptr<rollout::RolloutEngine> engine_;
  std::unique_ptr<sync::IpcWeightSync> sync_;
  std::int64_t version_returned_ = 0;
  struct Manual;  // a publication by single commands
  std::unique_ptr<Manual> manual_;
};

}  // namespace tpsync::conformance
