// What message faults do to the bodies of frames and to the broadcast result. Bodies are decoded,
// changed and encoded again by core's own codecs, so that nothing but the fault differs.
#pragma once

#include <optional>
#include <string>

#include "faults/plan.h"
#include "tpsync/base/bytes.h"
#include "tpsync/wire/messages.h"

namespace tpsync::faults {

struct AlteredFrame {
  ByteBuffer body;
  int copies = 1;
};

// Changes the one receipt of a worker's reply to finish. nullopt if the fault has nothing to change
// there: no such reply, not a success, no digest.
std::optional<AlteredFrame> alter_worker_reply(const Fault& fault, ByteView body);
// The same for the runtime's reply, a CommitResult.
std::optional<AlteredFrame> alter_runtime_reply(const Fault& fault, ByteView body);
// The same for an encoded CommitResult as rank 0 broadcasts it.
std::optional<ByteBuffer> alter_broadcast(const Fault& fault, ByteView bytes);

// Takes the expert's tensors out of an update request. nullopt if it is none or has none of them.
std::optional<ByteBuffer> lose_expert(const Fault& fault, ByteView body);

// A message's body under one of the faults that distort it: a request, or a reply of `sender`.
// nullopt if the fault has nothing to change there.
std::optional<ByteBuffer> distort_message(const Fault& fault, wire::Peer sender, bool is_reply,
                                          ByteView body);

// An encoded HandleMap whose first entry is of the device `uuid`; empty: of one that is nobody's.
std::optional<ByteBuffer> with_other_uuid(ByteView handles, const std::string& uuid);

}  // namespace tpsync::faults
