// Receipts and results that are not what was attested: altered on each of the three hops, refused
// at the boundary behind it.
#include <fmt/format.h>

#include <array>

#include "conformance/scenarios/scripts.h"

namespace tpsync::conformance {

namespace {

constexpr std::array kReceiptFaults = {"receipt.missing",
                                       "receipt.duplicated",
                                       "receipt.tp_rank",
                                       "receipt.tp_world_size",
                                       "receipt.device_uuid",
                                       "receipt.publication_id",
                                       "receipt.model_version",
                                       "receipt.expected_manifest_fingerprint",
                                       "receipt.resident_parameter_count",
                                       "receipt.ready",
                                       "receipt.digest"};
constexpr std::array kResultFaults = {"result.status", "result.model_version",
                                      "result.prefix_cache_reset"};

// A count of zero or a rank that there is not has the wrong form; all else is not what is expected.
ErrorKind kind_of(const std::string& fault, int tp) {
  const bool form =
      fault == "receipt.resident_parameter_count" || (fault == "receipt.tp_rank" && tp == 1);
  return form ? ErrorKind::kProtocol : ErrorKind::kMismatch;
}

bool needs_digest(const std::string& fault) { return fault == "receipt.digest"; }

// Worker to runtime: the runtime refuses, before it publishes its version.
void worker_hop(ScenarioContext& context) {
  Batch batch(context);
  const int rank = context.spec().tp - 1;
  for (const std::string fault : kReceiptFaults) {
    if (needs_digest(fault) && !context.spec().sync.content_digest) continue;
    if (fault == "receipt.duplicated" || fault == "receipt.missing")
      continue;  // one reply, one receipt
    batch.add(fmt::format("{} on the way from worker {}", fault, rank),
              with_fault(fault,
                         {.role = "worker",
                          .rank = rank,
                          .phase = "finish_native_weight_update",
                          .op = "channel.write"},
                         {{"hop", "worker"}}),
              publish_and_recover(), [=, &context] {
                context.expect_failed({.kind = ErrorKind::kRemote,
                                       .phase = "native-finish",
                                       .rank = 0,
                                       .subject = "finish_native_weight_update",
                                       .detail = "PeerViolation"});
              });
  }
  batch.run();
}

// Runtime to parent: the engine refuses, and breaks.
void runtime_hop(ScenarioContext& context) {
  Batch batch(context);
  const auto run = [&](const std::string& fault) {
    if (needs_digest(fault) && !context.spec().sync.content_digest) return;
    batch.add(
        fmt::format("{} on the way from the runtime", fault),
        with_fault(context, fault,
                   {.role = "runtime",
                    .phase = "finish_native_weight_update",
                    .op = "channel.write",
                    .peer_role = "actor"},
                   {{"hop", "runtime"}}),
        publish_and_recover(), [=, &context] {
          context.expect_failed(
              {.kind = kind_of(fault, context.spec().tp), .phase = "native-finish", .rank = 0});
        });
  };
  for (const std::string fault : kReceiptFaults) run(fault);
  for (const std::string fault : kResultFaults) run(fault);
  batch.run();
}

// Rank 0 to the others: the actor that got it wrong refuses.
void broadcast_hop(ScenarioContext& context) {
  Batch batch(context);
  const int rank = context.last_rank();
  const auto run = [&](const std::string& fault) {
    if (needs_digest(fault) && !context.spec().sync.content_digest) return;
    batch.add(
        fmt::format("{} in what rank {} receives", fault, rank),
        with_fault(fault, {.rank = rank, .phase = "native-result", .op = "control.broadcast"},
                   {{"hop", "broadcast"}}),
        publish_and_recover(), [=, &context] {
          context.expect_failed(
              {.kind = kind_of(fault, context.spec().tp), .phase = "native-result", .rank = rank});
        });
  };
  for (const std::string fault : kReceiptFaults) run(fault);
  for (const std::string fault : kResultFaults) run(fault);
  batch.run();
}

}  // namespace

std::vector<Scenario> receipt_scenarios() {
  return {
      {"receipt.worker-hop",
       "A receipt altered between worker and runtime is refused by the runtime",
       {"TPS-RCPT-01", "TPS-BND-05"},
       needs_equal_worlds,
       worker_hop},
      {"receipt.runtime-hop",
       "A result altered between runtime and parent is refused by the parent's engine",
       {"TPS-RCPT-02", "TPS-BND-06"},
       needs_equal_worlds,
       runtime_hop},
      {"receipt.broadcast-hop",
       "A result altered between rank 0 and another actor is refused by that actor, and by all",
       {"TPS-RCPT-03", "TPS-BND-07"},
       needs_two_equal_ranks,
       broadcast_hop},
  };
}

}  // namespace tpsync::conformance
