// Memory: what the preflight admits fits, what it refuses leaves the runtime as it was.
#include <fmt/format.h>

#include <algorithm>

#include "conformance/scenarios/scripts.h"
#include "sim/trace.h"

namespace tpsync::conformance {

namespace {

struct Usage {
  std::uint64_t free_min = UINT64_MAX;
  std::uint64_t total = 0;
  std::uint64_t peak_max = 0;
};

// What the devices of the last world had free at the preflight, and the most that was ever used.
Usage usage_of(const sim::Trace& trace) {
  Usage usage;
  for (const sim::Event& event : trace.events) {
    if (event.kind == static_cast<std::uint16_t>(sim::EventKind::kOp) &&
        event.op == static_cast<std::uint16_t>(sim::Op::kDeviceMemory)) {
      usage.free_min = std::min(usage.free_min, event.a);
      usage.total = event.b;
    }
    if (event.kind == static_cast<std::uint16_t>(sim::EventKind::kDevicePeak)) {
      usage.peak_max = std::max(usage.peak_max, event.b);
    }
  }
  return usage;
}

// More than any device of these worlds uses.
constexpr std::uint64_t kPlenty = 1024 * kGiB;

struct Budget {
  std::string name;
  WorldSpec spec;
  std::uint64_t used = 0;  // at the preflight
  std::uint64_t required = 0;
};

// How much each device has in use at the preflight shows where there is plenty.
void measure_use(ScenarioContext& context, std::vector<Budget>& budgets) {
  Batch batch(context);
  for (Budget& budget : budgets) {
    budget.spec.device_bytes = kPlenty;
    batch.add(budget.name + ", with ample memory", budget.spec, {}, publish_once(), [&] {
      context.expect_committed(1);
      const Usage usage = usage_of(context.trace());
      context.check(usage.free_min != UINT64_MAX, "the preflight should have read the free memory");
      budget.used = usage.total - usage.free_min;
    });
  }
  batch.run_whole();
}

void try_budgets(ScenarioContext& context, const std::vector<Budget>& budgets) {
  Batch batch(context);
  for (const Budget& budget : budgets) {
    WorldSpec spec = budget.spec;
    spec.device_bytes = budget.used + budget.required;
    batch.add(budget.name + ", with exactly the required memory", spec, {}, publish_once(), [&] {
      context.expect_committed(1);
      const std::uint64_t peak = usage_of(context.trace()).peak_max;
      const std::uint64_t bytes = budget.used + budget.required;
      context.check(peak <= bytes, fmt::format("the peak {} should stay within {}", peak, bytes));
    });
    --spec.device_bytes;
    SimOptions refused;
    refused.expect_failure = true;
    batch.add(budget.name + ", with one byte less", spec, refused, publish_once(), [&] {
      context.expect_failed({.kind = ErrorKind::kOutOfMemory,
                             .phase = "topology-memory-preflight",
                             .subject = "free device memory"});
    });
  }
  batch.run();
}

// Three buckets and the largest layer, where everything outside of the decoder's layers is a layer
// of its own: stated here once more, so that what core asks for is held against it.
std::uint64_t required_bytes(const WorldSpec& spec) {
  std::uint64_t largest = 0;
  std::uint64_t layer = 0;
  std::string open;  // the decoder layer that is being added up
  for (const wire::TensorRecord& tensor : model::plan_canonical(spec.config).tensors) {
    constexpr std::string_view kLayers = "model.layers.";
    const bool in_layer = tensor.name.starts_with(kLayers);
    const std::string name =
        in_layer ? tensor.name.substr(0, tensor.name.find('.', kLayers.size())) : tensor.name;
    layer = (name == open ? layer : 0) + tensor.nbytes;
    open = name;
    largest = std::max(largest, layer);
  }
  return 3 * spec.sync.bucket_bytes + largest;
}

void preflight_exact(ScenarioContext& context) {
  std::vector<Budget> budgets;
  const auto add = [&](const std::string& name, WorldSpec spec) {
    spec.sync.gpu_memory_headroom_bytes = 0;
    budgets.push_back({name, spec, 0, required_bytes(spec)});
  };
  for (const Way& way : every_way()) {
    WorldSpec spec = context.spec();
    way.set_in(spec);
    spec.storage = Storage::kSeparateExperts;
    const std::string& name = way.name;
    add(name + ", even shards, separate experts", spec);
    spec.uneven_shards = true;
    add(name + ", uneven shards", spec);
    spec.storage = Storage::kFusedExperts;
    add(name + ", uneven shards, fused experts", spec);
  }
  measure_use(context, budgets);
  try_budgets(context, budgets);
}

void one_byte_over_the_buffer(ScenarioContext& context) {
  const std::uint64_t largest = model::plan_canonical(context.spec().config).largest_tensor_bytes;
  WorldSpec spec = context.spec();
  spec.sync.bucket_bytes = largest;
  context.run("the bucket is exactly the largest tensor", spec, {}, publish_once());
  context.expect_committed(1);
  spec.sync.bucket_bytes = largest - 1;
  SimOptions refused;
  refused.expect_failure = true;
  context.run("the bucket is one byte too small", spec, refused, publish_once());
  context.expect_failed({.kind = ErrorKind::kInvalidConfig,
                         .phase = "topology-memory-preflight",
                         .subject = "bucket_bytes"});
}

void probe_forbidden(ScenarioContext& context) {
  const int rank = context.spec().tp - 1;
  const auto script = [&](Actor& actor) {
    actor.start_engine();
    actor.setup();
    actor.sleep();  // level 1, once
    actor.wake_all();
    actor.sleep();  // level 2: the weights are lost now
    actor.wake_weights();
    actor.step();
    const bool first_failed = !actor.keep(actor.publish()).ok();
    actor.wake_all();
    const Outcome refused = actor.generate();
    actor.check(actor.rank() != 0 || !first_failed ||
                    (!refused.ok() && refused.error->kind == ErrorKind::kInvalidState),
                "generate should be refused: the weights are lost, also after a full wake-up");
    const Outcome second = actor.publish();
    actor.check(second.ok() && second.version == 1, "the second sync should have succeeded");
    actor.check(actor.generate().ok(), "generate should work after the publication");
    actor.cleanup();
    actor.shutdown();
  };
  context.run(
      fmt::format("worker {} may not open exports, once", rank),
      with_fault("ipc.open_fail",
                 {.role = "worker", .rank = rank, .phase = "probe_ipc", .op = "device.import"}),
      script);
  context.expect_failed(
      {.kind = ErrorKind::kRemote, .phase = "topology-ipc-probe", .rank = 0, .detail = "[ipc]"});
}

void open_fails_later(ScenarioContext& context) {
  const int rank = context.spec().tp - 1;
  context.run(fmt::format("worker {} cannot open the packed buffer", rank),
              with_fault("ipc.open_fail", {.role = "worker",
                                           .rank = rank,
                                           .phase = "update_native_weights",
                                           .op = "device.import"}),
              publish_and_recover());
  context.expect_failed(
      {.kind = ErrorKind::kRemote, .phase = "native-transfer-0", .rank = 0, .detail = "[ipc]"});
}

void allocation_fails(ScenarioContext& context) {
  Batch batch(context);
  for (int rank = 0; rank < context.spec().actors; ++rank) {
    batch.add(
        fmt::format("rank {} cannot allocate its packed buffer", rank),
        with_fault("memory.alloc_fail",
                   {.rank = rank, .phase = "native-buffer-allocation", .op = "device.allocate"}),
        publish_and_recover(), [=, &context] {
          context.expect_failed(
              {.kind = ErrorKind::kOutOfMemory, .phase = "native-buffer-allocation", .rank = rank});
        });
  }
  batch.run();
}

void late_copies(ScenarioContext& context) {
  const std::vector<faults::Operation> operations = context.operations();
  std::uint64_t copies = 0;
  for (const faults::Operation& operation : operations) {
    // A worker that holds nothing of a chunk copies nothing.
    if (operation.role != "worker" || operation.phase != "update_native_weights" ||
        operation.op != "device.launch" || operation.occurrence != 0) {
      continue;
    }
    ++copies;
    context.run(fmt::format("the copy of chunk {} on worker {} lands at its sync", operation.chunk,
                            operation.rank),
                with_fault("copy.late", {.role = operation.role,
                                         .rank = operation.rank,
                                         .phase = operation.phase,
                                         .chunk = operation.chunk,
                                         .op = operation.op}),
                publish_and_recover());
    context.expect_committed(1);
  }
  context.check(copies > 0, "no worker copies anything");
}

}  // namespace

std::vector<Scenario> memory_scenarios() {
  return {
      {"memory.preflight",
       "Exactly the required free memory commits and is never exceeded; one byte less is refused",
       {"TPS-MEM-01", "TPS-MEM-02"},
       needs_equal_worlds,
       preflight_exact},
      {"memory.bucket",
       "A tensor of exactly the bucket's size travels; one byte more is refused before the runtime "
       "is touched",
       {"TPS-MEM-03"},
       needs_equal_worlds,
       one_byte_over_the_buffer},
      {"memory.allocation",
       "A rank that cannot allocate its packed buffer fails all ranks, and poisons",
       {"TPS-MEM-04"},
       needs_equal_worlds,
       allocation_fails},
      {"ipc.forbidden",
       "Forbidden sharing is found at preflight; lost weights stay refused until a later sync "
       "succeeds",
       {"TPS-IPC-01", "TPS-SLEEP-03"},
       needs_equal_worlds,
       probe_forbidden},
      {"ipc.open",
       "An export that cannot be opened during the transfer poisons",
       {"TPS-IPC-02"},
       needs_equal_worlds,
       open_fails_later},
      {"copy.late",
       "Copies that land as late as they may change nothing",
       {"TPS-DATA-03"},
       needs_equal_worlds,
       late_copies,
       "a real device says itself when its copies land"},
  };
}

}  // namespace tpsync::conformance
