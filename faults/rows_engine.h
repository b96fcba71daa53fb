// Rows of the family engine: an inference engine that does not do what it is asked.
#pragma once

#include <array>

#include "faults/rows_texts.h"

namespace tpsync::faults::rows {

inline constexpr std::array kEngine = {
    FaultKind{.name = "engine.load_fail",
              .family = "engine",
              .action = Action::kMisbehave,
              .visibility = Visibility::kVisible,
              .severity = Severity::kRefusal,
              .summary = "the engine cannot load its checkpoint",
              .effect = "load_checkpoint throws kIo.",
              .moment = "engine.load of a worker, before any publication.",
              .legal = "The start of the engine fails with the cause; a later one may succeed.",
              .illegal = "A runtime that is ready without weights.",
              .proof = "The start fails where its twin's succeeds.",
              .worlds = "sim process gpu",
              .counterpart = "A checkpoint that is not there, or of another model.",
              .arguments = {},
              .variants = rules::no_arguments,
              .applies = rules::on_engine_load,
              .demand = rules::must_fail,
              .kinds = rules::remote_alone},
    FaultKind{
        .name = "engine.generate_fail",
        .family = "engine",
        .action = Action::kMisbehave,
        .visibility = Visibility::kVisible,
        .severity = Severity::kRefusal,
        .summary = "one generation fails",
        .effect = "generate throws kOutOfMemory; nothing else happens.",
        .moment = "engine.generate of a worker, outside of publications.",
        .legal = "This generation fails; the runtime stays usable, and the next one succeeds.",
        .illegal =
            "A runtime that is given up for it; a later generation that gets this one's reply.",
        .proof = "The generation fails where its twin's succeeds.",
        .worlds = "sim process gpu",
        .counterpart =
            "A request that is too long for the cache (reported in vllm-project/vllm#57846: after "
            "an error the next call returns an old reply).",
        .arguments = {},
        .variants = rules::no_arguments,
        .applies = rules::on_engine_generate,
        .demand = rules::may_fail,
        .kinds = rules::remote_alone},
    FaultKind{.name = "engine.keeps_cache",
              .family = "engine",
              .action = Action::kMisbehave,
              .visibility = Visibility::kVisible,
              .severity = Severity::kData,
              .summary = "an engine cannot forget what it computed with old weights",
              .effect = "reset_prefix_cache returns false.",
              .moment = "engine.reset_cache of a worker in finish_native_weight_update.",
              .legal = kFailStop,
              .illegal = "A commit: old keys and values would answer for the new weights.",
              .proof = "finish fails where its twin's succeeds.",
              .worlds = "sim process gpu",
              .counterpart = "A reset that is refused while requests run (reported in "
                             "vllm-project/vllm#46125 and InternLM/lmdeploy#4917).",
              .arguments = {},
              .variants = rules::no_arguments,
              .applies = rules::on_engine_reset,
              .demand = rules::must_fail,
              .kinds = rules::remote_alone},
    FaultKind{
        .name = "engine.finalize_fail",
        .family = "engine",
        .action = Action::kMisbehave,
        .visibility = Visibility::kVisible,
        .severity = Severity::kRefusal,
        .summary = "what an engine does with a loaded layer fails",
        .effect = "layer_loaded throws kDevice.",
        .moment = "engine.layer of a worker in the last update.",
        .legal = kFailStop,
        .illegal = "A commit with a layer half done.",
        .proof = "The update fails where its twin's succeeds.",
        .worlds = "sim process gpu",
        .counterpart =
            "A repacking kernel that runs out of memory (reported in verl-project/verl#7978).",
        .arguments = {},
        .variants = rules::no_arguments,
        .applies = rules::on_engine_layer,
        .demand = rules::must_fail,
        .kinds = rules::remote_alone},
    FaultKind{.name = "engine.rewrites_weights",
              .family = "engine",
              .action = Action::kMisbehave,
              .visibility = Visibility::kVisible,
              .severity = Severity::kData,
              .summary = "what an engine does with a loaded layer changes its bytes",
              .effect = "Two bytes of the resident weights are overwritten after layer_loaded.",
              .moment = "engine.layer of a worker in the last update, where the digest is on.",
              .legal = kFailStop,
              .illegal = "A commit.",
              .proof = "The trace shows the bytes being overwritten.",
              .worlds = "sim process gpu",
              .counterpart =
                  "A kernel that swaps halves of fused weights, and swaps them again at the next "
                  "load (reported in vllm-project/vllm#42821 and vllm-project/vllm#49586).",
              .arguments = {},
              .variants = rules::no_arguments,
              .applies = rules::on_digested_layer,
              .demand = rules::must_fail,
              .kinds = rules::remote_alone},
};

}  // namespace tpsync::faults::rows
