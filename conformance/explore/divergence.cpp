#include "conformance/explore/divergence.h"

#include <fmt/format.h>

#include <algorithm>

#include "conformance/judge/records.h"

namespace tpsync::conformance {

namespace {

bool is_mark(const sim::Event& event) {
  return event.kind == static_cast<std::uint16_t>(judge::Record::kFault) ||
         event.kind == static_cast<std::uint16_t>(judge::Record::kHealed);
}

// Texts are numbered by their first use, which marks move.
bool same(const sim::Trace& run, const sim::Event& event, const sim::Trace& twin,
          const sim::Event& other) {
  if (run.texts.at(event.text) != twin.texts.at(other.text) ||
      run.texts.at(event.phase) != twin.texts.at(other.phase)) {
    return false;
  }
  sim::Event left = event;
  sim::Event right = other;
  left.text = right.text = left.phase = right.phase = 0;
  return left == right;
}

std::string role_of(const sim::Trace& trace, std::uint32_t process) {
  for (const sim::Event& event : trace.events) {
    if (event.kind == static_cast<std::uint16_t>(sim::EventKind::kProcessStart) &&
        event.process == process) {
      return fmt::format("{} {}", trace.texts.at(event.text), event.a);
    }
  }
  return "the world";
}

std::string choice_text(const sim::Trace& trace, std::size_t index) {
  if (index >= trace.choices.size()) return "none";
  const sim::Choice& choice = trace.choices[index];
  return fmt::format("{} of {}, after {} events", choice.chosen, choice.count, choice.at_event);
}

}  // namespace

std::optional<std::size_t> first_effect(const sim::Trace& run, const sim::Trace& twin) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < run.events.size(); ++i) {
    const sim::Event& event = run.events[i];
    if (is_mark(event)) continue;
    if (at == twin.events.size()) return i;
    if (!same(run, event, twin, twin.events[at++])) return i;
  }
  if (at == twin.events.size()) return std::nullopt;
  return run.events.size();
}

bool same_events(const sim::Trace& run, const sim::Trace& twin) {
  return !first_effect(run, twin).has_value();
}

std::string event_line(const sim::Trace& trace, std::size_t index) {
  if (index >= trace.events.size()) return "the end of the trace";
  const sim::Event& event = trace.events[index];
  const auto kind = static_cast<sim::EventKind>(event.kind);
  std::string what(kind == sim::EventKind::kOp ? sim::to_string(static_cast<sim::Op>(event.op))
                                               : sim::to_string(kind));
  if (event.kind >= static_cast<std::uint16_t>(sim::EventKind::kHarness)) {
    what = fmt::format("record {}", event.kind);
  }
  if (const auto text = trace.texts.at(event.text); !text.empty()) what += fmt::format(" {}", text);
  return fmt::format("{} {}.{:09} s  {} in {}/{}: {} ({}, {}, {}) until {} ns, result {}", index,
                     event.time / 1'000'000'000, event.time % 1'000'000'000,
                     role_of(trace, event.process), trace.texts.at(event.phase), event.chunk, what,
                     event.a, event.b, event.c, event.end, event.result);
}

std::string first_divergence(const sim::Trace& first, const sim::Trace& second) {
  if (sim::hash_of(first) == sim::hash_of(second)) return "";
  std::size_t event = 0;
  const std::size_t events = std::min(first.events.size(), second.events.size());
  while (event < events && same(first, first.events[event], second, second.events[event])) ++event;
  std::size_t choice = 0;
  const std::size_t choices = std::min(first.choices.size(), second.choices.size());
  while (choice < choices && first.choices[choice] == second.choices[choice]) ++choice;
  const auto at_event = [&](const sim::Trace& trace) {
    return choice < trace.choices.size() ? trace.choices[choice].at_event : SIZE_MAX;
  };
  // A choice is made before the event that it leads to.
  if (std::min(at_event(first), at_event(second)) <= event) {
    return fmt::format("choice {}: {} against {}; then {} against {}", choice,
                       choice_text(first, choice), choice_text(second, choice),
                       event_line(first, event), event_line(second, event));
  }
  if (event < std::max(first.events.size(), second.events.size())) {
    return fmt::format("event {} against {}", event_line(first, event), event_line(second, event));
  }
  return "the worlds' parameters";
}

}  // namespace tpsync::conformance
