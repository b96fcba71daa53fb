// RAII owners for what a Device hands out. Move-only; destructors never throw and never wait.
#pragma once

#include <utility>

#include "tpsync/device/device.h"

namespace tpsync::device {

namespace detail {

template <typename Id, void (Device::*kRelease)(Id) noexcept>
class Owned {
 public:
  Owned() = default;
  Owned(Device& device, Id id) : device_(&device), id_(id) {}
  Owned(Owned&& other) noexcept
      : device_(std::exchange(other.device_, nullptr)), id_(std::exchange(other.id_, Id::kNone)) {}
  Owned& operator=(Owned&& other) noexcept {
    if (this != &other) {
      reset();
      device_ = std::exchange(other.device_, nullptr);
      id_ = std::exchange(other.id_, Id::kNone);
    }
    return *this;
  }
  ~Owned() { reset(); }

  Id id() const { return id_; }
  explicit operator bool() const { return id_ != Id::kNone; }
  void reset() noexcept {
    if (device_ != nullptr && id_ != Id::kNone) (device_->*kRelease)(id_);
    device_ = nullptr;
    id_ = Id::kNone;
  }
  // Gives the resource up without releasing it: the process keeps it until it ends.
  Id leak() noexcept {
    device_ = nullptr;
    return std::exchange(id_, Id::kNone);
  }

 private:
  Device* device_ = nullptr;
  Id id_ = Id::kNone;
};

}  // namespace detail

using Region = detail::Owned<RegionId, &Device::free>;
using Export = detail::Owned<RegionId, &Device::revoke_export>;
using Import = detail::Owned<RegionId, &Device::close_import>;
using Stream = detail::Owned<StreamId, &Device::destroy_stream>;

inline Region allocate(Device& device, const AllocationRequest& request) {
  return Region(device, device.allocate(request));
}
inline Stream create_stream(Device& device) { return Stream(device, device.create_stream()); }

}  // namespace tpsync::device
