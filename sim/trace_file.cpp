// Writing and reading traces as lines of JSON: see the header.
#include "sim/trace_file.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

namespace tpsync::sim {

namespace {

using nlohmann::json;

constexpr std::uint64_t kFormat = 1;

std::string json_string(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      text.push_back(c);
    } else {
      text.push_back(static_cast<char>(0xc0 | byte >> 6));
      text.push_back(static_cast<char>(0x80 | (byte & 0x3f)));
    }
  }
  return json(text).dump();
}

std::string bytes_of(std::string_view text, std::size_t line) {
  std::string bytes;
  bytes.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      bytes.push_back(text[i]);
      continue;
    }
    const bool two = (lead & 0xfe) == 0xc2 && i + 1 < text.size();
    if (!two) throw TraceFormatError(line, "a text has a code point above 255");
    bytes.push_back(static_cast<char>((lead & 3) << 6 | (text[++i] & 0x3f)));
  }
  return bytes;
}

template <typename Value>
void field(std::string& out, std::string_view name, Value value) {
  out += ",\"";
  out += name;
  out += "\":";
  out += std::to_string(value);
}

void write_event(std::string& out, const Event& event, const Trace& trace) {
  out += "{\"k\":" + std::to_string(event.kind);
  out += ",\"kind\":\"";
  out += to_string(static_cast<EventKind>(event.kind));
  out += '"';
  field(out, "t", event.time);
  if (event.end != event.time) field(out, "end", event.end);
  if (event.process != kNoProcess) field(out, "p", event.process);
  if (event.thread != 0) field(out, "thread", event.thread);
  if (event.op != 0) {
    out += ",\"op\":\"";
    out += to_string(static_cast<Op>(event.op));
    out += '"';
    field(out, "o", event.op);
    field(out, "n", event.occurrence);
  } else if (event.occurrence != 0) {
    field(out, "n", event.occurrence);
  }
  if (event.phase != 0) {
    out += ",\"phase\":" + json_string(trace.texts.at(event.phase));
    field(out, "ph", event.phase);
  }
  if (event.chunk != 0) field(out, "chunk", event.chunk);
  if (event.result != kOk) field(out, "result", event.result);
  if (event.a != 0) field(out, "a", event.a);
  if (event.b != 0) field(out, "b", event.b);
  if (event.c != 0) field(out, "c", event.c);
  if (event.text != 0) {
    out += ",\"text\":" + json_string(trace.texts.at(event.text));
    field(out, "tx", event.text);
  }
  if (event.reserved != 0) field(out, "reserved", event.reserved);
  out += "}\n";
}

// Numbers of a line, checked: a missing one has its default.
class Line {
 public:
  Line(const json& object, std::size_t number) : object_(object), number_(number) {}

  template <typename Value>
  Value get(const char* name, Value otherwise) const {
    const auto found = object_.find(name);
    if (found == object_.end()) return otherwise;
    if constexpr (std::is_signed_v<Value>) {
      if (!found->is_number_integer()) fail(name);
      if (found->is_number_unsigned() &&
          found->template get<std::uint64_t>() >
              static_cast<std::uint64_t>(std::numeric_limits<Value>::max()))
        fail(name);
      const auto value = found->template get<std::int64_t>();
      if (value < std::numeric_limits<Value>::min()) fail(name);
      return static_cast<Value>(value);
    } else {
      if (!found->is_number_unsigned()) fail(name);
      const auto value = found->template get<std::uint64_t>();
      if (value > std::numeric_limits<Value>::max()) fail(name);
      return static_cast<Value>(value);
    }
  }
  bool has(const char* name) const { return object_.contains(name); }

 private:
  [[noreturn]] void fail(const char* name) const {
    throw TraceFormatError(number_, std::string(name) + " is no number of its range");
  }
  const json& object_;
  std::size_t number_;
};

// What the first line announces.
struct Sizes {
  std::uint64_t events = 0;
  std::uint64_t choices = 0;
};

void read_head(const json& object, std::size_t number, Trace& trace, Sizes& sizes) {
  const Line line(object, number);
  if (line.get<std::uint64_t>("tpsync_trace", 0) != kFormat)
    throw TraceFormatError(number, "this is no trace of format 1");
  sizes.events = line.get<std::uint64_t>("events", 0);
  sizes.choices = line.get<std::uint64_t>("choices", 0);
  trace.seed = line.get<std::uint64_t>("seed", 0);
  const auto parameters = object.find("parameters");
  const auto texts = object.find("texts");
  if (parameters == object.end() || !parameters->is_string() || texts == object.end() ||
      !texts->is_array())
    throw TraceFormatError(number, "parameters or texts are missing");
  trace.parameters = bytes_of(parameters->get_ref<const std::string&>(), number);
  for (const json& text : *texts) {
    if (!text.is_string()) throw TraceFormatError(number, "a text is no string");
    const std::uint32_t expected = trace.texts.size();
    if (trace.texts.intern(bytes_of(text.get_ref<const std::string&>(), number)) != expected)
      throw TraceFormatError(number, "a text is there twice");
  }
}

void read_record(const json& object, std::size_t number, Trace& trace) {
  const Line line(object, number);
  if (line.has("choice")) {
    Choice& choice = trace.choices.emplace_back();
    choice.chosen = line.get<std::uint16_t>("choice", 0);
    choice.count = line.get<std::uint16_t>("of", 0);
    choice.at_event = line.get<std::uint32_t>("at", 0);
    choice.candidates = line.get<std::uint32_t>("candidates", 0);
    return;
  }
  if (!line.has("k")) throw TraceFormatError(number, "neither an event nor a choice");
  Event& event = trace.events.emplace_back();
  event.kind = line.get<std::uint16_t>("k", 0);
  event.time = line.get<std::int64_t>("t", 0);
  event.end = line.get<std::int64_t>("end", event.time);
  event.process = line.get<std::uint32_t>("p", kNoProcess);
  event.thread = line.get<std::uint16_t>("thread", 0);
  event.op = line.get<std::uint16_t>("o", 0);
  event.occurrence = line.get<std::uint32_t>("n", 0);
  event.phase = line.get<std::uint32_t>("ph", 0);
  event.chunk = line.get<std::int32_t>("chunk", 0);
  event.result = line.get<std::uint16_t>("result", kOk);
  event.a = line.get<std::uint64_t>("a", 0);
  event.b = line.get<std::uint64_t>("b", 0);
  event.c = line.get<std::uint64_t>("c", 0);
  event.text = line.get<std::uint32_t>("tx", 0);
  event.reserved = line.get<std::uint32_t>("reserved", 0);
  if (event.phase >= trace.texts.size() || event.text >= trace.texts.size())
    throw TraceFormatError(number, "a text that the first line does not have");
}

}  // namespace

std::string write_trace(const Trace& trace) {
  std::string out;
  out.reserve(trace.events.size() * 120 + trace.choices.size() * 60 + 1024);
  out += "{\"tpsync_trace\":" + std::to_string(kFormat);
  field(out, "seed", trace.seed);
  field(out, "events", trace.events.size());
  field(out, "choices", trace.choices.size());
  out += ",\"parameters\":" + json_string(trace.parameters) + ",\"texts\":[";
  for (std::uint32_t id = 1; id < trace.texts.size(); ++id)
    out += (id == 1 ? "" : ",") + json_string(trace.texts.at(id));
  out += "]}\n";
  std::size_t choice = 0;
  for (std::size_t i = 0; i <= trace.events.size(); ++i) {
    for (; choice < trace.choices.size() && trace.choices[choice].at_event <= i; ++choice) {
      const Choice& made = trace.choices[choice];
      out += "{\"choice\":" + std::to_string(made.chosen);
      field(out, "of", made.count);
      field(out, "at", made.at_event);
      field(out, "candidates", made.candidates);
      out += "}\n";
    }
    if (i < trace.events.size()) write_event(out, trace.events[i], trace);
  }
  return out;
}

void read_trace(std::string_view text, Trace& trace) {
  trace.clear();
  std::size_t number = 0;
  Sizes sizes;
  while (!text.empty()) {
    ++number;
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const json object = json::parse(line, nullptr, false);
    if (!object.is_object()) throw TraceFormatError(number, "no JSON object");
    if (number == 1)
      read_head(object, number, trace, sizes);
    else
      read_record(object, number, trace);
  }
  if (number == 0) throw TraceFormatError(1, "the file is empty");
  if (trace.events.size() != sizes.events || trace.choices.size() != sizes.choices)
    throw TraceFormatError(number, "the file is incomplete: the first line announces " +
                                       std::to_string(sizes.events) + " events and " +
                                       std::to_string(sizes.choices) + " choices");
}

}  // namespace tpsync::sim
