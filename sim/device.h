// The simulated devices.
#pragma once

#include "sim/world.h"

namespace tpsync::sim {

class DeviceSystem {
 public:
  explicit DeviceSystem(SimWorld&) {}
  void process_ended(SimProcess&) {}
  void record_counters() {}
};

class SimDevice {
 public:
  SimDevice(SimProcess&, DeviceSystem&) {}
};

}  // namespace tpsync::sim
