// MessagePack forms of the values that several messages share. The maps carry the names of
// messages.h; what is large for a real model (digest parts, expected sums, shard bounds) is packed
// into one `bytes` value, whose format messages.h gives.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tpsync/wire/messages.h"
#include "tpsync/wire/reader.h"
#include "tpsync/wire/writer.h"

namespace tpsync::wire {

// Of an array's announced elements, how many a reader makes room for at once: texts, receipts and
// shapes are larger in memory than the bytes that announce them, so beyond this many they grow by
// doubling.
inline constexpr std::size_t kReservedMax = 1024;

void write(Writer& out, const PublicationHeader& header);
void write(Writer& out, const WorkerReceipt& receipt);
void write(Writer& out, const CommitResult& result);
void write(Writer& out, const HandleMap& handles);
void write_texts(Writer& out, std::span<const std::string> texts);
void write_naturals(Writer& out, std::span<const std::uint64_t> values);
void write_integers(Writer& out, std::span<const std::int64_t> values);
void write_packed(Writer& out, std::span<const DigestPart> parts);
void write_packed(Writer& out, const ExpectedDigest& digest);
void write_packed_bounds(Writer& out, const SourceLayout& layout);

// `nesting` counts the containers around the value.
PublicationHeader read_header(Reader& in, const Path& path, int nesting);
std::vector<WorkerReceipt> read_receipts(Reader& in, const Path& path, int nesting);
WorkerReceipt read_receipt(Reader& in, const Path& path, int nesting);
CommitResult read_commit_result(Reader& in, const Path& path, int nesting);
HandleMap read_handles(Reader& in, const Path& path);
std::vector<std::string> read_texts(Reader& in, const Path& path);
std::vector<std::uint64_t> read_naturals(Reader& in, const Path& path);
std::vector<std::int64_t> read_integers(Reader& in, const Path& path);
std::vector<DigestPart> read_packed_parts(Reader& in, const Path& path);
ExpectedDigest read_packed_digest(Reader& in, const Path& path);
std::vector<std::uint64_t> read_packed_bounds(Reader& in, const Path& path);

// Of a request: protocol_version, request_id, command.
inline constexpr std::size_t kEnvelopeFields = 3;

// Where the envelope's fields of a request or response stand in its body; the rest is skipped, and
// the whole body is one well-formed map. Shared so that both sides find the same faults.
struct Envelope {
  static constexpr std::size_t kAbsent = SIZE_MAX;
  std::size_t protocol_version = kAbsent;
  std::size_t request_id = kAbsent;
  std::size_t command = kAbsent;
  std::size_t ok = kAbsent;  // of responses, like the next three
  std::size_t result = kAbsent;
  std::size_t error = kAbsent;
  std::size_t traceback = kAbsent;
};
Envelope locate_request_envelope(ByteView body);
Envelope locate_response_envelope(ByteView body);
// A reader of the value at `position`; throws if that is absent.
Reader reader_at(ByteView body, std::size_t position, const Path& path);
// Checks in order: protocol_version; request_id (integer, >= 1); command (non-empty text).
RequestHead read_head(ByteView body, const Envelope& envelope);

}  // namespace tpsync::wire
