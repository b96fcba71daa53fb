// The rows, and the pages made from them. A row's texts say in words what its rules say in code.
#include "faults/catalogue.h"

#include <algorithm>
#include <array>

#include "faults/rules.h"

namespace tpsync::faults {
namespace {

constexpr std::string_view kEveryWorld = "sim process gpu";
constexpr std::string_view kFailStop =
    "The publication fails on every actor with one error; the runtime, if it was touched, is gone; "
    "the next publication needs a new runtime.";
constexpr std::string_view kFailBeforeTouch =
    "The publication fails on every actor with one error. Before init the runtime stays usable; "
    "from init on it is gone.";
constexpr std::string_view kNoHalfCommit =
    "A success on any actor, a token from weights of no version, a hang, a process or export left "
    "behind, another error on another actor.";

constexpr std::array kHopsOfReceipts = {
    Argument{kHop, "worker|runtime|broadcast", true,
             "where it is altered: in the worker's reply to finish, in the runtime's, or in what "
             "one actor other than rank 0 receives in native-result"},
    Argument{"receipt", "", false,
             "index in the list of receipts, for the hops runtime and broadcast; 0 if absent"},
};
constexpr std::array kHopsOfResults = {
    Argument{kHop, "runtime|broadcast", true,
             "where it is altered: in the runtime's reply to finish, or in what one actor other "
             "than rank 0 receives in native-result"},
};
constexpr std::array kExpertArguments = {
    Argument{kWhere, "exporter|wire|loader|trainer", true,
             "who loses it: one rank's pass, the update message, the worker's device, or the "
             "trainer's state on every rank (set up with the world, not injected)"},
    Argument{"expert", "", false,
             "prefix of the lost tensors' names; model.layers.0.mlp.experts.0 if absent"},
};

constexpr FaultKind receipt(std::string_view name, std::string_view summary,
                            std::string_view effect, std::string_view counterpart) {
  FaultKind kind;
  kind.name = name;
  kind.family = "receipt";
  kind.action = Action::kAlterResult;
  kind.visibility = Visibility::kVisible;
  kind.summary = summary;
  kind.effect = effect;
  kind.moment =
      "hop=worker: channel.write of the worker's reply to finish. hop=runtime: channel.write of "
      "the runtime's. hop=broadcast: control.broadcast in native-result, on an actor other than "
      "rank 0.";
  kind.legal = kFailStop;
  kind.illegal =
      "A success on any actor, a version that rises, an acceptance at this hop that only a later "
      "one refuses.";
  kind.proof =
      "The message differs from the fault-free twin's in this field alone; the boundary behind the "
      "hop names the field.";
  kind.worlds = kEveryWorld;
  kind.counterpart = counterpart;
  kind.arguments = kHopsOfReceipts;
  kind.variants = rules::receipt_hops;
  kind.applies = rules::on_result_hop;
  kind.demand = rules::must_fail;
  kind.kinds = rules::kinds_of_result;
  return kind;
}

constexpr FaultKind with_digest(FaultKind kind) {
  kind.applies = rules::on_digest_hop;
  return kind;
}

constexpr FaultKind result(std::string_view name, std::string_view summary, std::string_view effect,
                           std::string_view counterpart) {
  FaultKind kind = receipt(name, summary, effect, counterpart);
  kind.family = "result";
  kind.moment =
      "hop=runtime: channel.write of the runtime's reply to finish. hop=broadcast: "
      "control.broadcast in native-result, on an actor other than rank 0. A worker's reply has no "
      "such field.";
  kind.arguments = kHopsOfResults;
  kind.variants = rules::result_hops;
  return kind;
}

constexpr std::array kCatalogue = {
    FaultKind{
        .name = "channel.eof",
        .family = "channel",
        .action = Action::kCloseChannel,
        .visibility = Visibility::kVisible,
        .summary = "a channel breaks at one operation",
        .effect =
            "This end is closed in place of the operation. From then on its reads give end of "
            "file, its writes fail with kEndOfFile, and the other side reads what was accepted and "
            "then end of file.",
        .moment = "channel.read and channel.write of any process, on a channel to another process.",
        .legal = kFailBeforeTouch,
        .illegal = kNoHalfCommit,
        .proof = "The trace has this end's channel.close where its twin has the operation.",
        .worlds = kEveryWorld,
        .counterpart =
            "A runtime or worker whose descriptor is closed, or which ends (reported in "
            "vllm-project/vllm#23985 and #53597: the failure of a worker shows only after a long "
            "timeout).",
        .arguments = {},
        .variants = rules::no_arguments,
        .applies = rules::on_channel,
        .demand = rules::must_fail_unless_tail,
        .kinds = rules::kinds_of_closed_channel},
    FaultKind{
        .name = "channel.timeout",
        .family = "channel",
        .action = Action::kMuteChannel,
        .visibility = Visibility::kSilent,
        .summary = "a channel falls silent in one direction",
        .effect =
            "At a read: from this operation on, this end receives nothing more. At a write: what "
            "is written from this operation on never arrives. End of file still passes.",
        .moment = "channel.read and channel.write of any process, on a channel to another process.",
        .legal =
            "As channel.eof, but found only by a deadline: the runtime ends within 11 s of it.",
        .illegal = "A wait beyond the deadline; a retry on the same runtime; a success.",
        .proof =
            "At a write: the twin's bytes are missing. At a read: bytes are taken and nobody acts "
            "on them.",
        .worlds = kEveryWorld,
        .counterpart =
            "A peer that hangs, a reply that is lost (reported in Tencent-Hunyuan/UniRL#338: the "
            "trainer waits for ever when the receiver raises).",
        .arguments = {},
        .variants = rules::no_arguments,
        .applies = rules::on_channel,
        .demand = rules::must_fail_unless_tail,
        .kinds = rules::kinds_of_mute_channel},
    FaultKind{
        .name = "process.kill",
        .family = "process",
        .action = Action::kKill,
        .visibility = Visibility::kVisible,
        .summary = "a process is killed by SIGKILL at one operation",
        .effect =
            "The process ends before the operation has an effect. Its descriptors close, its "
            "device memory, exports and imports go as the driver would do it, its children are "
            "told to die.",
        .moment = "Every operation of every seam, of any process.",
        .legal =
            "Of an actor: every survivor reports kPeerLost, or kOutcomeUnknown in the very last "
            "agreement. Of the runtime or a worker: the publication fails on every actor with one "
            "error.",
        .illegal = kNoHalfCommit,
        .proof = "The process table shows the kill at this operation.",
        .worlds = kEveryWorld,
        .counterpart =
            "The out-of-memory killer, a node's job limit, a crash (reported in "
            "vllm-project/vllm#55510 and #34643: workers survive a killed parent and keep the "
            "GPU).",
        .arguments = {},
        .variants = rules::no_arguments,
        .applies = rules::on_any_operation,
        .demand = rules::must_fail_unless_tail,
        .kinds = rules::kinds_of_kill},
    FaultKind{
        .name = "process.stop",
        .family = "process",
        .action = Action::kStop,
        .visibility = Visibility::kSilent,
        .summary = "a process is stopped by SIGSTOP at one operation",
        .effect =
            "No thread of the process goes on; its descriptors, memory and memberships stay. A "
            "SIGTERM stays pending, a SIGKILL ends it.",
        .moment = "Every operation of every seam, of any process.",
        .legal = "Survivors return within the control timeout and the kill routine. If rank 0 is "
                 "stopped while a publication is pending, the runtime ends itself.",
        .illegal = "A wait without a bound, a stopped process left behind, a success without it.",
        .proof = "The process table shows the stop at this operation.",
        .worlds = kEveryWorld,
        .counterpart =
            "A paused virtual machine, a debugger, a process stuck in the driver (reported in "
            "sgl-project/sglang#17870: for one user the first sync hangs for ever).",
        .arguments = {},
        .variants = rules::no_arguments,
        .applies = rules::on_any_operation,
        .demand = rules::must_fail_unless_tail,
        .kinds = rules::kinds_of_stop},
    FaultKind{
        .name = "collective.rank_error",
        .family = "collective",
        .action = Action::kBreakGroup,
        .visibility = Visibility::kVisible,
        .summary = "one rank fails inside a collective",
        .effect =
            "At an agreement: this rank's connections break, it leaves the group and this call and "
            "every later one throws kPeerLost. At a weight collective: this rank's call throws "
            "kDevice, its group is aborted, the others have entered.",
        .moment =
            "control.word, control.gather, control.broadcast, shard.gather and shard.wait of any "
            "actor.",
        .legal =
            "At an agreement: every actor reports kPeerLost, or kOutcomeUnknown in the very last "
            "one. At a weight collective: every actor reports this rank's kDevice.",
        .illegal = "A rank left inside the collective; a survivor that waits for a deadline.",
        .proof = "The rank's leave, or its abort, stands where its twin has the call.",
        .worlds = kEveryWorld,
        .counterpart =
            "A broken connection between ranks, an NCCL error on one of them (reported in "
            "sgl-project/sglang#35093 and Tencent-Hunyuan/UniRL#494: one rank fails, the others "
            "sit in a barrier).",
        .arguments = {},
        .variants = rules::no_arguments,
        .applies = rules::on_group,
        .demand = rules::must_fail,
        .kinds = rules::kinds_of_group},
    FaultKind{
        .name = "memory.alloc_fail",
        .family = "memory",
        .action = Action::kRefuseMemory,
        .visibility = Visibility::kVisible,
        .summary = "one allocation of device memory fails",
        .effect = "The call throws kOutOfMemory; nothing is allocated, sleeping regions stay so.",
        .moment = "device.allocate and device.wake of any process.",
        .legal = kFailBeforeTouch,
        .illegal = kNoHalfCommit,
        .proof = "The twin's allocation is missing from the trace.",
        .worlds = kEveryWorld,
        .counterpart =
            "Memory held by a neighbour or by a caching allocator (reported in "
            "vllm-project/vllm#49857: out of memory at wake, before or after the update).",
        .arguments = {},
        .variants = rules::no_arguments,
        .applies = rules::on_allocation,
        .demand = rules::must_fail,
        .kinds = rules::kinds_of_memory},
    FaultKind{
        .name = "ipc.open_fail",
        .family = "ipc",
        .action = Action::kRefuseImport,
        .visibility = Visibility::kVisible,
        .summary = "opening an exported region is not permitted",
        .effect = "The call throws kIpc; nothing is opened.",
        .moment = "device.import of any worker.",
        .legal =
            "In the probe: the preflight fails on all ranks and the runtime stays usable. In an "
            "update: the publication fails and the runtime is gone.",
        .illegal = "Another path for the weights; a probe that passes.",
        .proof = "The twin's import is missing from the trace.",
        .worlds = kEveryWorld,
        .counterpart =
            "A container without the rights that sharing needs (reported in pytorch/pytorch#165685 "
            "and NVIDIA-NeMo/RL#2254: operation not permitted).",
        .arguments = {},
        .variants = rules::no_arguments,
        .applies = rules::on_import,
        .demand = rules::must_fail,
        .kinds = rules::kinds_of_import},
    FaultKind{
        .name = "copy.late",
        .family = "copy",
        .action = Action::kDelayCopies,
        .visibility = Visibility::kSilent,
        .summary = "a stream's work begins only when somebody waits for it",
        .effect =
            "This and everything later on that stream, gathers of weights included, is issued only "
            "at the stream's next synchronize or wait, in order.",
        .moment =
            "device.launch, device.launch_digests, device.fill, device.upload and device.download "
            "of any process, unless the fault-free twin's copy landed at its synchronize anyway.",
        .legal = "The publication commits: stream order is all that anybody may rely on.",
        .illegal = "A failure; a stale or torn byte; an acknowledgement before the copy is done.",
        .proof = "The copy lands later than its twin.",
        .worlds = "sim gpu",
        .counterpart =
            "A busy copy engine (reported in modelscope/ms-swift#10204: a bucket is acknowledged "
            "before all ranks have copied it).",
        .arguments = {},
        .variants = rules::no_arguments,
        .applies = rules::on_early_copy,
        .demand = rules::must_survive,
        .kinds = rules::no_kinds},
    receipt("receipt.missing", "one worker's receipt is missing",
            "hop=worker: the reply has no receipt. Else: the receipt is taken from the list.",
            "An engine that asks one worker and answers for all."),
    receipt("receipt.duplicated", "one worker's receipt comes twice",
            "hop=worker: the whole reply is sent twice. Else: the receipt stands twice in the "
            "list.",
            "A reply that is read again (reported in vllm-project/vllm#57846: after an error the "
            "next call returns an old reply)."),
    receipt("receipt.tp_rank", "a receipt names another rank", "tp_rank is one more.",
            "A rank that defaults to 0 or is numbered globally (reported in "
            "vllm-project/vllm#48025)."),
    receipt("receipt.tp_world_size", "a receipt names another world", "tp_world_size is one more.",
            "A worker of another engine's group."),
    receipt("receipt.device_uuid", "a receipt names another device",
            "The last character of device_uuid is another.",
            "Wrong mapping of ranks to GPUs (reported in vllm-project/vime#144)."),
    receipt("receipt.publication_id", "a receipt is of another publication",
            "The first character of publication_id is another.",
            "A reply of an earlier publication, kept or sent again."),
    receipt("receipt.model_version", "a receipt attests another version",
            "model_version is one more.",
            "A worker that missed an update, or counts by itself (reported in "
            "vllm-project/vime#45: the version was never recorded)."),
    receipt("receipt.expected_manifest_fingerprint", "a receipt attests other tensors",
            "The first character of the fingerprint is another hex digit.",
            "A worker that received other tensors than the trainer sent."),
    receipt("receipt.resident_parameter_count", "a receipt counts no resident parameters",
            "resident_parameter_count is 0.",
            "A worker whose model holds no weights after a sleep of level 2."),
    receipt("receipt.ready", "a receipt says not ready", "ready is false.",
            "A worker that is still loading."),
    with_digest(
        receipt("receipt.digest", "a receipt's content digest is wrong",
                "The sum of the first part is another. Does not apply where the digest is off.",
                "Bytes that landed in the wrong place, or not at all (reported in "
                "vllm-project/vllm#44814: one parameter per layer is random).")),
    result("result.status", "the result does not say committed", "status is \"aborted\".",
           "An engine that answers success to a failed finish."),
    result("result.model_version", "the result names another version", "model_version is one more.",
           "An engine that counts versions by itself."),
    result("result.prefix_cache_reset", "the prefix cache was not reset",
           "prefix_cache_reset is false. Refused where the publication asks for the reset.",
           "A reset that is left to the caller and forgotten (reported in "
           "vllm-project/vllm#46125 and PrimeIntellect-ai/prime-rl#1650)."),
    FaultKind{
        .name = "weights.missing_expert",
        .family = "weights",
        .action = Action::kLoseExpert,
        .visibility = Visibility::kVisible,
        .summary = "one expert's tensors are lost on their way",
        .effect =
            "where=exporter: one rank's pass emits without them. where=wire: the update message "
            "loses them. where=loader: the worker's device drops the tiles that go to their "
            "resident place. where=trainer: every rank's state lacks them from the start.",
        .moment =
            "where=exporter: source.begin of an actor. where=wire: channel.write of the update by "
            "rank 0 or by the runtime. where=loader: device.launch of a worker in "
            "update_native_weights, where the digest is on. where=trainer: none, the world is made "
            "so.",
        .legal =
            "where=trainer: refused before the runtime is touched. Else: refused at its own place, "
            "by the manifest, the coverage or the content digest.",
        .illegal = "A commit: the old expert would answer under the new version's name.",
        .proof = "Tensor records, or tiles, are missing against the twin.",
        .worlds = kEveryWorld,
        .counterpart =
            "An export that covers the local experts alone, a group cut at a bucket's end "
            "(reported in verl-project/verl#7195 and NVIDIA/Model-Optimizer#1631).",
        .arguments = kExpertArguments,
        .variants = rules::expert_places,
        .applies = rules::on_expert,
        .demand = rules::must_fail,
        .kinds = rules::kinds_of_expert},
    FaultKind{.name = "weights.extra_tensor",
              .family = "weights",
              .action = Action::kExtendSource,
              .visibility = Visibility::kVisible,
              .summary = "the source has one tensor more than planned",
              .effect = "After the last planned tensor, one rank's pass still has one to give.",
              .moment = "source.begin of an actor.",
              .legal = "The publication fails on every actor at the source's verification.",
              .illegal = "A commit without that tensor.",
              .proof = "The pass is asked, and says that it is not exhausted.",
              .worlds = kEveryWorld,
              .counterpart =
                  "An adapter, a bias or a draft head that the trainer has and the engine's "
                  "configuration lacks (reported in alibaba/ROLL#499).",
              .arguments = {},
              .variants = rules::no_arguments,
              .applies = rules::on_source,
              .demand = rules::must_fail,
              .kinds = rules::kinds_of_source},
};

bool is_one_of(std::string_view value, std::string_view values) {
  while (true) {
    const std::size_t bar = values.find('|');
    if (value == values.substr(0, bar)) return true;
    if (bar == std::string_view::npos) return false;
    values.remove_prefix(bar + 1);
  }
}

bool is_number(std::string_view text) {
  return !text.empty() && text.size() <= 5 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

[[noreturn]] void refuse(const std::string& path, std::string_view field,
                         const std::string& detail) {
  throw_invalid(ErrorKind::kInvalidConfig, path + "." + std::string(field), detail);
}

void check_arguments(const FaultKind& kind, const Fault& fault, const std::string& path) {
  for (const auto& given : fault.arguments) {
    const std::string& name = given.first;  // a lambda captures no structured binding
    const std::string& value = given.second;
    const auto found = std::find_if(kind.arguments.begin(), kind.arguments.end(),
                                    [&](const Argument& a) { return a.name == name; });
    if (found == kind.arguments.end()) {
      refuse(path, "arguments." + name, "is no argument of " + fault.name + "; remove it");
    }
    if (!found->values.empty() && !is_one_of(value, found->values)) {
      refuse(path, "arguments." + name,
             "must be one of " + std::string(found->values) + ", not " + value);
    }
    if (name == "receipt" && !is_number(value)) {
      refuse(path, "arguments.receipt", "must be an index from 0, not " + value);
    }
  }
  for (const Argument& argument : kind.arguments) {
    if (argument.required &&
        fault.arguments.find(std::string(argument.name)) == fault.arguments.end()) {
      refuse(path, "arguments." + std::string(argument.name),
             "is missing; give one of " + std::string(argument.values));
    }
  }
}

// The moment as an operation of which everything is known that a plan cannot say.
Operation best_case(const Moment& moment) {
  Operation operation;
  operation.role = moment.role;
  operation.rank = moment.rank;
  operation.phase = moment.phase;
  operation.chunk = moment.chunk;
  operation.op = moment.op;
  operation.occurrence = moment.occurrence;
  operation.is_first_to_peer = true;
  operation.carries_expert = true;
  return operation;
}

void append(std::string& page, std::string_view label, std::string_view text) {
  page += "  ";
  page += label;
  page.append(label.size() < 12 ? 12 - label.size() : 1, ' ');
  page += text;
  page += "\n";
}

}  // namespace

Moment moment_of(const Operation& operation) {
  return {operation.role,  operation.rank, operation.phase,
          operation.chunk, operation.op,   operation.occurrence};
}

std::string_view to_string(Demand demand) {
  switch (demand) {
    case Demand::kFail:
      return "fail";
    case Demand::kSurvive:
      return "survive";
    case Demand::kEither:
      return "either";
  }
  return "unknown";
}

std::string_view to_string(Visibility visibility) {
  return visibility == Visibility::kVisible ? "visible" : "silent";
}

std::span<const FaultKind> catalogue() { return kCatalogue; }

const FaultKind* find_kind(std::string_view name) {
  const auto found = std::find_if(kCatalogue.begin(), kCatalogue.end(),
                                  [&](const FaultKind& kind) { return kind.name == name; });
  return found == kCatalogue.end() ? nullptr : &*found;
}

std::string page_of(const FaultKind& kind) {
  std::string page(kind.name);
  page += ": ";
  page += kind.summary;
  page += "\n";
  append(page, "effect", kind.effect);
  append(page, "moment", kind.moment);
  append(page, "shows", to_string(kind.visibility));
  append(page, "may", kind.legal);
  append(page, "must not", kind.illegal);
  append(page, "proof", kind.proof);
  append(page, "worlds", kind.worlds);
  append(page, "in reality", kind.counterpart);
  for (const Argument& argument : kind.arguments) {
    std::string text(argument.text);
    if (!argument.values.empty()) text += " [" + std::string(argument.values) + "]";
    append(page, std::string(argument.name) + "=", text);
  }
  return page;
}

void check_fault(const Fault& fault, const std::string& path) {
  const FaultKind* kind = find_kind(fault.name);
  if (kind == nullptr) {
    refuse(path, "name", "is not in the catalogue: " + fault.name + "; see the list of faults");
  }
  if (!is_role(fault.moment.role)) {
    refuse(path, "moment.role", "must be actor, runtime or worker, not " + fault.moment.role);
  }
  check_arguments(*kind, fault, path);
  const auto where = fault.arguments.find(std::string(kWhere));
  if (where != fault.arguments.end() && where->second == "trainer") return;
  // A channel's peer is not part of a moment: whichever channel enters the operation then.
  Operation operation = best_case(fault.moment);
  for (const std::string_view peer : {rules::kActor, rules::kRuntime, rules::kWorker}) {
    operation.peer_role = peer;
    if (kind->applies(operation, fault.arguments)) return;
  }
  refuse(path, "moment",
         fault.name + " does not apply to " + to_text(fault.moment) + "; it applies to " +
             std::string(kind->moment));
}

std::string_view default_expert() { return "model.layers.0.mlp.experts.0"; }

std::string expert_of(const Fault& fault) {
  const auto found = fault.arguments.find("expert");
  return found == fault.arguments.end() ? std::string(default_expert()) : found->second;
}

}  // namespace tpsync::faults
