// The other end of DevicePeer (device_peer.h): a process that owns one device and does what it is
// told over its channel. A line is a command, and is answered by a line: "ok", with what it
// returns, or "error" with the kind, subject and detail.
#pragma once

#include <fmt/core.h>

#include <memory>
#include <sstream>
#include <string>

#include "tpsync/base/errors.h"
#include "tpsync/base/os_channel.h"
#include "tpsync/base/os_process.h"
#include "tpsync/device/handles.h"
#include "tpsync/device/testing/hex.h"

namespace tpsync::device {

class DeviceParticipant {
 public:
  virtual ~DeviceParticipant() = default;

  // Until the channel ends.
  void serve() {
    OsChannelFactory channels;
    const std::unique_ptr<Channel> channel = channels.adopt(kInheritedChannelDescriptor);
    std::string line;
    std::byte next{};
    while (channel->read_some({&next, 1}, Deadline::never()) == 1) {
      if (next != std::byte{'\n'}) {
        line.push_back(static_cast<char>(next));
        continue;
      }
      std::string answer;
      try {
        answer = "ok " + obey(line);
      } catch (const Error& error) {
        answer = fmt::format("error {} {}: {}", to_string(error.kind()), error.record().subject,
                             error.record().detail);
      }
      answer.push_back('\n');
      line.clear();
      for (ByteView left = as_view(answer); !left.empty();) {
        left = left.subspan(channel->write_some(left, Deadline::never()));
      }
    }
  }

 protected:
  // Makes the device from the rest of the line "open ...".
  virtual std::string open(std::istringstream& words) = 0;
  // Any other command than those below.
  virtual std::string other(const std::string& command, std::istringstream& words) = 0;

  std::unique_ptr<Device> device_;

 private:
  std::string obey(const std::string& line) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    if (command == "open") return open(words);
    if (command == "memory") return fmt::format("{}", device_->memory().free_bytes);
    if (command == "allocate") return allocate(words);
    if (command == "import") return import(words);
    constexpr std::string_view kOfARegion[] = {"export", "revoke", "free",
                                               "close",  "read",   "write"};
    bool of_a_region = false;
    for (const std::string_view one : kOfARegion) of_a_region = of_a_region || command == one;
    if (!of_a_region) return other(command, words);
    std::uint64_t number = 0;
    words >> number;
    const RegionId region{number};
    if (command == "export") return to_hex(device_->export_region(region));
    if (command == "read") return read(region, words);
    if (command == "write") return write(region, words);
    if (command == "revoke") device_->revoke_export(region);
    if (command == "free") device_->free(region);
    if (command == "close") device_->close_import(region);
    return "";
  }

  std::string allocate(std::istringstream& words) {
    AllocationRequest request;
    std::string kind;
    words >> request.bytes >> kind;
    if (kind == "exportable") request.kind = RegionKind::kExportable;
    return fmt::format("{}", static_cast<std::uint64_t>(device_->allocate(request)));
  }

  std::string import(std::istringstream& words) {
    std::string handle;
    words >> handle;
    const ImportedRegion imported = device_->import_region(from_hex(handle));
    return fmt::format("{} {} {}", static_cast<std::uint64_t>(imported.region), imported.bytes,
                       imported.device_uuid);
  }

  // A byte, at an offset if one is given.
  std::string read(RegionId region, std::istringstream& words) {
    std::uint64_t offset = 0;
    words >> offset;
    std::byte value{};
    const Stream stream = create_stream(*device_);
    device_->download(stream.id(), region, offset, {&value, 1});
    device_->synchronize(stream.id(), Deadline::never());
    return fmt::format("{}", std::to_integer<int>(value));
  }

  std::string write(RegionId region, std::istringstream& words) {
    int value = 0;
    std::uint64_t offset = 0;
    words >> value >> offset;
    const Stream stream = create_stream(*device_);
    device_->fill(stream.id(), region, offset, 1, std::byte(value));
    device_->synchronize(stream.id(), Deadline::never());
    return "";
  }
};

}  // namespace tpsync::device
