#include "tpsync/base/os_host.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "tpsync/base/os_detail.h"

namespace tpsync {

std::string OsHost::host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) {
    os_detail::throw_io("host", "reading the host name", errno);
  }
  return name.data();
}

std::string OsHost::boot_id() {
  const os_detail::Descriptor file(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  if (!file) os_detail::throw_io("host", "opening the boot id", errno);
  std::array<char, 64> text{};
  const ssize_t count = read(file.number(), text.data(), text.size());
  if (count < 0) os_detail::throw_io("host", "reading the boot id", errno);
  std::string id(text.data(), static_cast<std::size_t>(count));
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id;
}

std::int64_t OsHost::pid() { return getpid(); }

std::optional<std::string> OsHost::environment(std::string_view name) {
  const char* value = std::getenv(std::string(name).c_str());
  if (value == nullptr) return std::nullopt;
  return value;
}

Environment OsHost::environment() {
  Environment variables;
  // Null after clearenv().
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t name_end = text.find('=');
    if (name_end == std::string_view::npos || name_end == 0) continue;
    variables.emplace_back(text.substr(0, name_end), text.substr(name_end + 1));
  }
  return by_name(std::move(variables));
}

void OsRandom::fill(MutableByteView into) {
  while (!into.empty()) {
    const ssize_t count = getrandom(into.data(), into.size(), 0);
    if (count >= 0) {
      into = into.subspan(static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      os_detail::throw_io("random", "reading entropy", errno);
    }
  }
}

}  // namespace tpsync
