// The states of one publication, as the trainer's side sees it: one enum, one transition table, one
// function.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tpsync::sync {

enum class PublicationState : std::uint8_t {
  kIdle,         // nothing is pending; the runtime is as usable as it was
  kInitialized,  // the runtime was touched
  kStarted,
  kLoading,     // the first chunk was sent
  kFinalizing,  // the source was verified
  kCommitted,   // every worker attested, every actor validated
  kReleased,    // no worker has an import open
  kPoisoned,    // terminal: the runtime is gone, build a new one
};

enum class PublicationEvent : std::uint8_t {
  kInit,
  kStart,
  kChunk,
  kVerified,
  kCommit,
  kRelease,
  kDone,
  kFail,  // after the runtime was touched
};

std::string_view to_string(PublicationState state);
std::string_view to_string(PublicationEvent event);

// The state after `event`, or nullopt where the table has no such transition.
std::optional<PublicationState> next_state(PublicationState state, PublicationEvent event);

}  // namespace tpsync::sync
