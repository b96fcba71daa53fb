// Texts that several rows of the catalogue share.
#pragma once

#include <string_view>

#include "faults/catalogue.h"
#include "faults/rules.h"

namespace tpsync::faults::rows {

inline constexpr std::string_view kEveryWorld = "sim process gpu";
inline constexpr std::string_view kFailStop =
    "The publication fails on every actor with one error; the runtime, if it was touched, is gone; "
    "the next publication needs a new runtime.";
inline constexpr std::string_view kFailBeforeTouch =
    "The publication fails on every actor with one error. Before init the runtime stays usable; "
    "from init on it is gone.";
inline constexpr std::string_view kRefusedUntouched =
    "The publication fails on every actor with one error, before the runtime is touched: it serves "
    "on.";
inline constexpr std::string_view kNoHalfCommit =
    "A success on any actor, a token from weights of no version, a hang, a process or export left "
    "behind, another error on another actor.";
inline constexpr std::string_view kNothingAtAll =
    "A failure, a retry, another version than the next one, a wait that a deadline ends.";
inline constexpr std::string_view kCommits = "The publication commits, only later.";
inline constexpr std::string_view kMessageMoment =
    "channel.write of a whole message, by any process, to another process: requests and replies.";
inline constexpr std::string_view kReplyMoment =
    "channel.write of a whole reply: of a worker to the runtime, of the runtime to its parent.";

}  // namespace tpsync::faults::rows
