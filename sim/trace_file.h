// The file form of a trace: one JSON object per line, for people and for `tpsync judge`. The first
// line has the seed, the parameters and all texts; each further line is an event or a choice, in
// their order. Reading what was written gives an equal trace with an equal hash.
//
// Texts are byte strings: a byte above 127 is written as the code point of that number.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

#include "sim/trace.h"

namespace tpsync::sim {

// A text that is no trace; says the line, from 1.
class TraceFormatError final : public std::runtime_error {
 public:
  TraceFormatError(std::size_t line, const std::string& what)
      : std::runtime_error("line " + std::to_string(line) + ": " + what), line_(line) {}
  std::size_t line() const { return line_; }

 private:
  std::size_t line_;
};

std::string write_trace(const Trace& trace);
// Throws TraceFormatError; `trace` is undefined then.
void read_trace(std::string_view text, Trace& trace);

}  // namespace tpsync::sim
