// What the targets share in which a foreign peer speaks the control protocol: what it may do with a
// request, and how a reply is told without the code that made it.
#pragma once

#include <chrono>
#include <string>

#include "conformance/fuzz/publication_inputs.h"
#include "conformance/fuzz/target.h"
#include "core/wire/testing/scripted_peer.h"

namespace tpsync::fuzz {

inline constexpr Duration kPeerTimeout = std::chrono::seconds(60);
inline constexpr int kStepsMax = 48;

const PublicationInputs& inputs();

// The envelope of a response, whatever it answers.
struct Answered {
  std::int64_t id = 0;
  std::string command;
  bool ok = false;
};

// Throws PeerViolation where there is none.
Answered envelope_of(ByteView body);

// What a peer does with a request: 3 bits of how, and what it sends where that is raw.
enum class Behaviour : std::uint8_t {
  kSucceed,
  kFail,
  kSilent,
  kEndOfFile,
  kRawBody,
  kRawBytes,
  kOtherId,
  kTwice,
};

bool answer(fakes::Peer& peer, const wire::RequestHead& head, Behaviour behaviour, ByteView raw,
            wire::Result result);

}  // namespace tpsync::fuzz
