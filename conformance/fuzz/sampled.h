// Seeds out of RapidCheck's generators, by fixed numbers: the same on every machine.
#pragma once

#include <rapidcheck.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "tpsync/base/bytes.h"
#include "tpsync/wire/messages.h"

namespace tpsync::fuzz {

inline std::vector<wire::Command> all_commands() {
  std::vector<wire::Command> commands;
  for (int i = static_cast<int>(wire::Command::kStartup);
       i <= static_cast<int>(wire::Command::kShutdown); ++i) {
    commands.push_back(static_cast<wire::Command>(i));
  }
  return commands;
}

// What `add` adds in `rounds` rounds; it draws from the generators of RapidCheck.
inline std::vector<ByteBuffer> sampled(std::uint64_t rounds,
                                       const std::function<void(std::vector<ByteBuffer>&)>& add) {
  constexpr int kSize = 40;
  const auto generator = rc::gen::exec([&add] {
    std::vector<ByteBuffer> seeds;
    add(seeds);
    return seeds;
  });
  std::vector<ByteBuffer> all;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    for (ByteBuffer& seed : generator(rc::Random(round + 1), kSize).value()) {
      all.push_back(std::move(seed));
    }
  }
  return all;
}

}  // namespace tpsync::fuzz
