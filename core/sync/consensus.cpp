#include "tpsync/sync/consensus.h"

#include <algorithm>

#include "tpsync/base/errors.h"

namespace tpsync::sync {

namespace {

enum Status : std::uint64_t { kOk = 0, kFailed = 1, kGaveUp = 2 };
constexpr int kStatusBits = 2;

bool has_index(std::string_view phase) {
  return phase == "native-materialize" || phase == "native-transfer";
}

// FNV-1a over the gate's name, so that ranks at different gates cannot agree by accident.
std::uint64_t gate_word(std::string_view phase, std::int64_t index) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  const auto add = [&hash](std::uint64_t byte) { hash = (hash ^ byte) * 0x100000001b3ULL; };
  for (const char c : phase) add(static_cast<unsigned char>(c));
  for (int shift = 0; shift < 64; shift += 8)
    add((static_cast<std::uint64_t>(index) >> shift) & 0xff);
  return hash << kStatusBits;
}

}  // namespace

Consensus::Consensus(collective::ControlGroup& group, Clock& clock, Log& log,
                     Duration control_timeout)
    : group_(group),
      clock_(clock),
      log_(log),
      timeout_(control_timeout),
      words_(static_cast<std::size_t>(group.size())) {}

void Consensus::enter(std::string_view phase, std::int64_t index) {
  phase_ = phase;
  index_ = index;
  log_.record(
      {.level = LogLevel::kDebug, .event = LogEvent::kPhaseEntered, .a = index, .subject = phase});
}

std::string Consensus::phase_name() const {
  std::string name(phase_);
  if (has_index(phase_)) name += '-' + std::to_string(index_);
  return name;
}

Deadline Consensus::begin_wait() {
  wait_deadline_ = Deadline::after(clock_, timeout_);
  return wait_deadline_;
}

// Peers are in the same wait, begun at about the same time, and leave it by its deadline.
Deadline Consensus::after_failed_wait() {
  const TimePoint now = clock_.now();
  const TimePoint end = std::max(now, wait_deadline_.time()) + kTimeoutGrace;
  return Deadline::at(end).earlier(Deadline::at(now + timeout_));
}

template <typename Call>
void Consensus::with_phase(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    ErrorRecord record = error.record();
    record.phase = phase_name();
    throw_record(record);
  }
}

std::vector<ByteBuffer> Consensus::all_gather(ByteView bytes) {
  std::vector<ByteBuffer> gathered;
  with_phase([&] { gathered = group_.all_gather(bytes, Deadline::after(clock_, timeout_)); });
  return gathered;
}

void Consensus::broadcast(ByteBuffer& bytes) {
  with_phase([&] { group_.broadcast(bytes, 0, Deadline::after(clock_, timeout_)); });
}

void Consensus::agree(const std::optional<ErrorRecord>& local) {
  if (local) {
    const std::string text = to_text(*local);
    log_.record({.level = LogLevel::kWarning,
                 .event = LogEvent::kPhaseFailed,
                 .a = index_,
                 .subject = phase_,
                 .text = text});
  }
  const std::uint64_t gate = gate_word(phase_, index_);
  const std::uint64_t status = !local                                  ? kOk
                               : local->kind == ErrorKind::kPeerFailed ? kGaveUp
                                                                       : kFailed;
  const bool gave_up =
      local && (local->kind == ErrorKind::kTimeout || local->kind == ErrorKind::kPeerFailed);
  const Deadline until = gave_up ? after_failed_wait() : Deadline::after(clock_, timeout_);
  with_phase([&] { group_.all_gather_word(gate | status, words_, until); });

  bool failed = false;
  for (std::size_t r = 0; r < words_.size(); ++r) {
    if (words_[r] >> kStatusBits != gate >> kStatusBits) {
      ErrorRecord record;
      record.kind = ErrorKind::kProtocol;
      record.remedy = Remedy::kFixPeer;
      record.phase = phase_name();
      record.rank = static_cast<int>(r);
      record.subject = "lockstep";
      record.detail = "this rank stands at another gate";
      throw PeerViolation(record);
    }
    failed |= (words_[r] & ((1U << kStatusBits) - 1)) != kOk;
  }
  if (!failed) return;

  ByteBuffer own;
  wire::encode_error(local, own);
  std::vector<ByteBuffer> reports;
  with_phase([&] { reports = group_.all_gather(own, until); });
  std::optional<ErrorRecord> first;
  for (std::size_t r = 0; r < reports.size(); ++r) {
    std::optional<ErrorRecord> record = wire::decode_error(reports[r]);
    if (!record) continue;
    if (record->rank < 0) record->rank = static_cast<int>(r);
    const bool cause = record->kind != ErrorKind::kPeerFailed;
    if (!first || (cause && first->kind == ErrorKind::kPeerFailed)) first = std::move(record);
    if (first->kind != ErrorKind::kPeerFailed) break;
  }
  TPSYNC_ASSERT(first.has_value());
  if (first->phase.empty()) first->phase = phase_name();
  throw_record(*first);
}

}  // namespace tpsync::sync
