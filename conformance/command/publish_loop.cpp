#include "conformance/command/publish_loop.h"

#include <fmt/format.h>

#include <utility>

namespace tpsync::conformance {

namespace {

bool group_broke(const Outcome& outcome) {
  return outcome.error && (outcome.error->kind == ErrorKind::kPeerLost ||
                           outcome.error->kind == ErrorKind::kOutcomeUnknown);
}

class Loop {
 public:
  Loop(Actor& actor, const PublishLoop& options) : actor_(actor), options_(options) {}

  void run() {
    if (bootstrap()) {
      const std::uint64_t count = options_.versions + (options_.faulted ? 1 : 0);
      for (std::uint64_t i = 0; i < count; ++i) {
        expect(actor_.sleep(), "sleep");
        actor_.train(options_.train);
        expect(actor_.wake_weights(), "wake-up of the weights");
        if (!publish() && !recover()) break;
        expect(actor_.wake_all(), "full wake-up");
        generate();
      }
    }
    actor_.cleanup();
    actor_.shutdown();
  }

 private:
  bool bootstrap() {
    const TimePoint begin = actor_.now();
    if (!expect(actor_.start_engine(), "start of the engine")) return false;
    if (!expect(actor_.setup(), "setup")) return false;
    expect(actor_.sleep(), "bootstrap sleep");
    expect(actor_.wake_all(), "first wake-up");
    generate();
    report(begin, fmt::format("engine started on {} workers, version {} serves", actor_.spec().tp,
                              serving_));
    return true;
  }

  bool publish() {
    actor_.step();
    const TimePoint begin = actor_.now();
    const Outcome outcome = actor_.keep(actor_.publish());
    if (outcome.ok()) {
      serving_ = outcome.version;
      report(begin, fmt::format("version {} published", outcome.version));
      return true;
    }
    report(begin, "publication failed: " + to_text(*outcome.error));
    expect(outcome, "publication");
    last_ = outcome;
    return false;
  }

  // What a trainer does after a failed publication that all ranks agree on.
  bool recover() {
    if (last_.error->remedy == Remedy::kRebuildRuntime) actor_.poke_broken();
    if (!options_.faulted || recovered_ || group_broke(last_)) return false;
    recovered_ = true;
    const Outcome rebuilt = actor_.rebuild();
    if (!rebuilt.ok()) return false;
    return publish();
  }

  void generate() {
    const Outcome outcome = actor_.generate();
    if (!expect(outcome, "generation") || actor_.rank() != 0 || !outcome.ok()) return;
    actor_.check(outcome.version == serving_,
                 fmt::format("version {} should serve, it is {}", serving_, outcome.version));
  }

  // True if it worked, or if it need not have.
  bool expect(const Outcome& outcome, const char* what) {
    if (outcome.ok()) return true;
    if (!options_.faulted) {
      actor_.check(false, fmt::format("rank {}: the {} should have worked: {}", actor_.rank(), what,
                                      to_text(*outcome.error)));
    }
    return false;
  }

  void report(TimePoint begin, const std::string& what) {
    if (actor_.rank() != 0 || !options_.progress) return;
    const auto ns = static_cast<double>((actor_.now() - begin).count());
    options_.progress(fmt::format("{} ({:.3f} ms)", what, ns / 1e6));
  }

  Actor& actor_;
  const PublishLoop& options_;
  Outcome last_;
  std::int64_t serving_ = actor_.spec().base_version;
  bool recovered_ = false;
};

}  // namespace

Script publish_loop(PublishLoop loop) {
  return [loop = std::move(loop)](Actor& actor) { Loop(actor, loop).run(); };
}

}  // namespace tpsync::conformance
