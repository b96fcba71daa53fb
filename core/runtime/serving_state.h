// What a runtime and each of its workers allow at any moment, on their own authority: memory awake
// or not, weights valid or not, how far a publication is. Checks throw before anything happened;
// transitions are applied after success.
#pragma once

#include <cstdint>

#include "tpsync/wire/messages.h"

namespace tpsync::runtime {

enum class PublicationStage : std::uint8_t { kNone, kInitialized, kStarted };

class ServingState {
 public:
  explicit ServingState(std::int64_t committed_version) : version_(committed_version) {}

  // Each throws NothingHappened kInvalidState, subject the command, saying what is in the way.
  void check_generate() const;
  void check_sleep(const wire::SleepRequest& request) const;     // also: level 1 or 2
  void check_wake_up(const wire::WakeUpRequest& request) const;  // also: known tags
  void check_probe() const;
  void check_init() const;
  void check_start(const wire::StartRequest& request) const;  // also: the version rises
  void check_update() const;
  void check_finish(const wire::FinishRequest& request) const;  // also: the pending header
  void check_release() const;

  void slept(std::int64_t level);
  void woke(const wire::WakeUpRequest& request);
  void initialized();
  void started(const wire::PublicationHeader& header);
  void committed();

  bool weights_awake() const { return weights_awake_; }
  bool kv_cache_awake() const { return kv_cache_awake_; }
  PublicationStage stage() const { return stage_; }
  const wire::PublicationHeader& header() const { return header_; }
  std::int64_t version() const { return version_; }

 private:
  bool weights_awake_ = true;
  bool kv_cache_awake_ = true;
  bool weights_valid_ = true;  // byte for byte those of version_
  PublicationStage stage_ = PublicationStage::kNone;
  wire::PublicationHeader header_;
  std::int64_t version_ = 0;
};

inline constexpr std::string_view kWeightsTag = "weights";
inline constexpr std::string_view kKvCacheTag = "kv_cache";

// What a wake-up covers: everything if no tag is given.
bool wakes(const wire::WakeUpRequest& request, std::string_view tag);

}  // namespace tpsync::runtime
