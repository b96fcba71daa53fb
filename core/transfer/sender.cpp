#include "tpsync/transfer/sender.h"

#include <algorithm>
#include <string_view>

#include "tpsync/base/dtype.h"
#include "tpsync/transfer/chunk_layout.h"
#include "tpsync/transfer/content_digest.h"

namespace tpsync::transfer {

namespace {

constexpr std::string_view kMaterialize = "native-materialize-";
constexpr std::string_view kTransfer = "native-transfer-";

// Of an error that the agreement at another phase's gate is to report.
void name_phase(std::optional<ErrorRecord>& error, std::string_view phase, std::uint64_t chunk) {
  if (error && error->phase.empty()) error->phase = std::string(phase) + std::to_string(chunk);
}

}  // namespace

UpdatePlan::UpdatePlan(std::span<const wire::TensorRecord> tensors, std::span<const Chunk> chunks) {
  updates_.reserve(chunks.size());
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    wire::UpdateRequest request;
    request.chunk_index = c;
    request.names.reserve(chunks[c].count);
    request.dtype_names.reserve(chunks[c].count);
    request.shapes.reserve(chunks[c].count);
    request.tensor_sizes.reserve(chunks[c].count);
    for (const auto& tensor : tensors.subspan(chunks[c].first, chunks[c].count)) {
      const auto dtype = dtype_from_torch(tensor.dtype);
      TPSYNC_ASSERT(dtype.has_value());
      request.names.push_back(tensor.name);
      request.dtype_names.emplace_back(bare_name(*dtype));
      request.shapes.push_back(tensor.shape);
      request.tensor_sizes.push_back(tensor.nbytes);
    }
    updates_.emplace_back(request);
  }
}

wire::HandleMap merge_handles(std::span<const std::string> uuids,
                              std::vector<wire::HandleMap> gathered) {
  wire::HandleMap merged;
  merged.entries.reserve(uuids.size());
  for (std::size_t r = 0; r < gathered.size(); ++r) {
    for (auto& entry : gathered[r].entries) {
      const std::string& uuid = entry.first;
      const auto fail = [&](const char* what) {
        ErrorRecord record;
        record.kind = ErrorKind::kMismatch;
        record.remedy = Remedy::kFixPeer;
        record.rank = static_cast<int>(r);
        record.subject = uuid;
        record.detail = what;
        throw PeerViolation(record);
      };
      if (merged.find(uuid) != nullptr) fail("two ranks exported for this device");
      if (std::find(uuids.begin(), uuids.end(), uuid) == uuids.end()) {
        fail("no worker runs on this device");
      }
      const auto at = std::lower_bound(
          merged.entries.begin(), merged.entries.end(), uuid,
          [](const auto& known, const std::string& key) { return known.first < key; });
      merged.entries.insert(at, std::move(entry));
    }
  }
  for (std::size_t r = 0; r < uuids.size(); ++r) {
    if (merged.find(uuids[r]) == nullptr) {
      ErrorRecord record;
      record.kind = ErrorKind::kMismatch;
      record.remedy = Remedy::kFixPeer;
      record.rank = static_cast<int>(r);
      record.subject = uuids[r];
      record.detail = "no rank exported for this worker's device";
      throw PeerViolation(record);
    }
  }
  return merged;
}

Sender::Sender(device::Device& device, WeightSource& source, Gates& gates, Log& log,
               UpdateSink* sink, std::span<const wire::TensorRecord> expected,
               std::vector<Chunk> chunks, const UpdatePlan* updates, const SenderOptions& options)
    : device_(device),
      source_(source),
      gates_(gates),
      log_(log),
      sink_(sink),
      expected_(expected),
      chunks_(std::move(chunks)),
      updates_(updates),
      options_(options) {
  TPSYNC_ASSERT(sink_ == nullptr || updates_ != nullptr);
  const bool overlaps = options_.overlap && options_.layout == wire::Layout::kRankMajor;
  const bool reshards = options_.route == wire::Route::kReshard;
  TPSYNC_ASSERT(!reshards || options_.layout == wire::Layout::kRankMajor);
  if (overlaps) {
    slots_ = std::min<std::uint64_t>(reshards ? kReshardSlotsMax : kSlotsMax, chunks_.size());
  }
  const auto world = static_cast<std::uint64_t>(gates_.group().size());
  buffer_bytes_ =
      slots_ * (reshards ? reshard_slot_bytes(expected_, chunks_, source_.layout())
                         : slot_bytes(options_.layout, options_.bucket_bytes, world, slots_));
}

Sender::~Sender() {
  pass_.reset();
  if (!buffer_) return;
  log_.record({.level = LogLevel::kError,
               .event = LogEvent::kExportLeaked,
               .a = static_cast<std::int64_t>(buffer_bytes_)});
  export_.leak();
  buffer_.leak();
}

void Sender::open(std::span<const std::string> device_uuids) {
  gates_.enter("native-buffer-allocation", 0);
  ByteBuffer own;
  std::optional<ErrorRecord> error;
  attempt(error, [&] {
    buffer_ = device::allocate(device_,
                               {.bytes = buffer_bytes_, .kind = device::RegionKind::kExportable});
    const ByteBuffer exported = device_.export_region(buffer_.id());
    export_ = device::Export(device_, buffer_.id());
    wire::HandleMap handle;
    handle.entries.emplace_back(device_.uuid(), exported);
    wire::encode(handle, own);
    pass_ = source_.begin({.buffer = buffer_.id(),
                           .handle = exported,
                           .buffer_bytes = buffer_bytes_,
                           .slots = slots_,
                           .layout = options_.layout,
                           .route = options_.route,
                           .bucket_bytes = options_.bucket_bytes,
                           .content_digest = options_.content_digest,
                           .chunks = chunks_});
    if (!pass_) throw_invalid(ErrorKind::kInvalidState, "source", "began no pass");
  });
  if (!error) error = prepare(0, 0);
  const auto gathered = gates_.exchange(own, error);
  attempt(error, [&] {
    std::vector<wire::HandleMap> handles;
    for_each_rank(gathered,
                  [&](ByteView bytes) { handles.push_back(wire::decode_handle_map(bytes)); });
    handles_ = merge_handles(device_uuids, std::move(handles));
  });
  gates_.agree(error);
}

// On entry all ranks agreed that the first chunk's first group may begin, at the allocation of the
// buffer. Each agreement is also the one before the group that is entered next.
void Sender::send() {
  std::optional<ErrorRecord> error;
  gather(0, error);
  if (!error && ahead() > 0) error = prepare(1, 0);
  gates_.agree(error);
  for (std::uint64_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    transfer(chunk);
    if (ahead() > 0 || chunk + 1 == chunks_.size()) continue;
    gather(chunk + 1, error);
    gates_.agree(error);
  }
}

// What can fail before a group without touching the buffer. A failure is reported at the agreement
// that stands before that group, under the group's own name.
std::optional<ErrorRecord> Sender::prepare(std::uint64_t chunk, std::uint64_t group) {
  try {
    groups_ = pass_->group_count(chunk);
    if (groups_ == 0) {
      throw_invalid(ErrorKind::kInvalidState, "source",
                    "needs at least one group of collectives for a chunk, it names none");
    }
    pass_->prepare(chunk, group);
    if (group + 1 == groups_) check_emitted(chunks_[chunk]);
    return std::nullopt;
  } catch (const std::exception& e) {
    std::optional<ErrorRecord> error = record_of(e);
    error->phase.clear();
    name_phase(error, kMaterialize, chunk);
    return error;
  }
}

// All groups of a chunk, with an agreement between any two of them; the one behind the last is the
// caller's. A rank that comes with an error enters none, and its peers stop waiting for it.
void Sender::gather(std::uint64_t chunk, std::optional<ErrorRecord>& error) {
  gates_.enter("native-materialize", static_cast<std::int64_t>(chunk));
  const std::uint64_t groups = groups_;
  for (std::uint64_t group = 0; group < groups; ++group) {
    attempt(error, [&] { pass_->gather(chunk, group, gates_.begin_wait(), gates_.group()); });
    name_phase(error, kMaterialize, chunk);
    if (error) {
      gates_.group().raise_alarm();  // peers stop waiting and meet this rank at the gate
      if (sink_ != nullptr) sink_->give_up(*error);
    }
    if (group + 1 == groups) break;
    if (!error) error = prepare(chunk, group + 1);
    gates_.agree(error);
  }
}

// On entry all ranks agreed that every rank's slot of this chunk is complete, so that every worker
// may read its own.
void Sender::transfer(std::uint64_t chunk) {
  const auto index = static_cast<std::int64_t>(chunk);
  std::optional<ErrorRecord> error;
  gates_.enter("native-transfer", index);
  if (sink_ != nullptr) {
    attempt(error, [&] { sink_->send(updates_->update(chunk), handles_); });
  }
  name_phase(error, kTransfer, chunk);  // the next agreement may be one of the gather's
  if (ahead() > 0 && chunk + 1 < chunks_.size()) {
    gather(chunk + 1, error);
    gates_.enter("native-transfer", index);
  }
  if (sink_ != nullptr) attempt(error, [&] { sink_->await(); });
  const std::uint64_t next = chunk + 1 + ahead();
  if (!error && next < chunks_.size()) error = prepare(next, 0);
  gates_.agree(error);
}

void Sender::check_emitted(const Chunk& chunk) {
  const auto emitted = pass_->emitted();
  const std::uint64_t end = chunk.first + chunk.count;
  for (std::uint64_t t = chunk.first; t < end; ++t) {
    if (t >= emitted.size()) {
      throw_violation(ErrorKind::kMismatch, expected_[t].name,
                      "the source ended before this planned tensor");
    }
    if (emitted[t] != expected_[t]) {
      throw_violation(ErrorKind::kMismatch, expected_[t].name,
                      emitted[t].name == expected_[t].name
                          ? "was emitted with another shape, dtype or size than planned"
                          : "is due, the source emitted " + emitted[t].name);
    }
  }
  if (emitted.size() > end) {
    throw_violation(ErrorKind::kMismatch, emitted[end].name, "was emitted beyond its chunk");
  }
}

wire::ExpectedDigest Sender::verify_source() {
  gates_.enter("native-source-verify", 0);
  std::optional<ErrorRecord> error;
  ByteBuffer own;
  attempt(error, [&] {
    if (!pass_->exhausted()) {
      throw_violation(ErrorKind::kMismatch, "source", "has more tensors to give than planned");
    }
    const auto emitted = pass_->emitted();
    // Record by record, which is what equal fingerprints stand for where only they are at hand.
    if (!std::equal(emitted.begin(), emitted.end(), expected_.begin(), expected_.end())) {
      throw_violation(ErrorKind::kMismatch, "manifest",
                      "what this rank emitted (" + std::to_string(emitted.size()) +
                          " tensors) is not the expected manifest");
    }
    if (options_.content_digest && pass_->digest_sums().size() != expected_.size()) {
      throw_violation(ErrorKind::kMismatch, "digest", "the source summed other tensors");
    }
    wire::encode_sums(pass_->digest_sums(), own);
  });
  wire::ExpectedDigest digest;
  if (options_.content_digest) {
    const auto gathered = gates_.exchange(own, error);
    attempt(error, [&] { digest = add_sums(gathered); });
  }
  gates_.agree(error);
  return digest;
}

wire::ExpectedDigest Sender::add_sums(std::span<const ByteBuffer> gathered) const {
  std::vector<std::uint64_t> total(expected_.size(), 0);
  for_each_rank(gathered, [&](ByteView bytes) {
    const auto sums = wire::decode_sums(bytes);
    if (sums.size() != total.size()) {
      throw_violation(ErrorKind::kMismatch, "digest",
                      "this rank sent " + std::to_string(sums.size()) + " sums for " +
                          std::to_string(total.size()) + " tensors");
    }
    for (std::size_t t = 0; t < total.size(); ++t) total[t] += sums[t];
  });
  return expected_digest(expected_, total);
}

void Sender::release(Deadline deadline) {
  try {
    if (pass_ && !pass_->quiesce(deadline)) return;
  } catch (const std::exception&) {
    return;  // no answer is no promise that the work is over
  }
  pass_.reset();
  export_.reset();
  buffer_.reset();
}

}  // namespace tpsync::transfer
