// How the judge's tests ask: one story, one invariant, one status, and words of its text.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "conformance/judge/judge.h"
#include "conformance/judge/testing/story.h"

namespace tpsync::judge::testing {

inline Verdict verdict_of(const Story& story, std::string_view id) {
  Judge judge;
  const Judgement judgement = judge.judge(story.trace);
  const Verdict* verdict = judgement.find(id);
  return verdict != nullptr ? *verdict : Verdict{"none", Status::kInconclusive, "none", kNoEvent};
}

inline void expect(const Story& story, std::string_view id, Status status,
                   std::string_view text = "") {
  const Verdict verdict = verdict_of(story, id);
  EXPECT_EQ(verdict.status, status)
      << id << ": " << to_string(verdict.status) << ": " << verdict.text;
  EXPECT_THAT(verdict.text, ::testing::HasSubstr(std::string(text))) << id;
  if (status == Status::kViolation) {
    EXPECT_LT(verdict.event, story.trace.events.size()) << id;
  }
}

// A world that is up, before its first publication.
inline Story begun() {
  Story story;
  story.start_engine();
  story.observe(0);
  story.setup();
  return story;
}

inline std::string transfer_error() { return error_json("end of file", "native-transfer-0", 0); }

}  // namespace tpsync::judge::testing
