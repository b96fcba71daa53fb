// The GPUs that processes of a world will find. Asked of a child process, because this one, which
// forks the actors, must never have opened a GPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tpsync::conformance {

struct GpuFacts {
  std::string uuid;
  std::uint64_t free_bytes = 0;  // while nobody but the asking child has it open
  std::uint64_t total_bytes = 0;
  std::vector<int> reads;  // the ordinals of other GPUs whose memory this one can read
};

// In the order of their ordinals; empty where there are none. Blocks for seconds per GPU, at most
// for a minute. Throws RuntimeBroken kDevice with the reason where a GPU is there and can't be
// used.
std::vector<GpuFacts> list_gpus(const std::string& runtime_program);

// What the child does: prints one line per GPU. Returns its exit status.
int print_gpus();

}  // namespace tpsync::conformance
