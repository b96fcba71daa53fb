// Processes that each own a device, for tests: started, told what to do, and killed. The other end
// is device_participant.h.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "tpsync/base/os_channel.h"
#include "tpsync/base/os_clock.h"
#include "tpsync/base/os_host.h"
#include "tpsync/base/os_process.h"

namespace tpsync::device {

struct DevicePeer {
  std::unique_ptr<Channel> channel;
  std::unique_ptr<Process> process;
};

class DevicePeers {
 public:
  DevicePeer start(const std::string& program) {
    auto [mine, its] = channels_.make_pair();
    SpawnRequest spawn;
    spawn.program = program;
    spawn.channel = std::move(its);
    spawn.environment = host_.environment();  // where libraries and devices are found
    return {std::move(mine), launcher_.spawn(std::move(spawn))};
  }
  void tell(DevicePeer& peer, const std::string& command) {
    const std::string line = command + "\n";
    for (ByteView left = as_view(line); !left.empty();) {
      left = left.subspan(peer.channel->write_some(left, soon()));
    }
  }
  std::string answer_of(DevicePeer& peer) {
    std::string text;
    std::byte next{};
    while (peer.channel->read_some({&next, 1}, soon()) == 1 && next != std::byte{'\n'}) {
      text.push_back(static_cast<char>(next));
    }
    return text;
  }
  std::string ask(DevicePeer& peer, const std::string& command) {
    tell(peer, command);
    return answer_of(peer);
  }
  // The first word of what a command returned.
  std::string get(DevicePeer& peer, const std::string& command) {
    const std::string answer = ask(peer, command);
    std::istringstream words(answer);
    std::string status, value;
    words >> status >> value;
    EXPECT_EQ(status, "ok") << command << ": " << answer;
    return value;
  }
  void kill(DevicePeer& peer) {
    peer.process->signal(Signal::kKill);
    EXPECT_TRUE(peer.process->wait(soon()).has_value());
  }

 private:
  // A bound on hanging, not an expectation.
  Deadline soon() { return Deadline::after(clock_, std::chrono::seconds(60)); }

  OsClock clock_;
  OsHost host_;
  OsChannelFactory channels_;
  OsProcessLauncher launcher_;
};

}  // namespace tpsync::device
