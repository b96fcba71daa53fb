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

std::uint64_t status_of(std::uint64_t word) { return word & ((1U << kStatusBits) - 1); }

void require_given(ByteView part, std::size_t rank) {
  if (!part.empty()) return;
  throw_violation(ErrorKind::kPeerFailed, "rank " + std::to_string(rank),
                  "gave nothing, and says why at this gate");
}

// What a rank whose word said that it failed reports. Anything else than an error is an error of
// its own.
ErrorRecord reported_by(int rank, ByteView report) {
  std::optional<ErrorRecord> record;
  std::optional<ErrorRecord> malformed;
  attempt(malformed, [&] { record = wire::decode_error(report); });
  if (!record) {
    record.emplace();
    record->kind = ErrorKind::kProtocol;
    record->remedy = Remedy::kFixPeer;
    record->subject = kReport;
    record->detail = "this rank says that it failed, and ";
    record->detail += malformed ? "its report cannot be read: " + malformed->detail
                                : std::string("reports no error");
  }
  if (record->rank < 0) record->rank = rank;
  return *record;
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
  failure_logged_ = false;
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

Deadline Consensus::begin_own_wait() {
  begin_wait();
  return Deadline::after(clock_, timeout_ / 2);
}

// Before any collective: should the group break in it, the cause is on record.
void Consensus::log_failure(const std::optional<ErrorRecord>& error) {
  if (!error || failure_logged_) return;
  failure_logged_ = true;
  const std::string text = to_text(*error);
  log_.record({.level = LogLevel::kWarning,
               .event = LogEvent::kPhaseFailed,
               .a = index_,
               .subject = phase_,
               .text = text});
}

// After a wait that this rank gave up: its peers are in the same wait, begun at about the same
// time, and leave it by its deadline.
Deadline Consensus::deadline_for(const std::optional<ErrorRecord>& error) {
  const TimePoint now = clock_.now();
  const Deadline whole = Deadline::at(now + timeout_);
  const bool gave_up =
      error && (error->kind == ErrorKind::kTimeout || error->kind == ErrorKind::kPeerFailed);
  if (!gave_up) return whole;
  return Deadline::at(std::max(now, wait_deadline_.time()) + kTimeoutGrace).earlier(whole);
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

std::vector<ByteBuffer> Consensus::exchange(ByteView own, std::optional<ErrorRecord>& error) {
  log_failure(error);
  const Deadline until = deadline_for(error);
  if (!error) wait_deadline_ = until;
  std::vector<ByteBuffer> gathered;
  with_phase([&] { gathered = group_.all_gather(error ? ByteView() : own, until); });
  attempt(error, [&] {
    for (std::size_t r = 0; r < gathered.size(); ++r) require_given(gathered[r], r);
  });
  return gathered;
}

void Consensus::broadcast(ByteBuffer& bytes, std::optional<ErrorRecord>& error) {
  log_failure(error);
  const Deadline until = deadline_for(error);
  if (!error) wait_deadline_ = until;
  if (error) bytes.clear();
  with_phase([&] { group_.broadcast(bytes, 0, until); });
  attempt(error, [&] { require_given(bytes, 0); });
}

void Consensus::agree(const std::optional<ErrorRecord>& local) {
  log_failure(local);
  const std::uint64_t gate = gate_word(phase_, index_);
  const std::uint64_t status = !local                                  ? kOk
                               : local->kind == ErrorKind::kPeerFailed ? kGaveUp
                                                                       : kFailed;
  const Deadline until = deadline_for(local);
  with_phase([&] { group_.all_gather_word(gate | status, words_, until); });

  bool failed = false;
  for (std::size_t r = 0; r < words_.size(); ++r) {
    if (words_[r] >> kStatusBits != gate >> kStatusBits) {
      ErrorRecord record;
      record.kind = ErrorKind::kProtocol;
      record.remedy = Remedy::kFixPeer;
      record.phase = phase_name();
      record.rank = static_cast<int>(r);
      record.subject = kLockstep;
      record.detail = "this rank stands at another gate";
      throw PeerViolation(record);
    }
    failed |= status_of(words_[r]) != kOk;
  }
  if (!failed) return;

  ByteBuffer own;
  wire::encode_error(local, own);
  std::vector<ByteBuffer> reports;
  with_phase([&] { reports = group_.all_gather(own, until); });
  std::optional<ErrorRecord> first;
  for (std::size_t r = 0; r < reports.size(); ++r) {
    if (status_of(words_[r]) == kOk) continue;
    ErrorRecord record = reported_by(static_cast<int>(r), reports[r]);
    const bool cause = record.kind != ErrorKind::kPeerFailed;
    if (!first || cause) first = std::move(record);
    if (cause) break;
  }
  if (first->phase.empty()) first->phase = phase_name();
  throw_record(*first);
}

}  // namespace tpsync::sync
