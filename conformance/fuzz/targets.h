// The targets, by the files that define them.
#pragma once

#include "conformance/fuzz/target.h"

namespace tpsync::fuzz {

// wire_targets.cpp: what messages are decoded from.
void decode_request(ByteView bytes);
void decode_response(ByteView bytes);
void decode_report(ByteView bytes);
void decode_frames(ByteView bytes);
std::vector<ByteBuffer> request_seeds();
std::vector<ByteBuffer> response_seeds();
std::vector<ByteBuffer> report_seeds();
std::vector<ByteBuffer> frame_seeds();

// file_targets.cpp: what files and handles are read by.
void read_model_config(ByteView bytes);
void read_config_file(ByteView bytes);
void read_fault_plan(ByteView bytes);
void read_replay(ByteView bytes);
void read_result(ByteView bytes);
void read_and_judge_trace(ByteView bytes);
void build_manifest_of(ByteView bytes);
void open_handle(ByteView bytes);
std::vector<ByteBuffer> model_config_seeds();
std::vector<ByteBuffer> config_file_seeds();
std::vector<ByteBuffer> fault_plan_seeds();
std::vector<ByteBuffer> replay_seeds();
std::vector<ByteBuffer> result_seeds();
std::vector<ByteBuffer> trace_seeds();
std::vector<ByteBuffer> manifest_seeds();
std::vector<ByteBuffer> handle_seeds();

// peer_targets.cpp: who serves foreign frames.
void serve_as_runtime(ByteView bytes);
void serve_as_worker(ByteView bytes);
std::vector<ByteBuffer> runtime_seeds();
std::vector<ByteBuffer> worker_seeds();

// engine_target.cpp: the parent's end.
void drive_engine(ByteView bytes);
std::vector<ByteBuffer> engine_seeds();

// plan_target.cpp: bytes as plan and schedule of one simulated publication.
void run_plan(ByteView bytes);
std::vector<ByteBuffer> plan_seeds();

}  // namespace tpsync::fuzz
