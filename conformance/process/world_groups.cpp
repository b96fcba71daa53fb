#include "conformance/process/world_groups.h"

#include <fmt/format.h>

#include <utility>

#include "tpsync/collective/gloo_control_group.h"
#include "tpsync/collective/lane_control_group.h"
#include "tpsync/collective/peer_copy_shard_group.h"

namespace tpsync::conformance {

std::unique_ptr<collective::ControlGroup> WorldGroups::control() {
  std::unique_ptr<collective::ControlGroup> group = meet("control", controls_++);
  if (!spec_.shared_lane) return group;
  return open_lane(std::move(group), world_, words_, deadline()).group;
}

std::unique_ptr<collective::ShardGroup> WorldGroups::shards(device::Device& device) {
  const auto meeting = meet("shards", shards_++);
  if (spec_.gather == Gather::kCopies) {
    return std::make_unique<collective::PeerCopyShardGroup>(*meeting, device, words_, world_,
                                                            deadline());
  }
  return hardware_.join_shards(*meeting, world_, deadline());
}

std::unique_ptr<collective::GlooControlGroup> WorldGroups::meet(const std::string& name,
                                                                std::uint64_t number) {
  collective::GlooControlOptions options;
  options.meeting.rank = rank_;
  options.meeting.size = spec_.actors;
  options.meeting.group = fmt::format("{}-{}", name, number);
  options.meeting.folder = folder_.path;
  options.timeout = spec_.sync.control_timeout;
  return std::make_unique<collective::GlooControlGroup>(options, world_);
}

}  // namespace tpsync::conformance
