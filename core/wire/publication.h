// What identifies a publication and what attests it: header, worker receipts, the committed result;
// and their checks, in one fixed order, each with its own error. Validation is repeated at every
// process boundary, by the same functions.
//
// All validators throw PeerViolation; kind kMismatch where a well-formed value is not the expected
// one, kProtocol where the form is wrong. subject names the field ("receipts[2].device_uuid").
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tpsync/wire/manifest.h"

namespace tpsync::wire {

inline constexpr std::int64_t kProtocolVersion = 1;

// How weights come from the actors to the workers; each is a transport of its own, named in the
// header. Fixed before the runtime is touched, and never changed.
enum class Route : std::uint8_t {
  kGather = 1,  // actors gather each chunk, and a worker reads its own actor's buffer
  kReshard,     // no gather: a worker reads its slices from where they lie, in all actors' buffers
};
inline constexpr Route kRoutes[] = {Route::kGather, Route::kReshard};
std::string_view name_of(Route route);  // "gather", "reshard"
std::optional<Route> route_from(std::string_view name);
// The id in the header and among the runtime's capabilities: "vllm_native_ipc",
// "tpsync_reshard_ipc".
std::string_view transport_of(Route route);
std::optional<Route> route_of_transport(std::string_view transport);
inline constexpr std::string_view kTransport = "vllm_native_ipc";  // of the gather

struct PublicationHeader {
  std::int64_t protocol_version = kProtocolVersion;
  std::string transport{kTransport};
  std::string publication_id;      // 32 lower-case hex digits from the producer
  std::int64_t model_version = 0;  // > 0
  std::int64_t tp_world_size = 0;
  Manifest expected_manifest;
  std::vector<std::string> device_uuids;  // in actor rank order, one per worker
  friend bool operator==(const PublicationHeader&, const PublicationHeader&) = default;
};

// One sum of the content digest: a rectangle of a canonical tensor, in rows and columns of the full
// tensor.
struct DigestPart {
  std::uint64_t tensor = 0;          // index in canonical order
  std::uint64_t row0 = 0, row1 = 0;  // half open
  std::uint64_t col0 = 0, col1 = 0;
  std::uint64_t sum = 0;
  friend bool operator==(const DigestPart&, const DigestPart&) = default;
};

struct WorkerReceipt {
  std::int64_t tp_rank = -1;
  std::int64_t tp_world_size = 0;
  std::string device_uuid;
  std::string publication_id;
  std::int64_t model_version = 0;
  std::string
      expected_manifest_fingerprint;  // computed by the worker from what it received, not echoed
  std::int64_t resident_parameter_count = 0;
  bool ready = false;
  std::vector<DigestPart> digest;  // empty when the content digest is off
  friend bool operator==(const WorkerReceipt&, const WorkerReceipt&) = default;
};

// What the content digest must come to: per canonical tensor its rows, columns and the actors'
// agreed sum. Empty: off.
struct ExpectedDigest {
  struct Tensor {
    std::uint64_t rows = 0;
    std::uint64_t cols = 0;
    std::uint64_t sum = 0;
    friend bool operator==(const Tensor&, const Tensor&) = default;
  };
  std::vector<Tensor> tensors;
  friend bool operator==(const ExpectedDigest&, const ExpectedDigest&) = default;
};

struct CommitResult {  // of finish_native_weight_update
  std::string status;  // "committed"
  std::int64_t model_version = 0;
  std::vector<WorkerReceipt> worker_receipts;  // in any order
  bool prefix_cache_reset = false;
  friend bool operator==(const CommitResult&, const CommitResult&) = default;
};

// Fingerprint form, tensor_count > 0: kProtocol both.
void validate_manifest(const Manifest& manifest);

// Order: version; the transport of one of `routes`, those that the caller chose or declared;
// publication id not empty; model_version > 0; tp_world_size == world (kMismatch if not equal,
// kProtocol if not positive); manifest; exactly `world` (kMismatch) distinct non-empty (kProtocol)
// device UUIDs.
void validate_header(const PublicationHeader& header, std::int64_t world,
                     std::span<const Route> routes);

// Order: header, against its own world and with any known transport: its owner has held it against
// its own routes; count; per receipt: rank in range (kProtocol), then
// publication id, version, world, fingerprint, UUID of that rank and readiness, then resident count
// > 0 (kProtocol); then ranks 0..world-1 exactly; then, unless `digest` is empty, the content
// digest: as many tensors as the manifest has; every part inside its tensor (kProtocol), an empty
// range with the sum 0; then for every tensor in order: equal ranges have equal sums, and distinct
// ranges tile the tensor ("receipts[r].digest[i]" where one part is at fault, "digest.tensors[t]"
// where all together are) and add up to the actors' sum. O(n log n) in the number of parts.
void validate_receipts(const PublicationHeader& header, std::span<const WorkerReceipt> receipts,
                       const ExpectedDigest& digest);

// Order: status; receipts; model_version; prefix cache reset where flush_cache.
void validate_result(const PublicationHeader& header, const CommitResult& result, bool flush_cache,
                     const ExpectedDigest& digest);

}  // namespace tpsync::wire
