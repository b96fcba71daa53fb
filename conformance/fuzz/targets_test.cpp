// Every fuzz target over its seeds, and those that no other test mutates over mutations of them.
// ci/fuzz searches on; TPSYNC_MUTATIONS sets how far this test goes.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <set>
#include <string>

#include "conformance/fuzz/target.h"

namespace tpsync::fuzz {
namespace {

constexpr std::uint64_t kMutationsByDefault = 2000;

class FuzzTargets : public testing::TestWithParam<std::string_view> {};

std::string hex(ByteView bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<std::size_t>(byte >> 4)];
    text += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

testing::AssertionResult finds_nothing(const Target& target, ByteView bytes) {
  try {
    target.run(bytes);
  } catch (const std::exception& error) {
    return testing::AssertionFailure() << error.what() << "\ninput, in hex: " << hex(bytes);
  }
  return testing::AssertionSuccess();
}

// Messages are mutated by core/wire's own tests; a publication is 100 times as long as anything
// else, and its plans are drawn by the explorer.
std::uint64_t mutations_of(const Target& target) {
  static const std::set<std::string_view> kElsewhere = {"request", "response", "report"};
  if (kElsewhere.contains(target.name)) return 0;
  const char* const text = std::getenv("TPSYNC_MUTATIONS");
  const std::uint64_t count =
      text == nullptr ? kMutationsByDefault : std::strtoull(text, nullptr, 10);
  return target.name == "plan" || target.name == "trace" || target.name == "result" ? count / 10
                                                                                    : count;
}

TEST_P(FuzzTargets, FindNothingInTheirSeeds) {
  const Target& target = *target_named(GetParam());
  const std::vector<ByteBuffer> seeds = target.seeds();
  ASSERT_GE(seeds.size(), 2u);
  for (const ByteBuffer& seed : seeds) ASSERT_TRUE(finds_nothing(target, seed));
}

TEST_P(FuzzTargets, FindNothingInMutationsOfTheirSeeds) {
  const Target& target = *target_named(GetParam());
  const std::vector<ByteBuffer> seeds = target.seeds();
  std::mt19937_64 random(1);  // its sequence is fixed by the standard
  const auto below = [&](std::uint64_t limit) { return limit == 0 ? 0 : random() % limit; };
  for (std::uint64_t i = 0; i < mutations_of(target); ++i) {
    ByteBuffer bytes = seeds[i % seeds.size()];
    const std::uint64_t rounds = 1 + below(4);
    for (std::uint64_t round = 0; round < rounds && !bytes.empty(); ++round) {
      const std::uint64_t choice = below(5);
      const std::size_t index = below(bytes.size());
      const auto at = bytes.begin() + static_cast<std::ptrdiff_t>(index);
      if (choice == 0) *at ^= static_cast<std::byte>(1U << below(8));
      if (choice == 1) *at = static_cast<std::byte>(below(256));
      if (choice == 2) bytes.erase(at);
      if (choice == 3) bytes.insert(at, static_cast<std::byte>(below(256)));
      if (choice == 4) {  // a piece of another seed
        const ByteBuffer& other = seeds[below(seeds.size())];
        const std::size_t from = below(other.size());
        const ByteView piece = ByteView(other).subspan(from, below(other.size() - from + 1));
        bytes.insert(at, piece.begin(), piece.end());
      }
    }
    ASSERT_TRUE(finds_nothing(target, bytes)) << "mutation " << i;
  }
}

std::vector<std::string_view> names() {
  std::vector<std::string_view> names;
  for (const Target& target : all_targets()) names.push_back(target.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, FuzzTargets, testing::ValuesIn(names()), [](const auto& tested) {
  std::string name;
  for (const char c : tested.param) {
    if (c != '-') name += c;
  }
  return name;
});

}  // namespace
}  // namespace tpsync::fuzz
