// The whole transition table, every state with every event.
#include "tpsync/sync/publication_state.h"

#include <gtest/gtest.h>

#include <map>

namespace tpsync::sync {
namespace {

using S = PublicationState;
using E = PublicationEvent;

constexpr S kStates[] = {S::kIdle,       S::kInitialized, S::kStarted,  S::kLoading,
                         S::kFinalizing, S::kCommitted,   S::kReleased, S::kPoisoned};
constexpr E kEvents[] = {E::kInit,   E::kStart,   E::kChunk, E::kVerified,
                         E::kCommit, E::kRelease, E::kDone,  E::kFail};

TEST(PublicationState, TheTableIsComplete) {
  const std::map<std::pair<S, E>, S> table = {
      {{S::kIdle, E::kInit}, S::kInitialized},        //
      {{S::kInitialized, E::kStart}, S::kStarted},    //
      {{S::kStarted, E::kChunk}, S::kLoading},        //
      {{S::kLoading, E::kChunk}, S::kLoading},        //
      {{S::kLoading, E::kVerified}, S::kFinalizing},  //
      {{S::kFinalizing, E::kCommit}, S::kCommitted},  //
      {{S::kCommitted, E::kRelease}, S::kReleased},   //
      {{S::kReleased, E::kDone}, S::kIdle},           //
      {{S::kInitialized, E::kFail}, S::kPoisoned},    //
      {{S::kStarted, E::kFail}, S::kPoisoned},        //
      {{S::kLoading, E::kFail}, S::kPoisoned},        //
      {{S::kFinalizing, E::kFail}, S::kPoisoned},     //
      {{S::kCommitted, E::kFail}, S::kPoisoned},
  };
  for (const S state : kStates) {
    for (const E event : kEvents) {
      const auto entry = table.find({state, event});
      const auto expected = entry == table.end() ? std::nullopt : std::optional(entry->second);
      EXPECT_EQ(next_state(state, event), expected) << to_string(state) << " " << to_string(event);
    }
  }
}

TEST(PublicationState, NothingLeavesPoisoned) {
  for (const E event : kEvents) EXPECT_EQ(next_state(S::kPoisoned, event), std::nullopt);
}

TEST(PublicationState, NamesAreDistinct) {
  std::map<std::string_view, int> names;
  for (const S state : kStates) ++names[to_string(state)];
  for (const E event : kEvents) ++names[to_string(event)];
  EXPECT_EQ(names.size(), std::size(kStates) + std::size(kEvents));
  EXPECT_EQ(names.count("unknown"), 0u);
}

}  // namespace
}  // namespace tpsync::sync
