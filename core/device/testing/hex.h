// Bytes as text, for handles that travel between a test and the processes that it starts.
#pragma once

#include <fmt/core.h>

#include <string>

#include "tpsync/base/bytes.h"

namespace tpsync::device {

inline std::string to_hex(ByteView bytes) {
  std::string text;
  for (const std::byte value : bytes) text += fmt::format("{:02x}", std::to_integer<int>(value));
  return text;
}

inline ByteBuffer from_hex(const std::string& text) {
  ByteBuffer bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(std::byte(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

}  // namespace tpsync::device
