// The program that ci/fuzz runs: libFuzzer over one target, or its seeds written to a folder.
//
//   tpsync-fuzz --target=NAME [libFuzzer's options] [CORPUS ...]
//   tpsync-fuzz --list
//   tpsync-fuzz --target=NAME --seeds=FOLDER
//   tpsync-fuzz --target=NAME FILE       runs one input, such as a finding
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "conformance/fuzz/target.h"

namespace {

const tpsync::fuzz::Target* target = nullptr;

std::string value_of(const std::string& argument, const std::string& option) {
  return argument.starts_with(option) ? argument.substr(option.size()) : std::string();
}

void write_seeds(const std::string& folder) {
  std::size_t number = 0;
  for (const tpsync::ByteBuffer& seed : target->seeds()) {
    std::ofstream file(folder + "/seed-" + std::to_string(number++), std::ios::binary);
    const std::string_view text = tpsync::as_text(seed);
    file.write(text.data(), static_cast<std::streamsize>(text.size()));
    if (!file) {
      std::fprintf(stderr, "%s: cannot be written\n", folder.c_str());
      std::exit(1);
    }
  }
}

}  // namespace

// libFuzzer takes options with two dashes for ours.
extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  std::string seeds;
  for (int i = 1; i < *count; ++i) {
    const std::string argument = (*arguments)[i];
    if (argument == "--list") {
      for (const tpsync::fuzz::Target& each : tpsync::fuzz::all_targets()) {
        std::printf("%s\t%s\n", std::string(each.name).c_str(), std::string(each.what).c_str());
      }
      std::exit(0);
    }
    const std::string name = value_of(argument, "--target=");
    if (!name.empty()) target = tpsync::fuzz::target_named(name);
    const std::string folder = value_of(argument, "--seeds=");
    if (!folder.empty()) seeds = folder;
  }
  if (target == nullptr) {
    std::fprintf(stderr, "tpsync-fuzz: --target=NAME names one of those that --list lists\n");
    std::exit(64);
  }
  if (!seeds.empty()) {
    write_seeds(seeds);
    std::exit(0);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    target->run(std::as_bytes(std::span(data, size)));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "FINDING: %s: %s\n", std::string(target->name).c_str(), error.what());
    std::abort();
  }
  return 0;
}
