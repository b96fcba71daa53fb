#include "tpsync/collective/rank_identity.h"

#include <algorithm>
#include <charconv>

namespace tpsync::collective {

RankIdentity own_identity(Host& host) {
  RankIdentity identity;
  identity.host_name = host.host_name();
  identity.boot_id = host.boot_id();
  identity.pid = host.pid();
  return identity;
}

// "<pid> <boot id> <host name>": neither of the first two has blanks.
ByteBuffer encode_identity(const RankIdentity& identity) {
  const std::string text =
      std::to_string(identity.pid) + ' ' + identity.boot_id + ' ' + identity.host_name;
  const ByteView bytes = as_view(text);
  return {bytes.begin(), bytes.end()};
}

RankIdentity decode_identity(ByteView bytes) {
  const std::string text(as_text(bytes));
  const std::size_t first = text.find(' ');
  if (first == std::string::npos) return {};
  const std::size_t second = text.find(' ', first + 1);
  if (second == std::string::npos) return {};
  RankIdentity identity;
  const auto [end, error] = std::from_chars(text.data(), text.data() + first, identity.pid);
  if (error != std::errc() || end != text.data() + first) return {};
  identity.boot_id = text.substr(first + 1, second - first - 1);
  identity.host_name = text.substr(second + 1);
  return identity;
}

bool on_one_host(std::span<const RankIdentity> ranks) {
  return !ranks.empty() && !ranks[0].boot_id.empty() &&
         std::all_of(ranks.begin(), ranks.end(), [&](const RankIdentity& rank) {
           return rank.host_name == ranks[0].host_name && rank.boot_id == ranks[0].boot_id;
         });
}

}  // namespace tpsync::collective
