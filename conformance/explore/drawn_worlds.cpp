#include "conformance/explore/drawn_worlds.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "conformance/explore/random_plans.h"
#include "conformance/judge/content.h"
#include "faults/injector.h"
#include "tpsync/base/process.h"
#include "tpsync/model/plan.h"
#include "tpsync/model/tp_layout.h"

namespace tpsync::conformance {

namespace {

// Each fault of a plan may be a stall, and all of them may fall into one command. Each must be
// survived, so a deadline has to be longer than all of them together.
constexpr Duration kShortestDeadline = std::chrono::seconds(12);
static_assert(kShortestDeadline > static_cast<int>(kPlanFaultsMax) * faults::kStall);

class Draws {
 public:
  explicit Draws(std::uint64_t key) : key_(judge::mix(key ^ 0x647261776e77ULL)) {}

  // Each purpose has its own place, so that one more draw shifts no other.
  std::uint64_t word(std::uint64_t purpose) const { return judge::mix(key_ + purpose); }
  bool chance(std::uint64_t purpose) const { return (word(purpose) & 1) != 0; }
  template <typename T, std::size_t N>
  T of(std::uint64_t purpose, const std::array<T, N>& values) const {
    return values[word(purpose) % N];
  }

 private:
  std::uint64_t key_;
};

model::ModelConfig drawn_config(const Draws& draws) {
  model::ModelConfig config;
  config.model_type = "qwen3_moe";
  config.tie_word_embeddings = draws.chance(1);
  config.num_hidden_layers = 1 + draws.word(2) % 3;
  config.num_experts = draws.of(3, std::array<std::uint64_t, 3>{4, 5, 8});
  config.hidden_size = draws.of(4, std::array<std::uint64_t, 4>{4, 8, 12, 16});
  config.moe_intermediate_size = draws.of(5, std::array<std::uint64_t, 3>{4, 8, 12});
  config.vocab_size = draws.of(6, std::array<std::uint64_t, 6>{16, 17, 63, 64, 65, 100});
  config.num_attention_heads = draws.of(7, std::array<std::uint64_t, 2>{4, 8});
  config.num_key_value_heads = draws.of(8, std::array<std::uint64_t, 3>{1, 2, 4});
  config.head_dim = draws.of(9, std::array<std::uint64_t, 3>{2, 4, 8});
  config.dtype =
      draws.of(10, std::array<DType, 3>{DType::kBFloat16, DType::kFloat16, DType::kFloat32});
  return config;
}

}  // namespace

DrawnWorld drawn_world(std::uint64_t number) {
  using std::chrono::milliseconds;
  using std::chrono::seconds;
  const Draws draws(number);
  DrawnWorld world;
  WorldSpec& spec = world.spec;
  spec = small_world(drawn_config(draws), draws.of(11, std::array<int, 3>{1, 2, 4}));
  spec.seed = 1 + draws.word(12) % 1000;
  spec.storage = draws.chance(13) ? Storage::kFusedExperts : Storage::kSeparateExperts;
  spec.stored =
      draws.of(14, std::array<DType, 3>{DType::kBFloat16, DType::kFloat16, DType::kFloat32});
  spec.uneven_shards = draws.chance(15);
  if (draws.word(28) % 4 == 0) spec.sync.route = wire::Route::kReshard;
  const model::CanonicalPlan plan = model::plan_canonical(spec.config);
  const std::uint64_t room = plan.byte_count - plan.largest_tensor_bytes;
  spec.sync.bucket_bytes =
      plan.largest_tensor_bytes + (draws.chance(16) ? 0 : draws.word(17) % (room + 1));
  // A chunk of one small tensor after the other makes large worlds of small models.
  constexpr std::uint64_t kChunksMax = 12;
  spec.sync.bucket_bytes = std::max(spec.sync.bucket_bytes, plan.byte_count / kChunksMax);
  const auto of_seconds = [&](std::uint64_t purpose) {
    return draws.of(purpose, std::array<Duration, 3>{kShortestDeadline, seconds(20), seconds(60)});
  };
  spec.timeouts.startup = of_seconds(18);
  spec.timeouts.generate = of_seconds(19);
  spec.timeouts.health = of_seconds(20);
  spec.timeouts.sleep = of_seconds(21);
  spec.timeouts.wake_up = of_seconds(22);
  spec.timeouts.shutdown = of_seconds(23);
  spec.timeouts.weight_update = of_seconds(24);
  spec.sync.control_timeout =
      spec.timeouts.weight_update + kKillAllowance +
      Duration(draws.of(25, std::array<milliseconds, 3>{milliseconds(1), seconds(1), seconds(60)}));
  world.pipe_capacity = std::uint64_t{1} << (draws.word(26) % 17);
  world.latency_percent = draws.of(27, std::array<std::uint32_t, 5>{0, 10, 100, 1000, 5000});
  // A message that goes byte by byte takes its latency as often: where that is long, a second, in
  // which failures have to be noticed, would be too short for one message.
  constexpr std::uint64_t kWidePipe = 4096;
  if (world.latency_percent > 100) world.pipe_capacity = std::max(world.pipe_capacity, kWidePipe);
  return world;
}

std::string to_text(const DrawnWorld& world) {
  const WorldSpec& s = world.spec;
  const model::ModelConfig& c = s.config;
  return fmt::format(
      "TP {}, {} layers, {} experts, hidden {}, vocabulary {}, heads {} over {}, {} stored as {}, "
      "{}{}{}{}bucket {}, pipes {}, latencies {} %",
      s.tp, c.num_hidden_layers, c.num_experts, c.hidden_size, c.vocab_size, c.num_attention_heads,
      c.num_key_value_heads, bare_name(c.dtype), bare_name(s.stored),
      c.tie_word_embeddings ? "tied, " : "",
      s.storage == Storage::kFusedExperts ? "fused experts, " : "",
      s.uneven_shards ? "uneven shards, " : "",
      s.sync.route == wire::Route::kReshard ? "resharded, " : "", s.sync.bucket_bytes,
      world.pipe_capacity, world.latency_percent);
}

}  // namespace tpsync::conformance
