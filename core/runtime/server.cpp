#include "tpsync/runtime/server.h"

#include "tpsync/base/errors.h"
#include "tpsync/runtime/command_loop.h"
#include "tpsync/runtime/serving_state.h"
#include "tpsync/runtime/worker_pool.h"

namespace tpsync::runtime {

namespace {

class Runtime final : public CommandHandler {
 public:
  Runtime(World& world, Channel& parent, const RuntimeOptions& options)
      : world_(world),
        options_(options),
        state_(options.committed_version),
        pool_(world, parent, options.tp_size) {}

  After handle(const Request& request, wire::Response& response) override;
  After after_failure(wire::Command command) override {
    return worker_lost_ || wire::is_native(command) ? After::kStop : After::kContinue;
  }
  Deadline next_request_deadline() override {
    return state_.stage() == PublicationStage::kNone
               ? Deadline::never()
               : Deadline::after(world_.clock, options_.control_timeout);
  }

 private:
  Duration worker_timeout(wire::Command command) const {
    return wire::is_native(command) ? options_.control_timeout : options_.worker_timeout;
  }
  // Every worker's reply to the request; throws the first failure: NothingHappened if the runtime
  // can go on.
  std::vector<WorkerPool::Reply> forward(const Request& request);
  wire::StartupResult startup(const Request& request);
  wire::GenerateResult generate(const Request& request);
  After finish(const Request& request, const wire::FinishRequest& finish, wire::Response& response);

  World& world_;
  const RuntimeOptions& options_;
  ServingState state_;
  WorkerPool pool_;
  bool worker_lost_ = false;  // one died, broke the protocol or did not reply in time
};

std::vector<WorkerPool::Reply> Runtime::forward(const Request& request) {
  // A runtime whose native command failed ends anyway, so the first failure is reported at once;
  // after any other command it goes on, and every worker's reply must have been taken.
  auto replies =
      pool_.call(request.command, request.id, request.body, worker_timeout(request.command),
                 wire::is_native(request.command) ? Collect::kUntilFailure : Collect::kEveryReply);
  auto error = first_error(replies);
  if (!error) return replies;
  for (const WorkerPool::Reply& reply : replies) {
    worker_lost_ |= reply.error && reply.error->kind != ErrorKind::kRemote;
  }
  const bool goes_on = !worker_lost_ && !wire::failure_breaks(request.command);
  error->remedy = goes_on ? Remedy::kTryLater : Remedy::kRebuildRuntime;
  throw_record(*error);
}

After Runtime::handle(const Request& request, wire::Response& response) {
  wire::Payload payload = wire::decode_payload(request.command, request.body);
  const auto* update = std::get_if<wire::UpdateRequest>(&payload);
  world_.log.record({.level = LogLevel::kDebug,
                     .event = LogEvent::kCommandReceived,
                     .a = request.id,
                     .b = update != nullptr ? static_cast<std::int64_t>(update->chunk_index) : 0,
                     .subject = name_of(request.command)});
  switch (request.command) {
    case wire::Command::kStartup:
      response.result = startup(request);
      break;
    case wire::Command::kGenerate:
      state_.check_generate();
      response.result = generate(request);
      break;
    case wire::Command::kSleep: {
      const auto& sleep = std::get<wire::SleepRequest>(payload);
      state_.check_sleep(sleep);
      forward(request);
      state_.slept(sleep.level);
      break;
    }
    case wire::Command::kWakeUp: {
      const auto& wake = std::get<wire::WakeUpRequest>(payload);
      state_.check_wake_up(wake);
      forward(request);
      state_.woke(wake);
      break;
    }
    case wire::Command::kHealth:
      forward(request);
      response.result = wire::HealthResult{};
      break;
    case wire::Command::kProbeIpc:
      state_.check_probe();
      forward(request);
      break;
    case wire::Command::kInit:
      state_.check_init();
      forward(request);
      state_.initialized();
      break;
    case wire::Command::kStart: {
      const auto& start = std::get<wire::StartRequest>(payload);
      wire::validate_header(start.header, options_.tp_size, options_.routes);
      state_.check_start(start);
      forward(request);
      state_.started(start.header);
      break;
    }
    case wire::Command::kUpdate:
      state_.check_update();
      forward(request);
      break;
    case wire::Command::kFinish:
      return finish(request, std::get<wire::FinishRequest>(payload), response);
    case wire::Command::kRelease:
      state_.check_release();
      forward(request);
      break;
    case wire::Command::kShutdown:
      forward(request);
      return After::kStop;
  }
  return After::kContinue;
}

wire::StartupResult Runtime::startup(const Request& request) {
  pool_.spawn(options_.worker);
  wire::StartupResult result;
  for (WorkerPool::Reply& reply : forward(request)) {
    result.worker_capabilities.push_back(
        std::move(std::get<wire::WorkerCapability>(reply.response.result)));
  }
  result.event = "ready";
  result.vllm_version = options_.version;
  result.process_group_id = world_.host.pid();
  result.model_type = options_.model_type;
  result.committed_version = state_.version();
  for (const wire::Layout layout : options_.layouts) {
    result.layouts.emplace_back(name_of(layout));
  }
  for (const wire::Route route : options_.routes) {
    result.transports.emplace_back(transport_of(route));
  }
  return result;
}

wire::GenerateResult Runtime::generate(const Request& request) {
  std::vector<wire::GenerateResult> parts;
  for (WorkerPool::Reply& reply : forward(request)) {
    parts.push_back(std::move(std::get<wire::GenerateResult>(reply.response.result)));
  }
  if (options_.combine) return options_.combine(std::move(parts));
  return std::move(parts.front());
}

After Runtime::finish(const Request& request, const wire::FinishRequest& finish,
                      wire::Response& response) {
  state_.check_finish(finish);
  wire::CommitResult result;
  try {
    auto replies = pool_.call(request.command, request.id, request.body,
                              worker_timeout(request.command), Collect::kUntilFailure);
    for (WorkerPool::Reply& reply : replies) {
      auto* receipt = std::get_if<wire::WorkerReceipt>(&reply.response.result);
      if (!reply.error && receipt != nullptr) result.worker_receipts.push_back(std::move(*receipt));
    }
    if (auto error = first_error(replies)) throw_record(*error);
    wire::validate_receipts(state_.header(), result.worker_receipts, finish.digest);
  } catch (const Error& e) {
    // What the workers had attested goes back with the failure.
    response.result = wire::AbortedResult{std::move(result.worker_receipts)};
    throw;
  }
  state_.committed();
  world_.log.record(
      {.level = LogLevel::kInfo, .event = LogEvent::kVersionCommitted, .a = state_.version()});
  result.status = "committed";
  result.model_version = state_.version();
  result.prefix_cache_reset = finish.flush_cache;  // each worker's receipt came after its reset
  response.result = std::move(result);
  return After::kContinue;
}

}  // namespace

void run_runtime(World world, Channel& parent, const RuntimeOptions& options) {
  Runtime runtime(world, parent, options);
  serve(world, parent, runtime,
        {.name = "runtime", .reply_timeout = options.control_timeout, .consecutive_ids = true});
}

}  // namespace tpsync::runtime
