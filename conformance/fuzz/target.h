// What is fuzzed: one entry function per decoder, per peer that takes foreign frames, and one whose
// bytes are a fault plan and a schedule. libFuzzer drives them in ci/fuzz, a test drives them over
// their seeds and some mutations of these.
//
// An entry takes any bytes. What it may meet is refused by the code under test in the way that its
// contract names; anything else is thrown as a Finding, and a crash or a sanitizer's report is one
// without being thrown. Equal bytes do equal things.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tpsync/base/bytes.h"

namespace tpsync::fuzz {

class Finding final : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

struct Target {
  std::string_view name;
  std::string_view what;  // one sentence: which code, and what counts as a finding
  void (*run)(ByteView bytes);
  std::vector<ByteBuffer> (*seeds)();  // inputs that reach far into the code
};

// All of them, in the order in which they are listed and run.
std::span<const Target> all_targets();
const Target* target_named(std::string_view name);  // nullptr if there is none

// Reads an input piece by piece; past its end everything is zero or empty.
class Input {
 public:
  explicit Input(ByteView bytes) : bytes_(bytes) {}
  bool done() const { return bytes_.empty(); }
  std::uint8_t byte();
  std::uint16_t word();                      // low byte first
  ByteView take(std::size_t size);           // fewer where fewer are left
  ByteView piece() { return take(word()); }  // behind its length
  ByteView rest() { return take(bytes_.size()); }

 private:
  ByteView bytes_;
};

// The counterpart, for seeds.
class Output {
 public:
  Output& byte(std::uint64_t value);
  Output& word(std::uint64_t value);
  Output& bytes(ByteView value);
  Output& piece(ByteView value);  // cut to 65535 bytes
  ByteBuffer buffer;
};

ByteBuffer buffer_of(std::string_view text);

}  // namespace tpsync::fuzz
