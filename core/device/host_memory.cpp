#include "tpsync/device/host_memory.h"

#include <utility>

#include "tpsync/device/memory_account.h"

namespace tpsync::device {

HostMemory::HostMemory() : account_(std::make_unique<MemoryAccount>()) {}
HostMemory::HostMemory(std::unique_ptr<MemoryAccount> account) : account_(std::move(account)) {}
HostMemory::~HostMemory() = default;

std::unique_ptr<HostMemory> HostMemory::create(const std::string& path) {
  return std::unique_ptr<HostMemory>(new HostMemory(MemoryAccount::create(path)));
}

std::unique_ptr<HostMemory> HostMemory::open(const std::string& path) {
  return std::unique_ptr<HostMemory>(new HostMemory(MemoryAccount::open(path)));
}

const std::string& HostMemory::path() const { return account_->path(); }

void HostMemory::add_device(std::string uuid, std::uint64_t total_bytes) {
  account_->add_device(uuid, total_bytes);
}

std::uint64_t HostMemory::live_exports() { return account_->live_exports(); }
std::uint64_t HostMemory::open_imports() { return account_->open_imports(); }

}  // namespace tpsync::device
