// Simulated shared words: see the header for their rules.
#include "sim/shared_words.h"

#include <cstring>

#include "sim/groups.h"
#include "sim/sanitizers.h"

namespace tpsync::sim {

namespace {

class SimSharedWords final : public collective::SharedWords {
 public:
  SimSharedWords(std::shared_ptr<WordsHub> hub, SimProcess& process)
      : hub_(std::move(hub)), process_(process) {}
  ~SimSharedWords() override {
    if (hub_->world != nullptr && hub_->maker == &process_) hub_->maker = nullptr;
  }

  std::size_t size() const noexcept override { return hub_->words.size(); }

  std::uint64_t load(std::size_t index) override {
    const HarnessAccess harness;
    WordsHub::Word& word = at(index);
    const std::size_t op = process_.begin(Op::kWordsLoad, hub_->id, index);
    acquire(word);
    process_.event(op).c = word.value;
    process_.finish(op);
    return word.value;
  }

  void store(std::size_t index, std::uint64_t value) noexcept override {
    const HarnessAccess harness;
    WordsHub::Word& word = at(index);
    const auto op = begin_quiet(Op::kWordsStore, index, value);
    if (!op) return;
    release(word);
    word.value = value;
    process_.finish(*op);
  }

  std::uint64_t add(std::size_t index, std::uint64_t amount) noexcept override {
    const HarnessAccess harness;
    WordsHub::Word& word = at(index);
    const auto op = begin_quiet(Op::kWordsAdd, index, amount);
    if (!op) return 0;
    acquire(word);
    release(word);
    word.value += amount;
    process_.event(*op).c = word.value;
    process_.finish(*op);
    return word.value;
  }

  bool wait(std::size_t index, std::uint64_t seen, Deadline deadline) override {
    const HarnessAccess harness;
    WordsHub::Word& word = at(index);
    const std::size_t op = process_.begin(Op::kWordsWait, hub_->id, index, seen);
    bool woken = true;
    if (word.value == seen)
      woken = !deadline.passed(TimePoint{process_.sim().now()}) &&
              process_.block(word.waiters, deadline);
    process_.finish(op, woken ? kOk : static_cast<std::uint16_t>(ErrorKind::kTimeout));
    return woken;
  }

  void wake(std::size_t index) noexcept override {
    const HarnessAccess harness;
    WordsHub::Word& word = at(index);
    const auto op = begin_quiet(Op::kWordsWake, index, 0);
    if (!op) return;
    process_.sim().scheduler().wake(word.waiters);
    process_.finish(*op);
  }

 private:
  WordsHub::Word& at(std::size_t index) const {
    TPSYNC_ASSERT(index < hub_->words.size());
    return hub_->words[index];
  }
  std::optional<std::size_t> begin_quiet(Op kind, std::size_t index, std::uint64_t value) noexcept {
    if (hub_->world == nullptr) return std::nullopt;
    return process_.begin_quiet(kind, hub_->id, index, value);
  }
  void acquire(WordsHub::Word& word) {
    process_.clock().join(word.clock);
    sanitizer_acquire(&word);
  }
  void release(WordsHub::Word& word) {
    process_.release_clock(word.clock);
    sanitizer_release(&word);
  }

  std::shared_ptr<WordsHub> hub_;
  SimProcess& process_;
};

}  // namespace

collective::SharedWordsFactory::Made SimSharedWordsFactory::make(std::size_t count) {
  const HarnessAccess harness;
  const std::size_t op = process_.begin(Op::kWordsMake, 0, count);
  const std::shared_ptr<WordsHub> hub = process_.sim().groups().make_words(process_, count);
  process_.event(op).a = hub->id;
  process_.finish(op);
  Made made;
  made.handle.resize(sizeof hub->id);
  std::memcpy(made.handle.data(), &hub->id, sizeof hub->id);
  made.words = std::make_unique<SimSharedWords>(hub, process_);
  return made;
}

std::unique_ptr<collective::SharedWords> SimSharedWordsFactory::open(ByteView handle) {
  const HarnessAccess harness;
  std::uint64_t id = 0;
  if (handle.size() == sizeof id) std::memcpy(&id, handle.data(), sizeof id);
  const std::size_t op = process_.begin(Op::kWordsOpen, id);
  const std::shared_ptr<WordsHub> hub = process_.sim().groups().find_words(id);
  if (!hub || hub->maker == nullptr)
    process_.fail(op, ErrorKind::kIo, "shared words", "the handle leads to no such words");
  process_.event(op).b = hub->words.size();
  process_.finish(op);
  return std::make_unique<SimSharedWords>(hub, process_);
}

}  // namespace tpsync::sim
