// Traces as files: lossless, and strict about what they read.
#include "sim/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace tpsync::sim {
namespace {

Trace sample() {
  Trace trace;
  trace.seed = 0xffffffffffffffffULL;
  trace.parameters = "world=sim\ntp=4";
  for (std::uint32_t i = 0; i < 300; ++i) {
    Event& event = trace.events.emplace_back();
    event.time = static_cast<std::int64_t>(i) * 100;
    event.end = i % 7 == 0 ? -1 : event.time + i;
    event.a = 0x8000000000000000ULL + i;
    event.b = i;
    event.c = ~std::uint64_t{0} - i;
    event.process = i % 5 == 0 ? kNoProcess : i;
    event.phase = trace.texts.intern("phase-" + std::to_string(i / 10));
    event.chunk = static_cast<std::int32_t>(i) - 5;
    event.occurrence = i;
    event.text =
        trace.texts.intern(std::string("\xff\x80 \"quoted\" \n\0", 13) + std::to_string(i));
    event.kind = static_cast<std::uint16_t>(i);
    event.op = static_cast<std::uint16_t>(i % kOpCount);
    event.result = i % 3 == 0 ? kPending : kOk;
    event.thread = static_cast<std::uint16_t>(i % 2);
    if (i % 4 == 0) trace.choices.push_back({i, i * 77, 3, 2});
  }
  trace.choices.push_back({300, 1, 2, 1});
  return trace;
}

TEST(TraceFile, GivesBackWhatWasWritten) {
  const Trace trace = sample();
  Trace read;
  read_trace(write_trace(trace), read);
  EXPECT_EQ(read.events, trace.events);
  EXPECT_EQ(read.choices, trace.choices);
  EXPECT_EQ(read.parameters, trace.parameters);
  EXPECT_EQ(hash_of(read), hash_of(trace));
}

TEST(TraceFile, RefusesWhatIsNoTraceAndSaysTheLine) {
  const auto line_of = [](std::string_view text) -> std::size_t {
    Trace trace;
    try {
      read_trace(text, trace);
    } catch (const TraceFormatError& error) {
      return error.line();
    }
    return 0;
  };
  const std::string head = R"({"tpsync_trace":1,"seed":1,"parameters":"","texts":["a"]})"
                           "\n";
  EXPECT_EQ(line_of(head), 0u);
  EXPECT_EQ(line_of(""), 1u);
  EXPECT_EQ(line_of("nonsense"), 1u);
  EXPECT_EQ(line_of(R"({"tpsync_trace":2})"), 1u);
  EXPECT_EQ(line_of(head + "[]"), 2u);
  EXPECT_EQ(line_of(head + R"({"k":1,"t":0,"tx":2})"), 2u);
  EXPECT_EQ(line_of(head + R"({"k":70000,"t":0})"), 2u);
  EXPECT_EQ(line_of(head + R"({"k":1,"t":"x"})"), 2u);
  EXPECT_EQ(line_of(head + R"({"k":1,"t":0})"
                           "\n"
                           R"({"x":1})"),
            3u);
}

TEST(TraceFile, RefusesAFileOfWhichALineIsMissing) {
  const std::string whole = write_trace(sample());
  for (const std::string_view kind : {R"({"k":)", R"({"choice":)"}) {
    std::string text = whole;
    const std::size_t first = text.find(kind);
    text.erase(first, text.find('\n', first) + 1 - first);
    Trace trace;
    EXPECT_THROW(read_trace(text, trace), TraceFormatError) << kind;
  }
}

TEST(TraceHash, ChangesWithEveryFieldOfEveryRecord) {
  const TraceHash first = hash_of(sample());
  EXPECT_EQ(hash_of(sample()), first);
  const std::vector<std::function<void(Trace&)>> changes = {
      [](Trace& t) { t.seed ^= 1; },
      [](Trace& t) { t.parameters[0] = 'W'; },
      [](Trace& t) { t.events[5].c ^= 1; },
      [](Trace& t) { t.events[299].thread ^= 1; },
      [](Trace& t) { t.events[7].end ^= 1; },
      [](Trace& t) { t.choices[3].chosen ^= 1; },
      [](Trace& t) { t.texts.intern("one more"); },
      [](Trace& t) { std::swap(t.events[1], t.events[2]); },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    Trace changed = sample();
    changes[i](changed);
    EXPECT_NE(hash_of(changed), first) << "change " << i;
  }
}

}  // namespace
}  // namespace tpsync::sim
