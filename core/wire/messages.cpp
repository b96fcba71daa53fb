// Names of commands and layouts, and which command a payload belongs to.
#include "tpsync/wire/messages.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "tpsync/base/errors.h"

namespace tpsync::wire {
namespace {

// By the number of the command; the payload alternatives of messages.h stand in the same order.
constexpr std::array<std::string_view, 12> kCommandNames = {
    "startup",
    "generate",
    "sleep",
    "wake_up",
    "health",
    "probe_ipc",
    "init_native_weight_transfer",
    "start_native_weight_update",
    "update_native_weights",
    "finish_native_weight_update",
    "release_native_ipc",
    "shutdown",
};
static_assert(std::variant_size_v<Payload> == kCommandNames.size());

}  // namespace

std::string_view name_of(Command command) {
  const auto number = static_cast<std::size_t>(command);
  TPSYNC_ASSERT(number >= 1 && number <= kCommandNames.size());
  return kCommandNames[number - 1];
}

std::optional<Command> command_from(std::string_view name) {
  const auto* const found = std::find(kCommandNames.begin(), kCommandNames.end(), name);
  if (found == kCommandNames.end()) return std::nullopt;
  return static_cast<Command>(found - kCommandNames.begin() + 1);
}

bool says_broken(const Response& response) {
  return !response.ok && response.error.starts_with(kBrokenClass) &&
         std::string_view(response.error).substr(kBrokenClass.size()).starts_with(": ");
}

bool failure_breaks(Command command) {
  return is_native(command) || command == Command::kSleep || command == Command::kWakeUp ||
         command == Command::kStartup;
}

bool is_native(Command command) {
  switch (command) {
    case Command::kInit:
    case Command::kStart:
    case Command::kUpdate:
    case Command::kFinish:
    case Command::kRelease:
      return true;
    case Command::kStartup:
    case Command::kGenerate:
    case Command::kSleep:
    case Command::kWakeUp:
    case Command::kHealth:
    case Command::kProbeIpc:
    case Command::kShutdown:
      return false;
  }
  return false;
}

Command command_of(const Payload& payload) { return static_cast<Command>(payload.index() + 1); }

std::string_view name_of(Layout layout) {
  return layout == Layout::kCompact ? "compact" : "rank_major";
}

std::optional<Layout> layout_from(std::string_view name) {
  if (name == name_of(Layout::kCompact)) return Layout::kCompact;
  if (name == name_of(Layout::kRankMajor)) return Layout::kRankMajor;
  return std::nullopt;
}

const ByteBuffer* HandleMap::find(std::string_view uuid) const {
  const auto found =
      std::lower_bound(entries.begin(), entries.end(), uuid,
                       [](const auto& entry, std::string_view key) { return entry.first < key; });
  return found != entries.end() && found->first == uuid ? &found->second : nullptr;
}

}  // namespace tpsync::wire
