// A runtime that answers wrongly in one way, at one command, and rightly at all others; a program,
// so that an engine over the operating system meets it as it would meet a broken engine:
//   tpsync_rollout_test_runtime WAY COMMAND
// It prints its process id, and that of a child which it leaves behind in its group ("orphan").
// Ways are named in the table below and in engine_process_test.cpp.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <map>
#define MSGPACK_NO_BOOST
#include <msgpack.hpp>
#include <string>

#include "tpsync/base/os_world.h"
#include "tpsync/base/spdlog_sink.h"
#include "tpsync/wire/frame.h"
#include "tpsync/wire/messages.h"

namespace tpsync::rollout {
namespace {

constexpr int kTpSize = 2;
using Fields = std::map<std::string, msgpack::object>;
using Edit = std::function<void(Fields& fields, msgpack::zone& zone)>;

wire::StartupResult startup_result() {
  wire::StartupResult startup;
  startup.event = "ready";
  startup.vllm_version = "1.0";
  startup.process_group_id = getpid();
  startup.model_type = "qwen3_moe";
  startup.layouts = {"compact"};
  for (int rank = 0; rank < kTpSize; ++rank) {
    wire::WorkerCapability worker;
    worker.tp_rank = rank;
    worker.tp_world_size = kTpSize;
    worker.cuda_device_uuid = "gpu-" + std::to_string(rank);
    worker.vllm_version = "1.0";
    worker.pid = getpid();
    startup.worker_capabilities.push_back(worker);
  }
  return startup;
}

wire::Result right_result(wire::Command command) {
  switch (command) {
    case wire::Command::kStartup:
      return startup_result();
    case wire::Command::kGenerate:
      return wire::GenerateResult{
          {{.text = "t", .token_ids = {1}, .logprobs = {0.0}, .finish_reason = "stop"}}};
    case wire::Command::kHealth:
      return wire::HealthResult{};
    default:
      return {};
  }
}

template <typename Value>
Edit set(const std::string& field, Value value) {
  return [=](Fields& fields, msgpack::zone& zone) { fields[field] = msgpack::object(value, zone); };
}
Edit drop(const std::string& field) {
  return [=](Fields& fields, msgpack::zone&) { fields.erase(field); };
}
// A field of the result's mapping.
template <typename Value>
Edit in_result(const std::string& field, Value value) {
  return [=](Fields& fields, msgpack::zone& zone) {
    auto result = fields.at("result").as<Fields>();
    result[field] = msgpack::object(value, zone);
    fields["result"] = msgpack::object(result, zone);
  };
}
template <typename Value>
Edit in_worker(std::size_t worker, const std::string& field, Value value) {
  return [=](Fields& fields, msgpack::zone& zone) {
    auto result = fields.at("result").as<Fields>();
    auto workers = result.at("worker_capabilities").as<std::vector<Fields>>();
    workers.at(worker)[field] = msgpack::object(value, zone);
    result["worker_capabilities"] = msgpack::object(workers, zone);
    fields["result"] = msgpack::object(result, zone);
  };
}

// What a reply can be made to say.
const std::map<std::string, Edit>& edits() {
  static const std::map<std::string, Edit> all = {
      {"protocol_version", set("protocol_version", 2)},
      {"no_protocol_version", drop("protocol_version")},
      {"request_id", set("request_id", 99)},
      {"request_id_zero", set("request_id", 0)},
      {"request_id_bool", set("request_id", true)},
      {"no_request_id", drop("request_id")},
      {"command", set("command", "health_check")},
      {"command_empty", set("command", "")},
      {"no_command", drop("command")},
      {"ok_number", set("ok", 1)},
      {"no_ok", drop("ok")},
      {"no_result", drop("result")},
      {"result_text", set("result", "done")},
      {"result_nil", [](Fields& f, msgpack::zone&) { f["result"] = msgpack::object(); }},
      {"failed",
       [](Fields& f, msgpack::zone& zone) {
         f["ok"] = msgpack::object(false, zone);
         f["result"] = msgpack::object();
         f["error"] = msgpack::object("ValueError: no", zone);
         f["traceback"] = msgpack::object("there", zone);
       }},
      {"failed_aborted",
       [](Fields& f, msgpack::zone& zone) {
         f["ok"] = msgpack::object(false, zone);
         const std::map<std::string, msgpack::object> aborted = {
             {"status", msgpack::object("aborted", zone)},
             {"worker_receipts", msgpack::object(std::vector<int>{}, zone)}};
         f["result"] = msgpack::object(aborted, zone);
         f["error"] = msgpack::object("ValueError: no", zone);
         f["traceback"] = msgpack::object("there", zone);
       }},
      {"event", in_result("event", "starting")},
      {"version", in_result("vllm_version", "0.9")},
      {"model_type", in_result("model_type", "llama")},
      {"process_group", in_result("process_group_id", 1)},
      {"no_workers", in_result("worker_capabilities", std::vector<int>{})},
      {"worker_rank", in_worker(1, "tp_rank", 0)},
      {"worker_world", in_worker(0, "tp_world_size", 4)},
      {"worker_uuid_empty", in_worker(0, "cuda_device_uuid", "")},
      {"worker_uuid_twice", in_worker(1, "cuda_device_uuid", "gpu-0")},
      {"worker_version", in_worker(1, "vllm_version", "0.9")},
  };
  return all;
}

class Runtime {
 public:
  Runtime(std::string way, std::string at, Channel& channel, World world)
      : way_(std::move(way)), at_(std::move(at)), channel_(channel), world_(world) {}

  void serve() {
    for (ByteBuffer body;;) {
      wire::receive_frame(channel_, body, Deadline::never());
      const wire::RequestHead head = wire::decode_request_head(body);
      const bool wrong = head.command == at_;
      if (wrong && misbehave_instead()) continue;
      ByteBuffer reply;
      wire::Response response;
      response.request_id = head.request_id;
      response.command = head.command;
      response.ok = true;
      response.result = right_result(wire::command_from(head.command).value());
      wire::encode_response(response, reply);
      if (const auto edit = edits().find(way_); wrong && edit != edits().end())
        reply = edited(reply, edit->second);
      wire::send_frame(channel_, reply, Deadline::never());
      if (wrong && way_ == "twice") wire::send_frame(channel_, reply, Deadline::never());
      if (head.command == "shutdown" && !(wrong && way_ == "stays")) return;
    }
  }

 private:
  // True if there is nothing to answer any more.
  bool misbehave_instead() {
    if (way_ == "exit") _exit(3);
    if (way_ == "crash") kill(getpid(), SIGKILL);
    if (way_ == "orphan") {
      leave_a_process();
      _exit(0);
    }
    if (way_ == "close") {
      channel_.close();
      wait_for_ever();
    }
    if (way_ == "silence") return true;
    if (way_ == "stubborn") wait_for_ever();
    if (way_ == "no_frame") return send_raw("these bytes are no frame at all");
    if (way_ == "half_head") return send_raw("TPS");
    if (way_ == "half_frame") return send_raw(std::string("TPS1\x40\x00\x00\x00\x85", 9));
    if (way_ == "huge_frame") return send_raw("TPS1\xff\xff\xff\xff");
    if (way_ == "empty_frame") return send_raw(std::string("TPS1\x00\x00\x00\x00", 8));
    if (way_ == "no_mapping") return send_raw(std::string("TPS1\x02\x00\x00\x00\x91\x01", 10));
    return false;
  }

  [[noreturn]] static void wait_for_ever() {
    signal(SIGTERM, SIG_IGN);
    for (;;) pause();
  }

  bool send_raw(const std::string& bytes) {
    const ByteView view = as_view(bytes);
    for (std::size_t sent = 0; sent < view.size();)
      sent += channel_.write_some(view.subspan(sent), Deadline::never());
    return true;
  }

  static ByteBuffer edited(const ByteBuffer& reply, const Edit& edit) {
    const auto handle = msgpack::unpack(reinterpret_cast<const char*>(reply.data()), reply.size());
    auto fields = handle.get().as<Fields>();
    msgpack::zone zone;
    edit(fields, zone);
    msgpack::sbuffer packed;
    msgpack::pack(packed, fields);
    const auto* bytes = reinterpret_cast<const std::byte*>(packed.data());
    return {bytes, bytes + packed.size()};
  }

  // In this group, deaf to SIGTERM, and with no parent to die with. Prints its process id.
  void leave_a_process() {
    SpawnRequest request;
    request.program = "/bin/sh";
    request.arguments = {"-c", "trap '' TERM; /bin/sleep 1000 & echo $!"};
    request.own_group = false;
    world_.processes.spawn(std::move(request))->wait(Deadline::never());
  }

  std::string way_;
  std::string at_;
  Channel& channel_;
  World world_;
};

}  // namespace
}  // namespace tpsync::rollout

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  std::printf("%d\n", static_cast<int>(getpid()));
  std::fflush(stdout);
  const std::string way = argv[1];
  try {
    const auto log = tpsync::make_spdlog_log({.minimum = tpsync::LogLevel::kError});
    tpsync::OsWorld os(*log);
    const auto channel = os.channels().adopt(tpsync::kInheritedChannelDescriptor);
    tpsync::rollout::Runtime(way, argv[2], *channel, os.world()).serve();
  } catch (const std::exception&) {
    return 70;  // the engine has gone, or broke off
  }
  return 0;
}
