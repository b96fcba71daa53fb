// What host_device_process_test.cpp starts: one participant of a host memory, which does what it is
// told over its channel. A line is a command, and is answered by a line: "ok", with what it
// returns, or "error" with the kind, subject and detail.
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <sstream>
#include <string>

#include "tpsync/base/errors.h"
#include "tpsync/base/os_channel.h"
#include "tpsync/base/os_process.h"
#include "tpsync/device/handles.h"
#include "tpsync/device/host_device.h"

namespace {

using namespace tpsync;
using namespace tpsync::device;

std::string to_hex(ByteView bytes) {
  std::string text;
  for (const std::byte value : bytes) text += fmt::format("{:02x}", std::to_integer<int>(value));
  return text;
}

ByteBuffer from_hex(const std::string& text) {
  ByteBuffer bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(std::byte(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

class Participant {
 public:
  std::string obey(const std::string& line) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    if (command == "open") return open(words);
    if (command == "memory") return fmt::format("{}", device_->memory().free_bytes);
    if (command == "allocate") return allocate(words);
    if (command == "import") return import(words);
    if (command == "hammer") return hammer(words);
    if (command == "become-nobody") return setresuid(65534, 65534, 65534) == 0 ? "" : "refused";
    if (command == "replace-descriptor") return replace_descriptor();
    std::uint64_t number = 0;
    words >> number;
    const RegionId region{number};
    if (command == "export") return to_hex(device_->export_region(region));
    if (command == "revoke") return device_->revoke_export(region), "";
    if (command == "free") return device_->free(region), "";
    if (command == "close") return device_->close_import(region), "";
    if (command == "read") return read(region);
    if (command == "write") return write(region, words);
    return "no such command";
  }

 private:
  std::string open(std::istringstream& words) {
    std::string path, uuid;
    words >> path >> uuid;
    memory_ = HostMemory::open(path);
    device_ = std::make_unique<HostDevice>(*memory_, HostDeviceOptions{uuid});
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

  // Allocates and frees as fast as it can; says how often there was no memory, or that more
  // participants than `seats` had some at once. Whoever has memory takes a seat: a file that it
  // makes.
  std::string hammer(std::istringstream& words) {
    std::uint64_t rounds = 0, bytes = 0, refused = 0;
    int seats = 0;
    std::string folder;
    words >> rounds >> bytes >> seats >> folder;
    for (std::uint64_t i = 0; i < rounds; ++i) {
      AllocationRequest request;
      request.bytes = bytes;
      request.kind = i % 2 == 0 ? RegionKind::kExportable : RegionKind::kPlain;
      try {
        const device::Region region = device::allocate(*device_, request);
        if (!sit_down(seats, folder)) return "overcommitted";
      } catch (const RuntimeBroken& error) {
        if (error.kind() != ErrorKind::kOutOfMemory) throw;
        ++refused;
      }
    }
    return fmt::format("{}", refused);
  }

  static bool sit_down(int seats, const std::string& folder) {
    for (int seat = 0; seat < seats; ++seat) {
      const std::string path = fmt::format("{}/{}", folder, seat);
      const int file = ::open(path.c_str(), O_CREAT | O_EXCL | O_CLOEXEC, S_IRWXU);
      if (file < 0) continue;
      ::close(file);
      unlink(path.c_str());
      return true;
    }
    return false;
  }

  std::string read(RegionId region) {
    std::byte value{};
    const device::Stream stream = create_stream(*device_);
    device_->download(stream.id(), region, 0, {&value, 1});
    device_->synchronize(stream.id(), Deadline::never());
    return fmt::format("{}", std::to_integer<int>(value));
  }

  std::string write(RegionId region, std::istringstream& words) {
    int value = 0;
    words >> value;
    const device::Stream stream = create_stream(*device_);
    device_->fill(stream.id(), region, 0, 1, std::byte(value));
    device_->synchronize(stream.id(), Deadline::never());
    return "";
  }

  // What only a broken exporter does: behind the number of its exported file stands another one.
  static std::string replace_descriptor() {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
      if (!target.starts_with("/memfd:tpsync")) continue;
      const int number = std::stoi(entry.path().filename().string());
      const int other = memfd_create("other", MFD_CLOEXEC);
      if (ftruncate(other, 8) != 0 || dup2(other, number) != number) return "failed";
      ::close(other);
      return "";
    }
    return "found none";
  }

  std::unique_ptr<HostMemory> memory_;
  std::unique_ptr<HostDevice> device_;
};

}  // namespace

int main() {
  OsChannelFactory channels;
  const std::unique_ptr<Channel> channel = channels.adopt(kInheritedChannelDescriptor);
  Participant participant;
  std::string line;
  std::byte next{};
  while (channel->read_some({&next, 1}, Deadline::never()) == 1) {
    if (next != std::byte{'\n'}) {
      line.push_back(static_cast<char>(next));
      continue;
    }
    std::string answer;
    try {
      answer = "ok " + participant.obey(line);
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
