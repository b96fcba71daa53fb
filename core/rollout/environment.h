// The clean environment of a spawned runtime.
//
// A runtime inherits nothing of its trainer but what is declared here, so that neither the
// trainer's secrets nor its idea of ranks and rendezvous reach it: a runtime that believes that it
// is rank 3 of the trainer's world would join that world instead of making its own. What a runtime
// needs besides (a token, a Python path, the cache of a model hub) is given as an extra.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tpsync/base/host.h"
#include "tpsync/rollout/config.h"

namespace tpsync::rollout {

// Whether a variable of the parent is handed on:
// - everything that begins with CUDA_, NCCL_, NVSHMEM_ or TORCH_: how devices and links are used
//   must be the same on both sides (CUDA_DEVICE_ORDER decides which device an index means);
// - logging: SPDLOG_LEVEL, VLLM_CONFIGURE_LOGGING and what begins with GLOG_ or VLLM_LOGGING_
// (NCCL's
//   and Torch's begin as above);
// - PATH (programs that the runtime starts: compilers, drivers' tools), LD_LIBRARY_PATH (CUDA and
//   Torch libraries outside the system's folders), HOME (caches of compiled kernels and models),
//   TMPDIR (scratch files and sockets: the default may be small or shared), LANG and what begins
//   with LC_ (the encoding of texts and file names);
// unless contradicts_runtime() holds.
bool passes_to_runtime(std::string_view name);

// Whether a variable describes the trainer's world, or something that only one process may own, so
// that a runtime which had it would do the wrong thing. Neither handed on nor taken as an extra:
// - CUDA_VISIBLE_DEVICES: the runtime has its own;
// - ranks, sizes and rendezvous of the trainer: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
//   NODE_RANK, GROUP_RANK, GROUP_WORLD_SIZE, ROLE_RANK, ROLE_WORLD_SIZE, ROLE_NAME, MASTER_ADDR,
//   MASTER_PORT, what begins with TORCHELASTIC_, NCCL_COMM_ID, NVSHMEM_BOOTSTRAP,
//   NVSHMEM_BOOTSTRAP_PMI, NVSHMEM_BOOTSTRAP_UID_SESSION_ID;
// - files that Torch names by rank: the runtime's rank 0 would overwrite the dump, or replace the
//   pipe, of the trainer's: what begins with TORCH_NCCL_DEBUG_INFO_.
bool contradicts_runtime(std::string_view name);

struct RuntimeEnvironment {
  RuntimeKind runtime = RuntimeKind::kNative;
  std::span<const std::string> devices;  // indices or UUIDs, by the workers' ranks
  Environment extras;                    // win over what is handed on
};

// Ascending by name, each name once: the devices as CUDA_VISIBLE_DEVICES, the extras, what of
// `parent` passes, and for vLLM VLLM_ALLOW_INSECURE_SERIALIZATION=1 (the weight update's messages
// carry pickled handles) and VLLM_WORKER_MULTIPROC_METHOD as the extras or the parent have it, else
// `spawn` (a forked worker can't use CUDA). Depends on nothing but its arguments. Throws
// InvalidInput kInvalidConfig, in this order:
//   "environment.parent", "environment.extras"  an empty name, '=' or NUL in a name, NUL in a
//                                               value, a name that is there twice
//   "environment.<name>"      an extra that contradicts_runtime(), or another value than 1 for
//                             VLLM_ALLOW_INSECURE_SERIALIZATION with vLLM
//   "environment.CUDA_VISIBLE_DEVICES"          no device, one that is empty or holds a comma, a
//                                               blank or NUL, one that is there twice
// Messages name variables, never their values.
Environment runtime_environment(const Environment& parent, const RuntimeEnvironment& own);

}  // namespace tpsync::rollout
