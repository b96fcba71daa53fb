#include "tpsync/collective/nccl_shard_group.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "tpsync/base/errors.h"
#include "tpsync/device/handles.h"

namespace tpsync::collective {

namespace {

constexpr std::string_view kShardSubject = "shard group";

// NCCL, the stream and the control group are looked at without a pause while a gather of usual
// length lasts, and then with pauses of an eighth of the time that was waited.
constexpr Duration kLookWithoutPause = std::chrono::milliseconds(5);
constexpr Duration kLongestPause = std::chrono::milliseconds(1);

// Bytes of each rank in the gather that makes the connections.
constexpr std::uint64_t kGreetingBytes = 16;

[[noreturn]] void fail(ErrorKind kind, int rank, std::string_view detail) {
  ErrorRecord record;
  record.kind = kind;
  record.rank = rank;
  record.subject = kShardSubject;
  record.detail = detail;
  throw RuntimeBroken(std::move(record));
}

std::string_view name_of(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "ncclSuccess";
    case ncclUnhandledCudaError:
      return "ncclUnhandledCudaError";
    case ncclSystemError:
      return "ncclSystemError";
    case ncclInternalError:
      return "ncclInternalError";
    case ncclInvalidArgument:
      return "ncclInvalidArgument";
    case ncclInvalidUsage:
      return "ncclInvalidUsage";
    case ncclRemoteError:
      return "ncclRemoteError";
    case ncclInProgress:
      return "ncclInProgress";
    default:
      return "an unknown NCCL error";
  }
}

bool went_well(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

void check(ncclResult_t result, std::string_view call) {
  if (went_well(result)) return;
  fail(ErrorKind::kDevice, -1, std::string(call) + " failed with " + std::string(name_of(result)));
}

void check(cudaError_t result, std::string_view call) {
  if (result == cudaSuccess) return;
  fail(ErrorKind::kDevice, -1,
       std::string(call) + " failed with CUDA error " + std::to_string(static_cast<int>(result)));
}

std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

int loaded_version() {
  int version = 0;
  check(ncclGetVersion(&version), "ncclGetVersion");
  return version;
}

void require_environment(Host& host) {
  if (host.environment("NCCL_NVLS_ENABLE") != "0") {
    throw_invalid(ErrorKind::kInvalidConfig, "NCCL_NVLS_ENABLE",
                  "must be 0 in the environment in which the trainer is started: NVLink multicast "
                  "is not used, and NCCL has no other switch for it");
  }
  const std::optional<std::string> policy = host.environment("NCCL_CTA_POLICY");
  if (policy && *policy != "0" && *policy != "DEFAULT") {
    throw_invalid(ErrorKind::kInvalidConfig, "NCCL_CTA_POLICY",
                  "is " + *policy + "; unset it, or set it to 0: other policies are not used");
  }
}

// What ranks tell one another before they connect: nothing, if they can't begin.
ByteBuffer encode_version(int version) {
  ByteBuffer bytes;
  for (int shift = 0; shift < 32; shift += 8)
    bytes.push_back(static_cast<std::byte>(version >> shift & 0xff));
  return bytes;
}

int decode_version(ByteView bytes, int rank) {
  if (bytes.size() != 4) fail(ErrorKind::kPeerFailed, rank, "a rank could not begin to connect");
  int version = 0;
  for (std::size_t i = 4; i > 0; --i) version = version << 8 | std::to_integer<int>(bytes[i - 1]);
  return version;
}

void require_equal_versions(std::span<const ByteBuffer> said) {
  const int first = decode_version(said[0], 0);
  for (std::size_t r = 1; r < said.size(); ++r) {
    const int version = decode_version(said[r], static_cast<int>(r));
    if (version == first) continue;
    ErrorRecord record;
    record.kind = ErrorKind::kMismatch;
    record.rank = static_cast<int>(r);
    record.subject = "NCCL";
    record.detail = "this rank has loaded version " + version_text(version) + ", rank 0 has " +
                    version_text(first) + "; let all ranks load the same library";
    throw InvalidInput(std::move(record));
  }
}

bool follow_one_another(std::span<const GatherPart> parts) {
  for (std::size_t r = 1; r < parts.size(); ++r) {
    if (parts[r].bytes != parts[0].bytes) return false;
    if (parts[r].offset != parts[0].offset + r * parts[0].bytes) return false;
  }
  return true;
}

// ---- the communicator ---------------------------------------------------------------------------

// Owns an ncclComm_t; see rule 3.
class Communicator {
 public:
  Communicator(Clock& clock, Threads& threads, Log& log)
      : clock_(clock), threads_(threads), log_(log) {}
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  ncclComm_t* place() { return &comm_; }
  ncclComm_t get() const { return comm_; }
  bool aborted() const { return aborted_; }
  // Not before it was aborted.
  void abort() noexcept;
  // Blocks until the abort has ended, or the deadline: false.
  bool await_end(Deadline deadline) noexcept;

 private:
  // Outlives this object where the thread does.
  struct Ending {
    explicit Ending(Threads& threads)
        : mutex(threads.make_mutex()), changed(threads.make_condition()) {}
    const std::unique_ptr<Mutex> mutex;
    const std::unique_ptr<Condition> changed;
    bool ended = false;
  };

  void note(std::string_view text) noexcept {
    log_.record({.level = LogLevel::kError,
                 .event = LogEvent::kNote,
                 .subject = kShardSubject,
                 .text = text});
  }

  Clock& clock_;
  Threads& threads_;
  Log& log_;
  ncclComm_t comm_ = nullptr;
  bool aborted_ = false;
  std::shared_ptr<Ending> ending_;
  std::unique_ptr<Thread> thread_;
};

void Communicator::abort() noexcept {
  if (std::exchange(aborted_, true) || comm_ == nullptr) return;
  try {
    ending_ = std::make_shared<Ending>(threads_);
    thread_ = threads_.spawn("nccl-abort", [ending = ending_, comm = comm_] {
      ncclCommAbort(comm);
      const MutexLock lock(*ending->mutex);
      ending->ended = true;
      ending->changed->notify_all();
    });
  } catch (const std::exception&) {
    note(
        "no thread could be started to abort NCCL's communicator; it stays until the process ends");
  }
}

bool Communicator::await_end(Deadline deadline) noexcept {
  if (comm_ == nullptr) return true;
  if (!thread_) return false;
  const MutexLock lock(*ending_->mutex);
  while (!ending_->ended)
    if (!ending_->changed->wait(*ending_->mutex, deadline)) return ending_->ended;
  return true;
}

Communicator::~Communicator() {
  abort();
  if (!thread_) return;
  if (await_end(Deadline::after(clock_, kNcclAbortLimit))) {
    thread_->join();
    return;
  }
  note("ncclCommAbort did not return in time; its thread and the communicator are left behind");
  [[maybe_unused]] const Thread* left_behind = thread_.release();
}

}  // namespace

// ---- the group ----------------------------------------------------------------------------------

class NcclShardGroup::Impl {
 public:
  Impl(ControlGroup& control, device::Device& device, device::CudaAccess& cuda, const World& world,
       Deadline deadline);

  void all_gather(device::StreamId stream, device::RegionId buffer,
                  std::span<const GatherPart> parts);
  void wait(device::StreamId stream, Deadline deadline, ControlGroup& watch);
  void abort() noexcept { communicator_.abort(); }
  bool usable() const noexcept { return !communicator_.aborted(); }
  int rank() const { return rank_; }
  int size() const { return size_; }

 private:
  enum class Progress : std::uint8_t { kMoving, kDone, kFailed };

  void meet(ControlGroup& control, const World& world, Deadline deadline);
  void begin(ControlGroup& control, Deadline deadline);
  void connect(ControlGroup& control, Deadline deadline);
  Progress progress();
  template <typename Look>
  void poll(Deadline deadline, ControlGroup* watch, Look&& look);
  void enqueue(cudaStream_t stream, std::byte* base, std::span<const GatherPart> parts);
  void use_device() { check(cudaSetDevice(ordinal_), "cudaSetDevice"); }

  Clock& clock_;
  device::Device& device_;
  device::CudaAccess& cuda_;
  int rank_;
  int size_;
  int ordinal_ = 0;
  Communicator communicator_;
};

NcclShardGroup::Impl::Impl(ControlGroup& control, device::Device& device, device::CudaAccess& cuda,
                           const World& world, Deadline deadline)
    : clock_(world.clock),
      device_(device),
      cuda_(cuda),
      rank_(control.rank()),
      size_(control.size()),
      communicator_(world.clock, world.threads, world.log) {
  meet(control, world, deadline);
  begin(control, deadline);
  poll(deadline, &control, [&] { return progress(); });
  connect(control, deadline);
}

// All ranks can begin, and have the same library.
void NcclShardGroup::Impl::meet(ControlGroup& control, const World& world, Deadline deadline) {
  std::optional<ErrorRecord> error;
  ByteBuffer own;
  attempt(error, [&] {
    require_environment(world.host);
    const device::Stream stream = device::create_stream(device_);
    check(cudaStreamGetDevice(static_cast<cudaStream_t>(cuda_.stream_of(stream.id())), &ordinal_),
          "cudaStreamGetDevice");
    use_device();
    own = encode_version(loaded_version());
  });
  const std::vector<ByteBuffer> said = control.all_gather(own, deadline);
  if (error) throw_record(*error);
  require_equal_versions(said);
}

void NcclShardGroup::Impl::begin(ControlGroup& control, Deadline deadline) {
  ncclUniqueId id;
  ByteBuffer bytes;
  std::optional<ErrorRecord> error;
  if (rank_ == 0) {
    attempt(error, [&] {
      check(ncclGetUniqueId(&id), "ncclGetUniqueId");
      bytes.resize(sizeof id);
      std::memcpy(bytes.data(), &id, sizeof id);
    });
  }
  control.broadcast(bytes, 0, deadline);
  if (error) throw_record(*error);
  if (bytes.size() != sizeof id)
    fail(ErrorKind::kPeerFailed, 0, "rank 0 could not begin to connect");
  std::memcpy(&id, bytes.data(), sizeof id);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.collnetEnable = 0;
#ifdef NCCL_CTA_POLICY_DEFAULT
  config.CTAPolicy = NCCL_CTA_POLICY_DEFAULT;
#endif
  check(ncclCommInitRankConfig(communicator_.place(), size_, id, rank_, &config),
        "ncclCommInitRankConfig");
}

// NCCL connects at the first gather. That one is made here, where peers are watched.
void NcclShardGroup::Impl::connect(ControlGroup& control, Deadline deadline) {
  const auto ranks = static_cast<std::size_t>(size_);
  device::Region greetings = device::allocate(device_, {.bytes = kGreetingBytes * ranks});
  device::Stream stream = device::create_stream(device_);
  try {
    std::vector<GatherPart> parts(ranks);
    for (std::size_t r = 0; r < ranks; ++r) parts[r] = {kGreetingBytes * r, kGreetingBytes};
    device_.fill(stream.id(), greetings.id(), 0, kGreetingBytes * ranks, std::byte{0});
    enqueue(static_cast<cudaStream_t>(cuda_.stream_of(stream.id())),
            static_cast<std::byte*>(cuda_.address_of(greetings.id())), parts);
    poll(deadline, &control, [&] { return progress(); });
    wait(stream.id(), deadline, control);
  } catch (const std::exception&) {
    // What a kernel may still use can't be freed without blocking.
    communicator_.abort();
    if (!communicator_.await_end(Deadline::after(clock_, kNcclAbortLimit))) {
      greetings.leak();
      stream.leak();
    }
    throw;
  }
}

NcclShardGroup::Impl::Progress NcclShardGroup::Impl::progress() {
  ncclResult_t state = ncclSuccess;
  if (ncclCommGetAsyncError(communicator_.get(), &state) != ncclSuccess) return Progress::kFailed;
  if (state == ncclInProgress) return Progress::kMoving;
  return state == ncclSuccess ? Progress::kDone : Progress::kFailed;
}

// Until `look` says kDone. Whatever else ends it aborts the group.
template <typename Look>
void NcclShardGroup::Impl::poll(Deadline deadline, ControlGroup* watch, Look&& look) {
  const auto give_up = [&](ErrorKind kind, int rank, std::string_view detail) {
    communicator_.abort();
    fail(kind, rank, detail);
  };
  const TimePoint start = clock_.now();
  Deadline explanation = Deadline::never();
  for (;;) {
    const Progress found = look();
    if (found == Progress::kDone) return;
    const TimePoint now = clock_.now();
    if (found == Progress::kFailed && explanation.is_never())
      explanation = Deadline::at(watch != nullptr ? now + kNcclExplanation : now);
    if (watch != nullptr) {
      if (const auto lost = watch->lost_peer())
        give_up(ErrorKind::kPeerLost, *lost, "a rank died or left while weights were moving");
      if (const auto alarm = watch->alarm())
        give_up(ErrorKind::kPeerFailed, *alarm,
                "a rank reported a failure while weights were moving");
    }
    if (deadline.passed(now))
      give_up(ErrorKind::kTimeout, -1, "the weights did not arrive before the deadline");
    if (explanation.passed(now)) give_up(ErrorKind::kDevice, rank_, "NCCL or its work failed");
    const Duration waited = now - start;
    if (waited < kLookWithoutPause) continue;
    const Deadline next = Deadline::at(now + std::min(waited / 8, kLongestPause));
    clock_.sleep_until(deadline.earlier(next).time());
  }
}

void NcclShardGroup::Impl::enqueue(cudaStream_t stream, std::byte* base,
                                   std::span<const GatherPart> parts) {
  const auto mine = static_cast<std::size_t>(rank_);
  if (follow_one_another(parts)) {
    check(ncclAllGather(base + parts[mine].offset, base + parts[0].offset, parts[0].bytes,
                        ncclUint8, communicator_.get(), stream),
          "ncclAllGather");
    return;
  }
  check(ncclGroupStart(), "ncclGroupStart");
  ncclResult_t result = ncclSuccess;
  for (std::size_t r = 0; r < parts.size() && went_well(result); ++r) {
    if (parts[r].bytes == 0) continue;
    std::byte* part = base + parts[r].offset;
    result = ncclBroadcast(part, part, parts[r].bytes, ncclUint8, static_cast<int>(r),
                           communicator_.get(), stream);
  }
  const ncclResult_t ended = ncclGroupEnd();  // also after a failure: the group is this thread's
  check(result, "ncclBroadcast");
  check(ended, "ncclGroupEnd");
}

void NcclShardGroup::Impl::all_gather(device::StreamId stream, device::RegionId buffer,
                                      std::span<const GatherPart> parts) {
  TPSYNC_ASSERT(parts.size() == static_cast<std::size_t>(size_));
  if (communicator_.aborted()) fail(ErrorKind::kPeerLost, -1, "the group was aborted");
  const bool empty = std::all_of(parts.begin(), parts.end(),
                                 [](const GatherPart& part) { return part.bytes == 0; });
  if (empty) return;
  try {
    use_device();
    enqueue(static_cast<cudaStream_t>(cuda_.stream_of(stream)),
            static_cast<std::byte*>(cuda_.address_of(buffer)), parts);
    // NCCL enqueues on a thread of its own. Nothing may get into the stream before that.
    poll(Deadline::after(clock_, kNcclLaunchLimit), nullptr, [&] { return progress(); });
  } catch (const std::exception&) {
    communicator_.abort();
    throw;
  }
}

void NcclShardGroup::Impl::wait(device::StreamId stream, Deadline deadline, ControlGroup& watch) {
  if (communicator_.aborted()) fail(ErrorKind::kPeerLost, -1, "the group was aborted");
  try {
    use_device();
    const auto native = static_cast<cudaStream_t>(cuda_.stream_of(stream));
    poll(deadline, &watch, [&] {
      const Progress found = progress();
      if (found != Progress::kDone) return found;
      const cudaError_t state = cudaStreamQuery(native);
      if (state == cudaErrorNotReady) return Progress::kMoving;
      return state == cudaSuccess ? Progress::kDone : Progress::kFailed;
    });
    device_.synchronize(stream, deadline);  // for what the device does once its work is complete
  } catch (const std::exception&) {
    communicator_.abort();
    throw;
  }
}

// ---- the seam -----------------------------------------------------------------------------------

std::string nccl_version() { return version_text(loaded_version()); }

NcclShardGroup::NcclShardGroup(ControlGroup& control, device::Device& device,
                               device::CudaAccess& cuda, const World& world, Deadline deadline)
    : impl_(std::make_unique<Impl>(control, device, cuda, world, deadline)) {}
NcclShardGroup::~NcclShardGroup() = default;

int NcclShardGroup::rank() const { return impl_->rank(); }
int NcclShardGroup::size() const { return impl_->size(); }
void NcclShardGroup::all_gather(device::StreamId stream, device::RegionId buffer,
                                std::span<const GatherPart> parts) {
  impl_->all_gather(stream, buffer, parts);
}
void NcclShardGroup::wait(device::StreamId stream, Deadline deadline, ControlGroup& watch) {
  impl_->wait(stream, deadline, watch);
}
void NcclShardGroup::abort() noexcept { impl_->abort(); }
bool NcclShardGroup::usable() const noexcept { return impl_->usable(); }

}  // namespace tpsync::collective
