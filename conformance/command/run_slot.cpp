#include "conformance/command/run_slot.h"

#include <cstring>
#include <string_view>

namespace tpsync::conformance {

namespace {

class Writer {
 public:
  explicit Writer(RunSlot& slot) : slot_(slot) { slot_.length = 0; }
  void number(std::uint64_t value) { raw(&value, sizeof(value)); }
  void text(std::string_view value) {
    number(value.size());
    raw(value.data(), value.size());
  }

 private:
  void raw(const void* data, std::size_t size) {
    if (full_ || size > slot_.bytes.size() - slot_.length) {
      full_ = true;
      return;
    }
    std::memcpy(slot_.bytes.data() + slot_.length, data, size);
    slot_.length += size;
  }
  RunSlot& slot_;
  bool full_ = false;
};

class Reader {
 public:
  explicit Reader(const RunSlot& slot) : left_(slot.bytes.data(), slot.length) {}
  std::uint64_t number() {
    std::uint64_t value = 0;
    const std::string_view part = take(sizeof(value));
    if (part.size() == sizeof(value)) std::memcpy(&value, part.data(), sizeof(value));
    return value;
  }
  std::string text() { return std::string(take(number())); }
  bool more() const { return !left_.empty(); }

 private:
  std::string_view take(std::uint64_t size) {
    const std::string_view part = left_.substr(0, size);
    left_.remove_prefix(part.size());
    return part;
  }
  std::string_view left_;
};

void write_fault(Writer& writer, const faults::Fault& fault) {
  writer.text(fault.name);
  writer.text(fault.moment.role);
  writer.number(static_cast<std::uint64_t>(fault.moment.rank));
  writer.text(fault.moment.phase);
  writer.number(static_cast<std::uint64_t>(fault.moment.chunk));
  writer.text(fault.moment.op);
  writer.number(fault.moment.occurrence);
  writer.number(fault.arguments.size());
  for (const auto& [name, value] : fault.arguments) {
    writer.text(name);
    writer.text(value);
  }
}

faults::Fault read_fault(Reader& reader) {
  faults::Fault fault;
  fault.name = reader.text();
  fault.moment.role = reader.text();
  fault.moment.rank = static_cast<int>(reader.number());
  fault.moment.phase = reader.text();
  fault.moment.chunk = static_cast<std::int64_t>(reader.number());
  fault.moment.op = reader.text();
  fault.moment.occurrence = reader.number();
  const std::uint64_t arguments = reader.number();
  for (std::uint64_t i = 0; i < arguments && reader.more(); ++i) {
    std::string name = reader.text();
    fault.arguments[std::move(name)] = reader.text();
  }
  return fault;
}

}  // namespace

void RunSlot::write(const SimOptions& options) {
  Writer writer(*this);
  writer.number(static_cast<std::uint64_t>(options.policy));
  writer.number(options.schedule);
  writer.number(options.priority_changes);
  writer.number(options.priority_choices);
  writer.number(options.pipe_capacity);
  writer.number(options.latency_percent);
  writer.text(options.recovery);
  writer.number(options.plan.seed);
  writer.number(options.plan.faults.size());
  for (const faults::Fault& fault : options.plan.faults) write_fault(writer, fault);
  writer.number(options.facts.size());
  for (const FaultFacts& facts : options.facts) {
    writer.number(static_cast<std::uint64_t>(facts.demand));
    writer.number(facts.kinds.size());
    for (const ErrorKind kind : facts.kinds) writer.number(static_cast<std::uint64_t>(kind));
  }
  for (const sim::Deviation& deviation : options.deviations) {
    writer.number(deviation.choice);
    writer.number(deviation.candidate);
  }
}

SimOptions RunSlot::read() const {
  SimOptions options;
  Reader reader(*this);
  options.policy = static_cast<sim::Policy>(reader.number());
  options.schedule = reader.number();
  options.priority_changes = static_cast<std::uint32_t>(reader.number());
  options.priority_choices = reader.number();
  options.pipe_capacity = reader.number();
  options.latency_percent = static_cast<std::uint32_t>(reader.number());
  options.recovery = reader.text();
  options.plan.seed = reader.number();
  const std::uint64_t faults = reader.number();
  for (std::uint64_t i = 0; i < faults && reader.more(); ++i) {
    options.plan.faults.push_back(read_fault(reader));
  }
  const std::uint64_t facts = reader.number();
  for (std::uint64_t i = 0; i < facts && reader.more(); ++i) {
    FaultFacts& entry = options.facts.emplace_back();
    entry.demand = static_cast<faults::Demand>(reader.number());
    const std::uint64_t kinds = reader.number();
    for (std::uint64_t k = 0; k < kinds && reader.more(); ++k) {
      if (const auto kind = error_kind_from(reader.number())) entry.kinds.push_back(*kind);
    }
  }
  while (reader.more()) {
    const std::uint64_t choice = reader.number();
    options.deviations.push_back({choice, static_cast<std::uint32_t>(reader.number())});
  }
  return options;
}

}  // namespace tpsync::conformance
