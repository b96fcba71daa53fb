// Uses the installed library as a program of its own: channels and threads of the operating system,
// a host device, and the digest of what was copied. Exit status 0 if all of it did what it says.
#include <array>
#include <cstdio>

#include "tpsync/base/errors.h"
#include "tpsync/base/os_world.h"
#include "tpsync/base/spdlog_sink.h"
#include "tpsync/device/handles.h"
#include "tpsync/device/host_device.h"
#include "tpsync/device/host_kernels.h"

int main() {
  try {
    const auto log = tpsync::make_spdlog_log({});
    tpsync::OsWorld os(*log);
    const tpsync::World world = os.world();
    auto [near, far] = world.channels.make_pair();
    std::array<std::byte, 4> text{};
    near->write_some(tpsync::as_view("text"),
                     tpsync::Deadline::after(world.clock, std::chrono::seconds(30)));
    far->read_some(text, tpsync::Deadline::after(world.clock, std::chrono::seconds(30)));

    tpsync::device::HostMemory memory;
    memory.add_device("host-0", tpsync::kMiB);
    tpsync::device::HostDevice device(memory, {"host-0"});
    const auto region = tpsync::device::allocate(device, {4});
    const auto stream = tpsync::device::create_stream(device);
    std::array<std::byte, 4> back{};
    device.upload(stream.id(), region.id(), 0, text);
    device.download(stream.id(), region.id(), 0, back);
    device.synchronize(stream.id(), tpsync::Deadline::never());
    const auto digest = [](const std::array<std::byte, 4>& bytes) {
      return tpsync::device::digest_rect(bytes.data(), 4, 1, 0, 1, 0, 4, 7);
    };
    const bool equal = text == back && digest(text) == digest(back) && digest(text) != 0;
    std::puts(equal ? "consumer: the installed library works" : "consumer: bytes differ");
    return equal ? 0 : 1;
  } catch (const tpsync::Error& error) {
    std::fprintf(stderr, "consumer: %s\n", error.what());
    return 1;
  }
}
