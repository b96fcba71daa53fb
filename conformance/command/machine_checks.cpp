#include "conformance/command/machine_checks.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

namespace tpsync::conformance {

namespace {

namespace fs = std::filesystem;
using State = MachineState;

constexpr std::uint64_t kMiBytes = 1024 * 1024;
constexpr std::uint64_t kDiskMiB = 256;
constexpr std::uint64_t kMemoryMiB = 512;
constexpr std::uint64_t kOpenFiles = 1024;
constexpr std::uint64_t kOpenFilesMin = 64;
// Above it, the sanitizers of GCC 12 and clang 14 meet mappings where they keep their own.
constexpr std::uint64_t kRandomBitsMax = 28;
constexpr const char* kNewKernel = "sudo apt-get install linux-image-amd64 && sudo reboot";
constexpr const char* kSeccomp =
    "docker run --security-opt seccomp=unconfined ... (or run outside of the container)";

class File {
 public:
  explicit File(int number) : number_(number) {}
  ~File() {
    if (number_ >= 0) close(number_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int number() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }

 private:
  int number_;
};

std::string reason(int error) { return std::strerror(error); }

// The first line of a file of the system; nullopt if it cannot be read.
std::optional<std::string> first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

std::optional<std::uint64_t> number_in(const std::string& path) {
  const auto line = first_line(path);
  std::uint64_t number = 0;
  if (!line) return std::nullopt;
  const auto [stop, error] = std::from_chars(line->data(), line->data() + line->size(), number);
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

MachineCheck of_processes(std::string what, std::string why) {
  MachineCheck check;
  check.what = std::move(what);
  check.why = std::move(why);
  check.needed_by = {"process"};
  return check;
}

MachineCheck missing(MachineCheck check, std::string found, std::string mend) {
  check.state = State::kMissing;
  check.found = std::move(found);
  check.mend = std::move(mend);
  return check;
}

MachineCheck limited(MachineCheck check, std::string found, std::string mend) {
  check.state = State::kLimited;
  check.found = std::move(found);
  check.mend = std::move(mend);
  return check;
}

MachineCheck ok(MachineCheck check, std::string found) {
  check.found = std::move(found);
  return check;
}

MachineCheck process_file_system() {
  MachineCheck check = of_processes("/proc", "names processes, and opens what they share");
  if (first_line("/proc/self/stat")) return ok(std::move(check), "mounted");
  return missing(std::move(check), "not mounted", "sudo mount -t proc proc /proc");
}

MachineCheck process_handles() {
  MachineCheck check = of_processes("pidfd_open", "a process's end is noticed at once");
  const File handle(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (handle) return ok(std::move(check), "works");
  const int error = errno;
  return missing(std::move(check), reason(error), error == ENOSYS ? kNewKernel : kSeccomp);
}

MachineCheck memory_files() {
  MachineCheck check = of_processes("memfd_create", "host shared memory stands for device memory");
  const File file(memfd_create("tpsync-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const bool works = file && fallocate(file.number(), 0, 0, 4096) == 0 &&
                     fcntl(file.number(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0;
  if (works) return ok(std::move(check), "works, with sealing");
  const int error = errno;
  return missing(std::move(check), reason(error), error == ENOSYS ? kNewKernel : kSeccomp);
}

// A child that shows what processes of a world see of each other, as long as this object lives.
class Child {
 public:
  Child() : file_(memfd_create("tpsync-doctor", MFD_CLOEXEC)) {
    int ready[2] = {-1, -1};
    if (pipe2(ready, O_CLOEXEC) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
      static_cast<void>(!write(ready[1], "r", 1));
      for (;;) pause();
    }
    const File read_end(ready[0]);
    close(ready[1]);
    char byte = 0;
    if (pid_ > 0) static_cast<void>(!read(read_end.number(), &byte, 1));
  }
  ~Child() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // 0, or the error's number.
  int open_its_file() const {
    const File opened(
        open(fmt::format("/proc/{}/fd/{}", pid_, file_.number()).c_str(), O_RDWR | O_CLOEXEC));
    return opened ? 0 : errno;
  }
  int read_its_memory() const {
    std::uint64_t word = kWord;  // the child has it at the same address
    std::uint64_t copy = 0;
    const iovec local{&copy, sizeof(copy)};
    const iovec remote{const_cast<std::uint64_t*>(&kShown), sizeof(word)};
    errno = EIO;
    const ssize_t got = process_vm_readv(pid_, &local, 1, &remote, 1, 0);
    return got == static_cast<ssize_t>(sizeof(copy)) && copy == word ? 0 : errno;
  }

 private:
  static constexpr std::uint64_t kWord = 0x7470'7379'6e63'0001ULL;
  static const std::uint64_t kShown;
  File file_;
  pid_t pid_ = -1;
};
const std::uint64_t Child::kShown = Child::kWord;

std::vector<MachineCheck> other_processes() {
  const Child child;
  MachineCheck open =
      of_processes("/proc/PID/fd", "workers open the actors' memory by process and number");
  if (const int error = child.open_its_file(); error != 0) {
    open = missing(std::move(open), reason(error), kSeccomp);
  } else {
    open = ok(std::move(open), "opens");
  }
  const auto scope = number_in("/proc/sys/kernel/yama/ptrace_scope");
  const std::string level = scope ? fmt::format("ptrace_scope {}", *scope) : "no ptrace_scope";
  MachineCheck read = of_processes("process_vm_readv", "weights are looked at from outside");
  if (const int error = child.read_its_memory(); error != 0) {
    const bool scoped = scope && *scope > 1;
    read = missing(std::move(read), fmt::format("{}, {}", reason(error), level),
                   scoped ? "sudo sysctl kernel.yama.ptrace_scope=1" : kSeccomp);
  } else {
    read = ok(std::move(read), "works, " + level);
  }
  return {std::move(open), std::move(read)};
}

// A folder of its own in `parent`, removed in the end.
class ProbeFolder {
 public:
  explicit ProbeFolder(const std::string& parent)
      : path_(fs::path(parent) / "tpsync-world-XXXXXX") {
    if (!parent.empty() && mkdtemp(path_.data()) != nullptr) return;
    error_ = parent.empty() ? ENOENT : errno;
    path_.clear();
  }
  ~ProbeFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  ProbeFolder(const ProbeFolder&) = delete;
  ProbeFolder& operator=(const ProbeFolder&) = delete;
  const std::string& path() const { return path_; }
  int error() const { return error_; }

 private:
  std::string path_;
  int error_ = 0;
};

std::vector<MachineCheck> temporary_folder(const std::string& parent) {
  MachineCheck folder = of_processes("temporary folder", "a world's files lie there");
  MachineCheck socket_check = of_processes("local sockets", "processes tell what they do there");
  const ProbeFolder probe(parent);
  if (probe.path().empty()) {
    const std::string name = parent.empty() ? "the one of TMPDIR" : parent;
    folder =
        missing(std::move(folder), name + ": " + reason(probe.error()), "export TMPDIR=/var/tmp");
    socket_check =
        missing(std::move(socket_check), "no folder to try in", "export TMPDIR=/var/tmp");
    return {std::move(folder), std::move(socket_check)};
  }
  std::error_code error;
  const std::uint64_t free = fs::space(parent, error).available / kMiBytes;
  const std::string found = fmt::format("{}, {} MiB free", parent, free);
  if (!error && free >= kDiskMiB) {
    folder = ok(std::move(folder), found);
  } else {
    folder = limited(std::move(folder), found, "export TMPDIR=/var/tmp");
  }
  const std::string path = probe.path() + "/events";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const File listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (path.size() >= sizeof(address.sun_path)) {
    socket_check = missing(
        std::move(socket_check),
        fmt::format("{} bytes of path, {} are possible", path.size(), sizeof(address.sun_path) - 1),
        "export TMPDIR=/tmp");
  } else {
    std::copy(path.begin(), path.end(), address.sun_path);
    if (listener && bind(listener.number(), reinterpret_cast<const sockaddr*>(&address),
                         sizeof(address)) == 0) {
      socket_check = ok(std::move(socket_check), "work");
    } else {
      const int failed = errno;
      socket_check = missing(std::move(socket_check), reason(failed), "export TMPDIR=/tmp");
    }
  }
  return {std::move(folder), std::move(socket_check)};
}

MachineCheck memory() {
  MachineCheck check{.what = "memory", .why = "every rank holds the model, and its devices"};
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::uint64_t kib = 0;
  std::string rest;
  while (file >> name >> kib && std::getline(file, rest)) {
    if (name != "MemAvailable:") continue;
    const std::string found = fmt::format("{} MiB available", kib / 1024);
    if (kib / 1024 >= kMemoryMiB) return ok(std::move(check), found);
    return limited(std::move(check), found, "ps -eo pid,rss,comm --sort=-rss | head");
  }
  return limited(std::move(check), "unknown", "sudo mount -t proc proc /proc");
}

MachineCheck processors() {
  MachineCheck check{.what = "processors", .why = "ranks and workers run at once"};
  cpu_set_t set;
  CPU_ZERO(&set);
  const int count = sched_getaffinity(0, sizeof(set), &set) == 0
                        ? CPU_COUNT(&set)
                        : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  const std::string found = fmt::format("{} usable", count);
  if (count >= 2) return ok(std::move(check), found);
  return limited(std::move(check), found,
                 fmt::format("taskset -pc 0-{} $$", sysconf(_SC_NPROCESSORS_CONF) - 1));
}

MachineCheck open_files() {
  MachineCheck check = of_processes("open files", "channels, sockets and memory of each process");
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const std::string found = fmt::format("at most {}", limit.rlim_cur);
  const std::string mend = fmt::format("ulimit -n {}", kOpenFiles);
  if (limit.rlim_cur < kOpenFilesMin) return missing(std::move(check), found, mend);
  if (limit.rlim_cur < kOpenFiles) return limited(std::move(check), found, mend);
  return ok(std::move(check), found);
}

// Of 127.0.0.1, where the groups of a world meet.
MachineCheck loopback() {
  MachineCheck check = of_processes("loopback network", "ranks agree over it, by Gloo");
  const char* const mend = "sudo ip link set lo up";
  std::string name;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) == 0) {
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
      const bool usable = entry->ifa_addr != nullptr && entry->ifa_addr->sa_family == AF_INET &&
                          (entry->ifa_flags & IFF_LOOPBACK) != 0 &&
                          (entry->ifa_flags & IFF_UP) != 0;
      if (usable) name = entry->ifa_name;
    }
    freeifaddrs(list);
  }
  if (name.empty()) return missing(std::move(check), "no interface is up", mend);
  const File listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool works =
      listener &&
      bind(listener.number(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
      listen(listener.number(), 1) == 0;
  if (works) return ok(std::move(check), name + " listens at 127.0.0.1");
  return missing(std::move(check), name + ": " + reason(errno), mend);
}

MachineCheck gloo(bool built) {
  MachineCheck check = of_processes("Gloo part", "the groups of real processes");
  if (built) return ok(std::move(check), "built in");
  return missing(std::move(check), "left out of this build",
                 "ci/setup && cmake -S . -B build -DTPSYNC_GLOO=ON && cmake --build build");
}

MachineCheck test_runtime(const BuildParts& parts) {
  MachineCheck check = of_processes("tpsync-test-runtime", "the runtime that actors start");
  if (access(parts.test_runtime.c_str(), X_OK) == 0) {
    return ok(std::move(check), parts.test_runtime);
  }
  return missing(std::move(check), parts.test_runtime + ": " + reason(errno),
                 "cmake --build build --target tpsync-test-runtime");
}

MachineCheck of_gpus(std::string what, std::string why) {
  MachineCheck check;
  check.what = std::move(what);
  check.why = std::move(why);
  check.needed_by = {"gpu"};
  return check;
}

// Nobody is sent to install what this build makes no use of.
MachineCheck missing_for_gpus(MachineCheck check, const std::string& found, const char* mend,
                              bool gpu_world) {
  if (gpu_world) return missing(std::move(check), found, mend);
  return missing(std::move(check), found + "; needed only for --world gpu", "");
}

MachineCheck driver(bool gpu_world) {
  MachineCheck check = of_gpus(std::string(kGpuDriver), "device memory that processes share");
  const auto version = first_line("/proc/driver/nvidia/version");
  std::size_t devices = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename();
    devices += name.size() > 6 && name.starts_with("nvidia") &&
                       name.find_first_not_of("0123456789", 6) == std::string::npos
                   ? 1
                   : 0;
  }
  if (version && devices > 0)
    return ok(std::move(check), fmt::format("{} devices, {}", devices, *version));
  if (version) {
    return missing_for_gpus(std::move(check), "a driver without devices (/dev/nvidia0)",
                            "docker run --gpus all ... (or: sudo nvidia-modprobe -c 0)", gpu_world);
  }
  return missing_for_gpus(std::move(check), "none",
                          "sudo apt-get install nvidia-driver && sudo reboot", gpu_world);
}

// The file itself where a folder of the search path has it.
std::string find_program(const std::string& name) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(std::string(path != nullptr ? path : "") + ":/usr/local/cuda/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string program = fs::path(folder) / name;
    if (!folder.empty() && access(program.c_str(), X_OK) == 0) return program;
  }
  return "";
}

MachineCheck toolkit(bool gpu_world) {
  MachineCheck check = of_gpus("CUDA toolkit", "compiles the device part");
  if (const std::string nvcc = find_program("nvcc"); !nvcc.empty()) {
    return ok(std::move(check), nvcc);
  }
  return missing_for_gpus(std::move(check), "no nvcc in PATH",
                          "sudo apt-get install nvidia-cuda-toolkit", gpu_world);
}

// Two of them in one program would not know each other's communicators.
MachineCheck nccl_libraries() {
  MachineCheck check = of_gpus("NCCL libraries loaded", "at most one may be in a program");
  std::set<std::string> paths;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::size_t at = line.find('/');
    if (at != std::string::npos && line.find("libnccl", at) != std::string::npos) {
      paths.insert(line.substr(at));
    }
  }
  std::string found;
  for (const std::string& path : paths) found += (found.empty() ? "" : ", ") + path;
  if (paths.size() > 1) return missing(std::move(check), found, "unset LD_PRELOAD LD_LIBRARY_PATH");
  return ok(std::move(check), found.empty() ? "none" : found);
}

MachineCheck gpu_part(const char* name, const char* why, bool built) {
  MachineCheck check = of_gpus(std::string(name) + " part", why);
  if (built) return ok(std::move(check), "built in");
  return missing(std::move(check),
                 fmt::format("not in this build (TPSYNC_{}); needed only for --world gpu", name),
                 "");
}

// No command adds to a build what its version has no code for.
MachineCheck absent_part(const char* name, const char* why) {
  MachineCheck check{.what = std::string(name) + " part", .why = why};
  return missing(std::move(check), "this version has none", "");
}

std::vector<MachineCheck> address_space(const std::string& sanitizer) {
  const std::string why = sanitizer.empty() ? "sanitized builds need room at known addresses"
                                            : "this build's sanitizer needs room";
  MachineCheck on{.what = "address randomization", .why = why};
  MachineCheck bits{.what = "vm.mmap_rnd_bits", .why = why};
  const auto level = number_in("/proc/sys/kernel/randomize_va_space");
  on = ok(std::move(on), !level ? "unknown" : *level == 0 ? "off" : "on");
  const auto count = number_in("/proc/sys/vm/mmap_rnd_bits");
  const std::string mend = fmt::format("sudo sysctl vm.mmap_rnd_bits={}", kRandomBitsMax);
  if (level && *level == 0) {
    bits = ok(std::move(bits), "not used");
  } else if (!count) {
    bits = limited(std::move(bits), "root alone may know", mend);
  } else if (*count > kRandomBitsMax) {
    bits = limited(std::move(bits), std::to_string(*count), mend);
  } else {
    bits = ok(std::move(bits), std::to_string(*count));
  }
  return {std::move(on), std::move(bits)};
}

void append(std::vector<MachineCheck>& checks, std::vector<MachineCheck> more) {
  std::move(more.begin(), more.end(), std::back_inserter(checks));
}

}  // namespace

std::string_view to_string(MachineState state) {
  switch (state) {
    case State::kOk:
      return "ok";
    case State::kMissing:
      return "missing";
    case State::kLimited:
      return "limited";
  }
  return "unknown";
}

std::vector<MachineCheck> check_machine(const BuildParts& parts) {
  std::vector<MachineCheck> checks;
  checks.push_back(processors());
  checks.push_back(memory());
  checks.push_back(process_file_system());
  checks.push_back(process_handles());
  checks.push_back(memory_files());
  append(checks, other_processes());
  append(checks, temporary_folder(parts.temporary));
  checks.push_back(open_files());
  checks.push_back(loopback());
  checks.push_back(gloo(parts.gloo));
  checks.push_back(test_runtime(parts));
  append(checks, address_space(parts.sanitizer));
  checks.push_back(driver(parts.gpu_world));
  checks.push_back(toolkit(parts.gpu_world));
  checks.push_back(nccl_libraries());
  checks.push_back(gpu_part("CUDA", "weights in device memory", parts.cuda));
  checks.push_back(gpu_part("NCCL", "weights between GPUs", parts.gpu_world));
  checks.push_back(absent_part("LibTorch", "executes the model"));
  return checks;
}

std::string what_stops(const std::vector<MachineCheck>& checks, std::string_view world) {
  for (const MachineCheck& check : checks) {
    const bool needed =
        std::find(check.needed_by.begin(), check.needed_by.end(), world) != check.needed_by.end();
    if (needed && check.state == State::kMissing) return check.what + ": " + check.found;
  }
  return "";
}

}  // namespace tpsync::conformance
