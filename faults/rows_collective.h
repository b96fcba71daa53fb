// Rows of the family collective: the groups in which actors agree, and in which weights move.
#pragma once

#include <array>

#include "faults/rows_texts.h"

namespace tpsync::faults::rows {

inline constexpr std::array kCollective = {
    FaultKind{
        .name = "collective.rank_error",
        .family = "collective",
        .action = Action::kBreakGroup,
        .visibility = Visibility::kVisible,
        .severity = Severity::kLoss,
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
        .name = "collective.hang",
        .family = "collective",
        .action = Action::kHangGroup,
        .visibility = Visibility::kSilent,
        .severity = Severity::kLoss,
        .summary = "one rank is stuck in a collective until its deadline",
        .effect =
            "At an agreement: nothing of this rank arrives; at the deadline it leaves the group, "
            "and this call and every later one throws kPeerLost. At the wait for weights: it "
            "throws kTimeout at the deadline, and the weight group is aborted.",
        .moment = "control.word, control.gather, control.broadcast and shard.wait of an actor.",
        .legal = "All actors leave by the deadline, with kPeerLost or with this rank's timeout.",
        .illegal = "A wait without a bound; a rank that waits on for one that has left.",
        .proof = "The trace shows the wait.",
        .worlds = kEveryWorld,
        .counterpart =
            "A group that waits for a rank that waits in another group (reported in "
            "huggingface/trl#7103 and areal-project/AReaL#1596: the first sync hangs with more "
            "than two ranks).",
        .arguments = {},
        .variants = rules::no_arguments,
        .applies = rules::on_hang,
        .is_tried = rules::at_representatives,
        .demand = rules::must_fail,
        .kinds = rules::kinds_of_hang},
    FaultKind{
        .name = "collective.corrupt_word",
        .family = "collective",
        .action = Action::kDistortContribution,
        .visibility = Visibility::kVisible,
        .severity = Severity::kData,
        .summary = "one rank stands at another gate than its peers",
        .effect = "One bit of the word that this rank contributes to an agreement is another.",
        .moment = "control.word of an actor.",
        .legal = kFailBeforeTouch,
        .illegal = "An agreement by accident; another error on another actor.",
        .proof = "The contribution differs from the twin's.",
        .worlds = kEveryWorld,
        .counterpart = "Ranks that are one call apart (reported in Tencent-Hunyuan/UniRL#494 and "
                       "huggingface/trl#6798: collectives in different order).",
        .arguments = {},
        .variants = rules::no_arguments,
        .applies = rules::on_word,
        .is_tried = rules::at_representatives,
        .demand = rules::must_fail,
        .kinds = rules::protocol_alone},
    FaultKind{
        .name = "collective.truncated_bytes",
        .family = "collective",
        .action = Action::kDistortContribution,
        .visibility = Visibility::kVisible,
        .severity = Severity::kData,
        .summary = "half of what a rank gives, or receives, is missing",
        .effect =
            "At a gather: this rank contributes the first half of its bytes. At a broadcast: it "
            "keeps the first half of what it receives.",
        .moment = "control.gather of an actor, and control.broadcast of one other than rank 0.",
        .legal = kFailBeforeTouch,
        .illegal = kNoHalfCommit,
        .proof = "The contribution, or what follows from what was received, differs.",
        .worlds = kEveryWorld,
        .counterpart = "A buffer that was sized by another rank's length.",
        .arguments = {},
        .variants = rules::no_arguments,
        .applies = rules::on_bytes,
        .demand = rules::must_fail,
        .kinds = rules::kinds_of_truncation},
    FaultKind{
        .name = "collective.garbled",
        .family = "collective",
        .action = Action::kGarbleGather,
        .visibility = Visibility::kVisible,
        .severity = Severity::kData,
        .summary = "what a gather of weights delivers on one rank is garbage",
        .effect = "After the wait, all parts of the gather are overwritten in this rank's buffer.",
        .moment = "shard.wait of an actor behind a gather, where the digest is on.",
        .legal = "The publication fails on every actor: the digest tells.",
        .illegal = "A commit.",
        .proof = "The trace shows the bytes being overwritten.",
        .worlds = kEveryWorld,
        .counterpart =
            "A collective that returns before its bytes are there, a link with errors; a full "
            "tensor put together wrongly (reported in pytorch/pytorch#144109 and "
            "pytorch/torchtitan#4593).",
        .arguments = {},
        .variants = rules::no_arguments,
        .applies = rules::on_gathered,
        .demand = rules::must_fail,
        .kinds = rules::remote_alone},
};

}  // namespace tpsync::faults::rows
