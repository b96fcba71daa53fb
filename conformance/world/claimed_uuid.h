// A device that claims to be another one: WorldSpec::actor_uuids.
#pragma once

#include <string>
#include <utility>

#include "tpsync/device/forwarding_device.h"

namespace tpsync::conformance {

class ClaimedUuid final : public device::ForwardingDevice {
 public:
  ClaimedUuid(device::Device& inner, std::string uuid)
      : ForwardingDevice(inner), uuid_(std::move(uuid)) {}
  std::string uuid() override { return uuid_; }

 private:
  std::string uuid_;
};

}  // namespace tpsync::conformance
