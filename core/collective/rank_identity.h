// Who a rank is: what ranks tell one another to learn whether they share a host, and with it memory
// and process ids.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tpsync/base/bytes.h"
#include "tpsync/base/host.h"

namespace tpsync::collective {

struct RankIdentity {
  std::string host_name;
  std::string boot_id;
  std::int64_t pid = 0;
  friend bool operator==(const RankIdentity&, const RankIdentity&) = default;
};

// This process's. Throws RuntimeBroken kIo if the system does not tell.
RankIdentity own_identity(Host& host);

// For a message. An identity that can't be decoded is empty, and on no host.
ByteBuffer encode_identity(const RankIdentity& identity);
RankIdentity decode_identity(ByteView bytes);

// True if host name and boot id of all are equal; false for none, and where the boot id is empty.
bool on_one_host(std::span<const RankIdentity> ranks);

}  // namespace tpsync::collective
