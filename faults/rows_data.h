// Rows of the families receipt, result, weights and version: what is said of the weights, and which
// weights come.
#pragma once

#include <array>

#include "faults/rows_texts.h"

namespace tpsync::faults::rows {

inline constexpr std::array kRecordArguments = {
    Argument{kWhere, "exporter|wire", true, "in one rank's pass, or in the update message"},
    Argument{kField, "name|shape|dtype", true, "what is another"},
};
inline constexpr std::array kHopsOfReceipts = {
    Argument{kHop, "worker|runtime|broadcast", true,
             "where it is altered: in the worker's reply to finish, in the runtime's, or in what "
             "one actor other than rank 0 receives in native-result"},
    Argument{"receipt", "", false,
             "index in the list of receipts, for the hops runtime and broadcast; 0 if absent"},
};
inline constexpr std::array kHopsOfResults = {
    Argument{kHop, "runtime|broadcast", true,
             "where it is altered: in the runtime's reply to finish, or in what one actor other "
             "than rank 0 receives in native-result"},
};
inline constexpr std::array kExpertArguments = {
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
  kind.mechanism = "result.field";
  kind.moment =
      "hop=runtime: channel.write of the runtime's reply to finish. hop=broadcast: "
      "control.broadcast in native-result, on an actor other than rank 0. A worker's reply has no "
      "such field.";
  kind.arguments = kHopsOfResults;
  kind.variants = rules::result_hops;
  return kind;
}

constexpr FaultKind field(FaultKind kind) {
  kind.mechanism = "receipt.field";
  return kind;
}

constexpr FaultKind echoed(FaultKind kind) {
  kind.moment =
      "hop=runtime: channel.write of the runtime's reply to finish. hop=broadcast: "
      "control.broadcast in native-result, on an actor other than rank 0. Where there are several "
      "workers.";
  kind.arguments = kHopsOfResults;
  kind.variants = rules::result_hops;
  kind.applies = rules::on_several_receipts;
  return kind;
}

inline constexpr std::array kData = {
    receipt("receipt.missing", "one worker's receipt is missing",
            "hop=worker: the reply has no receipt. Else: the receipt is taken from the list.",
            "An engine that asks one worker and answers for all."),
    receipt("receipt.duplicated", "one worker's receipt comes twice",
            "hop=worker: the whole reply is sent twice. Else: the receipt stands twice in the "
            "list.",
            "A reply that is read again (reported in vllm-project/vllm#57846: after an error the "
            "next call returns an old reply)."),
    echoed(receipt("receipt.echoed", "another rank's receipt stands in for one's own",
                   "The last receipt of the list is a copy of the first.",
                   "An engine that asks one worker and fills in the others.")),
    field(receipt("receipt.tp_rank", "a receipt names another rank", "tp_rank is one more.",
                  "A rank that defaults to 0 or is numbered globally (reported in "
                  "vllm-project/vllm#48025).")),
    field(receipt("receipt.tp_world_size", "a receipt names another world",
                  "tp_world_size is one more.", "A worker of another engine's group.")),
    field(receipt("receipt.device_uuid", "a receipt names another device",
                  "The last character of device_uuid is another.",
                  "Wrong mapping of ranks to GPUs (reported in vllm-project/vime#144).")),
    field(receipt("receipt.publication_id", "a receipt is of another publication",
                  "The first character of publication_id is another.",
                  "A reply of an earlier publication, kept or sent again.")),
    field(receipt("receipt.model_version", "a receipt attests another version",
                  "model_version is one more.",
                  "A worker that missed an update, or counts by itself (reported in "
                  "vllm-project/vime#45: the version was never recorded).")),
    field(receipt("receipt.expected_manifest_fingerprint", "a receipt attests other tensors",
                  "The first character of the fingerprint is another hex digit.",
                  "A worker that received other tensors than the trainer sent.")),
    field(receipt("receipt.resident_parameter_count", "a receipt counts no resident parameters",
                  "resident_parameter_count is 0.",
                  "A worker whose model holds no weights after a sleep of level 2.")),
    field(receipt("receipt.ready", "a receipt says not ready", "ready is false.",
                  "A worker that is still loading.")),
    field(with_digest(
        receipt("receipt.digest", "a receipt's content digest is wrong",
                "The sum of the first part is another. Does not apply where the digest is off.",
                "Bytes that landed in the wrong place, or not at all (reported in "
                "vllm-project/vllm#44814: one parameter per layer is random)."))),
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
        .severity = Severity::kData,
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
    FaultKind{.name = "weights.duplicated",
              .family = "weights",
              .action = Action::kDistortPass,
              .visibility = Visibility::kVisible,
              .severity = Severity::kData,
              .summary = "a pass emits one tensor twice",
              .effect = "The first record that the pass emits comes twice.",
              .moment = "source.begin of an actor.",
              .legal = "The publication fails on every actor at that rank's gate.",
              .illegal = "A commit; a tensor that is counted twice.",
              .proof = "The gate names the tensor.",
              .worlds = kEveryWorld,
              .counterpart = "Tied weights under two names; a loader that is called twice "
                             "(reported in PrimeIntellect-ai/prime-rl#2714).",
              .arguments = {},
              .variants = rules::no_arguments,
              .applies = rules::on_source,
              .demand = rules::must_fail,
              .kinds = rules::kinds_of_source},
    FaultKind{.name = "weights.reordered",
              .family = "weights",
              .action = Action::kDistortPass,
              .visibility = Visibility::kVisible,
              .severity = Severity::kData,
              .summary = "a pass emits two tensors in another order",
              .effect = "The first two records of the first chunk that has two are swapped.",
              .moment = "source.begin of an actor.",
              .legal = "The publication fails on every actor at that rank's gate.",
              .illegal = "A commit: bytes under another tensor's name.",
              .proof = "The gate names the tensor.",
              .worlds = kEveryWorld,
              .counterpart = "An iteration over a hash map, another order of layers (reported "
                             "in vllm-project/vllm#42577: experts under other names).",
              .arguments = {},
              .variants = rules::no_arguments,
              .applies = rules::on_source,
              .demand = rules::must_fail,
              .kinds = rules::kinds_of_source},
    FaultKind{
        .name = "weights.record",
        .family = "weights",
        .action = Action::kDistortPass,
        .visibility = Visibility::kVisible,
        .severity = Severity::kData,
        .summary = "a tensor is announced with another name, shape or dtype",
        .effect = "where=exporter: of the first record that the pass emits. where=wire: of the "
                  "first tensor of an update. name: with a wrapper's prefix; shape: with a "
                  "leading 1; dtype: float64.",
        .moment = "where=exporter: source.begin of an actor. where=wire: channel.write of an "
                  "update, by rank 0 or by the runtime to a worker.",
        .legal = "The publication fails on every actor: at that rank's gate, or at the "
                 "workers, by name.",
        .illegal = "A tensor that is skipped because nobody knows its name.",
        .proof = "The record differs from the twin's.",
        .worlds = kEveryWorld,
        .counterpart =
            "Names that carry a wrapper's or adapter's part; a transposed expert (reported in "
            "alibaba/ROLL#499, verl-project/verl#7070 and NovaSky-AI/SkyRL#1680).",
        .arguments = kRecordArguments,
        .variants = rules::record_fields,
        .applies = rules::on_record,
        .is_tried = rules::at_representatives,
        .demand = rules::must_fail,
        .kinds = rules::kinds_of_expert},
    FaultKind{.name = "weights.digest_sums",
              .family = "weights",
              .action = Action::kDistortPass,
              .visibility = Visibility::kVisible,
              .severity = Severity::kData,
              .summary = "an actor's content digest is not that of what it packed",
              .effect = "The first sum of the pass is one more.",
              .moment = "source.begin of an actor, where the digest is on.",
              .legal = kFailStop,
              .illegal = "A commit.",
              .proof = "The workers' sums do not add up to the actors'.",
              .worlds = kEveryWorld,
              .counterpart =
                  "A shard that changes between digest and gather; an optimizer that runs on "
                  "(reported in modelscope/ms-swift#10204: a buffer is reused too early).",
              .arguments = {},
              .variants = rules::no_arguments,
              .applies = rules::on_digested_source,
              .demand = rules::must_fail,
              .kinds = rules::remote_alone},
    FaultKind{
        .name = "weights.materialize_fail",
        .family = "weights",
        .action = Action::kDistortPass,
        .visibility = Visibility::kVisible,
        .severity = Severity::kRefusal,
        .summary = "one rank cannot materialize a chunk",
        .effect =
            "The preparation of the last chunk throws kDevice on this rank, before the group.",
        .moment = "source.begin of an actor.",
        .legal = "The publication fails on every actor with this rank's error; nobody enters "
                 "the group.",
        .illegal = "A rank left inside the group.",
        .proof = "The gate names the rank and the chunk.",
        .worlds = kEveryWorld,
        .counterpart = "A local failure between collectives (reported in "
                       "Tencent-Hunyuan/UniRL#494 and MoonshotAI/checkpoint-engine#43).",
        .arguments = {},
        .variants = rules::no_arguments,
        .applies = rules::on_source,
        .demand = rules::must_fail,
        .kinds = rules::device_alone},
    FaultKind{.name = "weights.chunk_skipped",
              .family = "weights",
              .action = Action::kDistortMessage,
              .visibility = Visibility::kVisible,
              .severity = Severity::kData,
              .summary = "an update says that it carries the next chunk",
              .effect = "chunk_index is one more.",
              .moment = "channel.write of an update, by rank 0 or by the runtime to a worker.",
              .legal = kFailStop,
              .illegal = "A chunk that is never loaded.",
              .proof = "The bytes written differ from the fault-free twin's.",
              .worlds = kEveryWorld,
              .counterpart = "Chunks that are sent by several ranks at their own pace "
                             "(reported in vllm-project/vime#22 and #23).",
              .arguments = {},
              .variants = rules::no_arguments,
              .applies = rules::on_update,
              .is_tried = rules::at_representatives,
              .demand = rules::must_fail,
              .kinds = rules::remote_alone},
    FaultKind{.name = "version.stale",
              .family = "version",
              .action = Action::kDistortMessage,
              .visibility = Visibility::kVisible,
              .severity = Severity::kData,
              .summary = "a publication starts with a version that is committed already",
              .effect = "model_version of start is one less.",
              .moment = "channel.write of start, by rank 0 or by the runtime to a worker.",
              .legal = kFailStop,
              .illegal = "A version that stays or falls.",
              .proof = "The bytes written differ from the fault-free twin's.",
              .worlds = kEveryWorld,
              .counterpart = "A trainer that restarts from a checkpoint and counts from there "
                             "(reported in vllm-project/vime#45: the version was never recorded).",
              .arguments = {},
              .variants = rules::no_arguments,
              .applies = rules::on_start,
              .demand = rules::must_fail,
              .kinds = rules::remote_alone},
    FaultKind{.name = "version.ahead",
              .family = "version",
              .action = Action::kDistortMessage,
              .visibility = Visibility::kVisible,
              .severity = Severity::kData,
              .summary = "a publication starts with another version than it finishes with",
              .effect = "model_version of start is 3 more.",
              .moment = "channel.write of start, by rank 0 or by the runtime to a worker.",
              .legal = "The publication fails on every actor when it finishes, at the latest.",
              .illegal = "A version that nobody published.",
              .proof = "The bytes written differ from the fault-free twin's.",
              .worlds = kEveryWorld,
              .counterpart = "A second trainer on the same runtime; a session of an earlier "
                             "one that is still open (reported in huggingface/trl#6913).",
              .arguments = {},
              .variants = rules::no_arguments,
              .applies = rules::on_start,
              .demand = rules::must_fail,
              .kinds = rules::remote_alone},
};

}  // namespace tpsync::faults::rows
