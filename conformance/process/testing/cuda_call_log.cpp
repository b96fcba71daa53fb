// Loaded by the CUDA driver into every process that opens it with CUDA_INJECTION64_PATH naming this
// library: writes each call of the driver's interface, as CUPTI reports it, to a file of the
// process in the folder that CUDA_CALLS_FOLDER names. The first line is the process's command
// line; each other one is a time of CLOCK_MONOTONIC in nanoseconds and the call's name.
#include <cupti.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <string>

namespace {

// Lines are written at once, so that a process that is killed leaves what it did.
void CUPTIAPI note(void* file, CUpti_CallbackDomain, CUpti_CallbackId, const void* given) {
  const auto* call = static_cast<const CUpti_CallbackData*>(given);
  if (call->callbackSite != CUPTI_API_ENTER) return;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  dprintf(static_cast<int>(reinterpret_cast<std::intptr_t>(file)), "%lld %s\n",
          static_cast<long long>(now.tv_sec) * 1'000'000'000LL + now.tv_nsec, call->functionName);
}

void write_command_line(int file) {
  char line[4096] = {};
  const int from = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  const ssize_t length = from < 0 ? 0 : read(from, line, sizeof line - 1);
  if (from >= 0) close(from);
  for (ssize_t i = 0; i + 1 < length; ++i) {
    if (line[i] == '\0') line[i] = ' ';
  }
  dprintf(file, "%s\n", line);
}

}  // namespace

extern "C" int InitializeInjection() {
  const char* folder = getenv("CUDA_CALLS_FOLDER");
  if (folder == nullptr) return 1;
  const std::string path = std::string(folder) + "/" + std::to_string(getpid());
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) return 0;
  write_command_line(file);
  CUpti_SubscriberHandle subscriber = nullptr;
  void* const user = reinterpret_cast<void*>(static_cast<std::intptr_t>(file));
  if (cuptiSubscribe(&subscriber, note, user) != CUPTI_SUCCESS) return 0;
  return cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API) == CUPTI_SUCCESS ? 1 : 0;
}
