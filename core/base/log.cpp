#include "tpsync/base/log.h"

#include "tpsync/base/errors.h"

namespace tpsync {

std::string_view to_string(LogEvent event) {
  switch (event) {
    case LogEvent::kPhaseEntered:
      return "phase_entered";
    case LogEvent::kPhaseFailed:
      return "phase_failed";
    case LogEvent::kCommandSent:
      return "command_sent";
    case LogEvent::kCommandReceived:
      return "command_received";
    case LogEvent::kCommandFailed:
      return "command_failed";
    case LogEvent::kConnectionBroken:
      return "connection_broken";
    case LogEvent::kRuntimeSpawned:
      return "runtime_spawned";
    case LogEvent::kRuntimeGone:
      return "runtime_gone";
    case LogEvent::kStateChanged:
      return "state_changed";
    case LogEvent::kVersionCommitted:
      return "version_committed";
    case LogEvent::kImportsReleased:
      return "imports_released";
    case LogEvent::kExportLeaked:
      return "export_leaked";
    case LogEvent::kNote:
      return "note";
  }
  TPSYNC_ASSERT(false);
  return {};
}

}  // namespace tpsync
