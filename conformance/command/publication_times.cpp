#include "conformance/command/publication_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "conformance/command/output.h"
#include "tpsync/base/log.h"

namespace tpsync::conformance {

namespace {

using judge::Call;
using judge::Record;

constexpr std::uint32_t kRankZero = 0;

constexpr std::pair<Call, const char*> kLoopCalls[] = {
    {Call::kStartEngine, "start"},        {Call::kSetup, "setup"},  {Call::kSleep, "sleep"},
    {Call::kWakeWeights, "wake weights"}, {Call::kSync, "publish"}, {Call::kWakeAll, "wake all"},
    {Call::kGenerate, "generate"},
};

bool is(const sim::Event& event, Record record) {
  return event.kind == static_cast<std::uint16_t>(record);
}

class RoundReader {
 public:
  explicit RoundReader(const sim::Trace& trace) : trace_(trace) {}

  std::vector<Round> read() {
    for (const sim::Event& event : trace_.events) {
      if (event.process == kRankZero) take(event);
    }
    // A process that died in a call recorded no end of it.
    if (open_) close(last_end_, false, nullptr);
    return std::move(rounds_);
  }

 private:
  struct OpenCall {
    Call call = Call::kHealth;
    std::int64_t begin = 0;
    std::int64_t phase_begin = 0;
    std::vector<PhaseTime> phases;
    std::optional<std::size_t> phase;            // the current one
    std::map<std::string, std::uint64_t> index;  // of each phase, when it was entered last
  };

  void take(const sim::Event& event) {
    if (is(event, Record::kCallBegin)) {
      open_ = OpenCall{static_cast<Call>(event.a), event.time, event.time, {}, std::nullopt, {}};
      last_end_ = event.time;
    } else if (is(event, Record::kCallEnd) && open_) {
      close(std::min(last_end_, event.time), true, &event);
    } else {
      last_end_ = std::max({last_end_, event.time, event.end});
      const bool phase_entered = event.kind == static_cast<std::uint16_t>(sim::EventKind::kLog) &&
                                 event.c == static_cast<std::uint64_t>(LogEvent::kPhaseEntered);
      if (phase_entered && open_) enter(trace_.texts.at(event.text), event.a, event.time);
    }
  }

  void enter(std::string_view phase, std::uint64_t index, std::int64_t time) {
    OpenCall& call = *open_;
    const bool elsewhere = call.phase && call.phases[*call.phase].phase != phase;
    // What comes before the first phase is its preparation.
    if (call.phase) end_phase(time);
    auto found = std::find_if(call.phases.begin(), call.phases.end(),
                              [phase](const PhaseTime& known) { return known.phase == phase; });
    if (found == call.phases.end()) {
      found = call.phases.insert(found, PhaseTime{std::string(phase), 0, 0});
    }
    // A transfer is gone back to after the gather beside it.
    const auto [last, fresh] = call.index.emplace(phase, index);
    const bool returns = !fresh && elsewhere && last->second == index;
    last->second = index;
    found->count += returns ? 0 : 1;
    call.phase = static_cast<std::size_t>(found - call.phases.begin());
  }

  void end_phase(std::int64_t time) {
    open_->phases[*open_->phase].ns += time - open_->phase_begin;
    open_->phase_begin = time;
  }

  void close(std::int64_t end, bool returned, const sim::Event* event) {
    end = std::max(end, open_->phase_begin);
    if (open_->phase) end_phase(end);
    OpenCall call = std::move(*open_);
    open_.reset();
    const bool ok = event != nullptr && event->b != 0;
    if (failed_ && call.call != Call::kStartEngine) return;
    Round* round = round_of(call.call);
    const bool first =
        round->calls.emplace(call.call, CallTime{end - call.begin, returned, ok}).second;
    if (call.call != Call::kSync || !first) return;
    round->phases = std::move(call.phases);
    if (ok) round->version = static_cast<std::int64_t>(event->c);
    if (event != nullptr && !ok) round->error = trace_.texts.at(event->text);
    failed_ = !ok;
  }

  Round* round_of(Call call) {
    const Round* last = rounds_.empty() ? nullptr : &rounds_.back();
    const bool served = last != nullptr && (last->find(Call::kSync) != nullptr ||
                                            last->find(Call::kGenerate) != nullptr);
    const bool begins = call == Call::kSleep || call == Call::kStartEngine ||
                        (call == Call::kSync && served && last->find(Call::kSync) != nullptr);
    if (last == nullptr || (served && begins)) rounds_.emplace_back();
    failed_ = false;
    return &rounds_.back();
  }

  const sim::Trace& trace_;
  std::vector<Round> rounds_;
  std::optional<OpenCall> open_;
  std::int64_t last_end_ = 0;
  bool failed_ = false;
};

std::string milliseconds(std::int64_t ns) {
  return fmt::format("{:>10.3f}", static_cast<double>(ns) / 1e6);
}

std::string rate(const Transfer& transfer, std::int64_t ns) {
  if (!transfer.real_time) return "-";
  return fmt::format("{:.3g}", gigabytes_per_second(transfer.bytes, ns));
}

std::string name_of(const Round& round) {
  const CallTime* publication = round.publication();
  if (publication == nullptr) return "bootstrap";
  return publication->ok ? fmt::format("version {}", round.version) : "failed";
}

}  // namespace

const CallTime* Round::find(Call call) const {
  const auto found = calls.find(call);
  return found == calls.end() ? nullptr : &found->second;
}

std::vector<Round> read_rounds(const sim::Trace& trace) { return RoundReader(trace).read(); }

double gigabytes_per_second(std::uint64_t bytes, std::int64_t ns) {
  return ns > 0 ? static_cast<double>(bytes) / static_cast<double>(ns) : 0;
}

double percent_of(std::int64_t ns, std::int64_t total) {
  return total > 0 ? 100 * static_cast<double>(ns) / static_cast<double>(total) : 0;
}

std::string loop_table(const std::vector<Round>& rounds, const Transfer& transfer) {
  std::vector<std::vector<std::string>> rows = {{"round"}};
  for (const auto& [call, name] : kLoopCalls) rows[0].push_back(fmt::format("{:>10}", name));
  rows[0].insert(rows[0].end(), {"bytes", "GB/s"});
  for (const Round& round : rounds) {
    std::vector<std::string>& row = rows.emplace_back(std::vector{name_of(round)});
    for (const auto& [call, name] : kLoopCalls) {
      const CallTime* time = round.find(call);
      row.push_back(time == nullptr ? fmt::format("{:>10}", "-") : milliseconds(time->ns));
      if (time != nullptr && !time->ok) row.back() += time->returned ? " (failed)" : " (died)";
    }
    const CallTime* publication = round.publication();
    const bool moved = publication != nullptr && publication->ok;
    row.push_back(moved ? std::to_string(transfer.bytes) : "-");
    row.push_back(moved ? rate(transfer, publication->ns) : "-");
  }
  return table(rows);
}

std::string phase_table(const Round& round, const Transfer& transfer) {
  const CallTime* publication = round.publication();
  if (publication == nullptr) return "";
  const auto share = [&](std::int64_t ns) {
    return fmt::format("{:>6.1f} %", percent_of(ns, publication->ns));
  };
  std::vector<std::vector<std::string>> rows = {
      {name_of(round), "times", fmt::format("{:>10}", "ms"), fmt::format("{:>8}", "share")}};
  for (const PhaseTime& phase : round.phases) {
    rows.push_back(
        {phase.phase, fmt::format("{:>5}", phase.count), milliseconds(phase.ns), share(phase.ns)});
  }
  std::string sum = "publication";
  if (publication->ok) {
    sum = fmt::format("{} bytes in {} chunks", transfer.bytes, transfer.chunks);
    if (transfer.real_time) sum += fmt::format(", {} GB/s", rate(transfer, publication->ns));
  }
  rows.push_back({sum, "", milliseconds(publication->ns), share(publication->ns)});
  return table(rows);
}

}  // namespace tpsync::conformance
