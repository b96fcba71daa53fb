#include "tpsync/sync/publication_state.h"

namespace tpsync::sync {

namespace {

using S = PublicationState;
using E = PublicationEvent;

struct Transition {
  S from;
  E event;
  S to;
};

constexpr Transition kTransitions[] = {
    {S::kIdle, E::kInit, S::kInitialized},       {S::kInitialized, E::kStart, S::kStarted},
    {S::kStarted, E::kChunk, S::kLoading},       {S::kLoading, E::kChunk, S::kLoading},
    {S::kLoading, E::kVerified, S::kFinalizing}, {S::kFinalizing, E::kCommit, S::kCommitted},
    {S::kCommitted, E::kRelease, S::kReleased},  {S::kReleased, E::kDone, S::kIdle},
    {S::kInitialized, E::kFail, S::kPoisoned},   {S::kStarted, E::kFail, S::kPoisoned},
    {S::kLoading, E::kFail, S::kPoisoned},       {S::kFinalizing, E::kFail, S::kPoisoned},
    {S::kCommitted, E::kFail, S::kPoisoned},
};

}  // namespace

std::string_view to_string(PublicationState state) {
  switch (state) {
    case S::kIdle:
      return "Idle";
    case S::kInitialized:
      return "Initialized";
    case S::kStarted:
      return "Started";
    case S::kLoading:
      return "Loading";
    case S::kFinalizing:
      return "Finalizing";
    case S::kCommitted:
      return "Committed";
    case S::kReleased:
      return "Released";
    case S::kPoisoned:
      return "Poisoned";
  }
  return "unknown";
}

std::string_view to_string(PublicationEvent event) {
  switch (event) {
    case E::kInit:
      return "init";
    case E::kStart:
      return "start";
    case E::kChunk:
      return "chunk";
    case E::kVerified:
      return "verified";
    case E::kCommit:
      return "commit";
    case E::kRelease:
      return "release";
    case E::kDone:
      return "done";
    case E::kFail:
      return "fail";
  }
  return "unknown";
}

std::optional<PublicationState> next_state(PublicationState state, PublicationEvent event) {
  for (const Transition& transition : kTransitions) {
    if (transition.from == state && transition.event == event) return transition.to;
  }
  return std::nullopt;
}

}  // namespace tpsync::sync
