#include "conformance/fuzz/peers.h"

#include "tpsync/wire/reader.h"

namespace tpsync::fuzz {

const PublicationInputs& inputs() {
  static const PublicationInputs kInputs;
  return kInputs;
}
Answered envelope_of(ByteView body) {
  constexpr std::string_view kNames[] = {"request_id", "command", "ok"};
  Answered answered;
  wire::Reader reader(body);
  const wire::Path root;
  wire::Fields fields(reader, root, kNames, 1);
  while (const auto field = fields.next()) {
    const wire::Path path = root.field(kNames[*field]);
    if (*field == 0) answered.id = reader.integer(path);
    if (*field == 1) answered.command = std::string(reader.text(path));
    if (*field == 2) answered.ok = reader.boolean(path);
  }
  fields.require({0, 1, 2});
  return answered;
}

bool answer(fakes::Peer& peer, const wire::RequestHead& head, Behaviour behaviour, ByteView raw,
            wire::Result result) {
  switch (behaviour) {
    case Behaviour::kSucceed:
      fakes::send_response(peer, fakes::succeeded(head, std::move(result)));
      return true;
    case Behaviour::kFail:
      fakes::send_response(peer, fakes::failed(head, "InvalidInput: no"));
      return false;
    case Behaviour::kSilent:
      return false;
    case Behaviour::kEndOfFile:
      peer.gone = true;
      return false;
    case Behaviour::kRawBody:
      peer.send(fakes::framed(raw));
      try {
        const Answered answered = envelope_of(raw);
        return answered.ok && answered.id == head.request_id && answered.command == head.command;
      } catch (const PeerViolation&) {
        return false;
      }
    case Behaviour::kRawBytes:
      peer.send(raw);
      return true;  // who knows
    case Behaviour::kOtherId: {
      wire::RequestHead other = head;
      other.request_id += 1;
      fakes::send_response(peer, fakes::succeeded(other, std::move(result)));
      return false;
    }
    case Behaviour::kTwice: {
      const wire::Response response = fakes::succeeded(head, std::move(result));
      fakes::send_response(peer, response);
      fakes::send_response(peer, response);
      return true;
    }
  }
  return false;
}

}  // namespace tpsync::fuzz
