// What host_device_process_test.cpp starts: one participant of a host memory, which does what it is
// told (testing/device_participant.h).
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "tpsync/device/host_device.h"
#include "tpsync/device/testing/device_participant.h"

namespace {

using namespace tpsync;
using namespace tpsync::device;

class HostParticipant final : public DeviceParticipant {
 private:
  std::string open(std::istringstream& words) override {
    std::string path, uuid;
    words >> path >> uuid;
    memory_ = HostMemory::open(path);
    device_ = std::make_unique<HostDevice>(*memory_, HostDeviceOptions{uuid});
    return "";
  }

  std::string other(const std::string& command, std::istringstream& words) override {
    if (command == "hammer") return hammer(words);
    if (command == "become-nobody") return setresuid(65534, 65534, 65534) == 0 ? "" : "refused";
    if (command == "replace-descriptor") return replace_descriptor();
    return "no such command";
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
};

}  // namespace

int main() {
  // The device is destroyed before its memory.
  HostParticipant participant;
  participant.serve();
}
