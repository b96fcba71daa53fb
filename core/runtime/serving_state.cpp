#include "tpsync/runtime/serving_state.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "tpsync/base/errors.h"

namespace tpsync::runtime {

namespace {

using wire::Command;

void require(bool condition, Command command, std::string_view why) {
  if (!condition) throw_nothing_happened(ErrorKind::kInvalidState, name_of(command), why);
}

}  // namespace

bool wakes(const wire::WakeUpRequest& request, std::string_view tag) {
  return request.tags.empty() ||
         std::find(request.tags.begin(), request.tags.end(), tag) != request.tags.end();
}

void ServingState::check_generate() const {
  require(stage_ == PublicationStage::kNone, Command::kGenerate, "a publication is pending");
  require(weights_awake_ && kv_cache_awake_, Command::kGenerate, "memory is asleep");
  require(weights_valid_, Command::kGenerate, "the weights are of no version; publish first");
}

void ServingState::check_sleep(const wire::SleepRequest& request) const {
  require(request.level == 1 || request.level == 2, Command::kSleep, "the level must be 1 or 2");
  require(stage_ == PublicationStage::kNone, Command::kSleep, "a publication is pending");
}

void ServingState::check_wake_up(const wire::WakeUpRequest& request) const {
  for (const std::string& tag : request.tags) {
    require(tag == kWeightsTag || tag == kKvCacheTag, Command::kWakeUp,
            "there is no memory tagged \"" + tag + "\"; known are weights and kv_cache");
  }
  require(stage_ == PublicationStage::kNone || !wakes(request, kKvCacheTag), Command::kWakeUp,
          "a publication is pending");
}

void ServingState::check_probe() const {
  require(stage_ == PublicationStage::kNone, Command::kProbeIpc, "a publication is pending");
}

void ServingState::check_init() const {
  require(stage_ == PublicationStage::kNone, Command::kInit, "a publication is pending");
  require(weights_awake_, Command::kInit, "the weights are asleep");
}

void ServingState::check_start(const wire::StartRequest& request) const {
  require(stage_ != PublicationStage::kStarted, Command::kStart, "a publication is pending");
  require(stage_ == PublicationStage::kInitialized, Command::kStart,
          "there was no init_native_weight_transfer");
  require(request.header.model_version > version_, Command::kStart,
          "version " + std::to_string(request.header.model_version) +
              " is not above the committed " + std::to_string(version_));
}

void ServingState::check_update() const {
  require(stage_ == PublicationStage::kStarted, Command::kUpdate, "no publication was started");
}

void ServingState::check_finish(const wire::FinishRequest& request) const {
  require(stage_ == PublicationStage::kStarted, Command::kFinish, "no publication was started");
  require(request.header == header_, Command::kFinish, "another publication is pending");
}

void ServingState::check_release() const {
  require(stage_ == PublicationStage::kNone, Command::kRelease, "a publication is pending");
}

void ServingState::slept(std::int64_t level) {
  // Going to sleep twice keeps what the first sleep decided.
  if (weights_awake_ && level == 2) weights_valid_ = false;
  weights_awake_ = false;
  kv_cache_awake_ = false;
}

void ServingState::woke(const wire::WakeUpRequest& request) {
  weights_awake_ = weights_awake_ || wakes(request, kWeightsTag);
  kv_cache_awake_ = kv_cache_awake_ || wakes(request, kKvCacheTag);
}

void ServingState::initialized() { stage_ = PublicationStage::kInitialized; }

void ServingState::started(const wire::PublicationHeader& header) {
  stage_ = PublicationStage::kStarted;
  header_ = header;
  weights_valid_ = false;
}

void ServingState::committed() {
  version_ = header_.model_version;
  weights_valid_ = true;
  stage_ = PublicationStage::kNone;
}

}  // namespace tpsync::runtime
