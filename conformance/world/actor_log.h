// What the actors of one world kept of their calls' outcomes, read back from its trace: the same in
// every world, whatever memory actors share with the harness.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/trace.h"
#include "tpsync/base/errors.h"
#include "tpsync/wire/messages.h"

namespace tpsync::conformance {

struct Outcome {
  std::optional<ErrorRecord> error;
  std::int64_t version = 0;              // of a sync or a generation
  std::vector<wire::GeneratedRow> rows;  // of a generation; not kept
  bool ok() const { return !error.has_value(); }
};

struct ActorLog {
  std::vector<std::vector<Outcome>> by_rank;  // in the order of the calls
  std::vector<std::string> failed_checks;     // of scripts, in the order of the trace
  const Outcome& last(int rank) const { return by_rank[static_cast<std::size_t>(rank)].back(); }
};

// The first `actors` processes of a trace are its actors, by rank.
ActorLog read_actor_log(const sim::Trace& trace, int actors);

// {"kind":..,"remedy":..,"phase":..,"rank":..,"subject":..,"detail":..}
std::string to_json(const ErrorRecord& record);
// Throws InvalidInput kInvalidConfig for anything else.
ErrorRecord error_from_json(std::string_view text);

}  // namespace tpsync::conformance
