// A worker over a host device: what it attests, what it refuses on its own, and that a failed
// native command leaves it unusable.
#include "tpsync/runtime/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "core/model/testing/models.h"
#include "core/wire/testing/scripted_peer.h"
#include "tpsync/device/host_device.h"

namespace tpsync::runtime {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Engine final : public InferenceEngine {
 public:
  struct Script {
    bool resets = true;
    std::vector<std::int64_t> layers;
  };
  explicit Engine(Script& script) : script_(script) {}
  void load_checkpoint() override {}
  wire::GenerateResult generate(const wire::GenerateRequest&) override { return {}; }
  bool reset_prefix_cache() override { return script_.resets; }
  void layer_loaded(std::int64_t layer) override { script_.layers.push_back(layer); }

 private:
  Script& script_;
};

class WorkerTest : public testing::Test {
 protected:
  WorkerTest() {
    memory_.add_device("gpu-1", 1 << 20);
    actor_.emplace(memory_, device::HostDeviceOptions{"gpu-1", device::Landing::kAtLaunch});
    worker_.emplace(memory_, device::HostDeviceOptions{"gpu-1", device::Landing::kAtSynchronize});
    options_.tp_rank = 1;
    options_.tp_size = 2;
    options_.config = config_;
    options_.version = "1.0";
    options_.kv_cache_bytes = 64;
    options_.committed_version = 4;
    chunks_ = transfer::plan_chunks(plan_.tensors, 1024);
    handles_.entries.emplace_back("gpu-1", exported(1024));
    ask(wire::StartupRequest{});
  }
  ByteBuffer exported(std::uint64_t bytes) {
    return actor_->export_region(
        actor_->allocate({.bytes = bytes, .kind = device::RegionKind::kExportable, .tag = {}}));
  }
  wire::PublicationHeader header(std::int64_t version) const {
    wire::PublicationHeader header;
    header.publication_id = "00112233445566778899aabbccddeeff";
    header.model_version = version;
    header.tp_world_size = 2;
    header.expected_manifest = wire::build_manifest(plan_.tensors);
    header.device_uuids = {"gpu-0", "gpu-1"};
    return header;
  }
  wire::StartRequest start(std::int64_t version) const {
    wire::StartRequest request;
    request.header = header(version);
    for (const transfer::Chunk& chunk : chunks_) {
      request.chunk_tensor_counts.push_back(chunk.count);
    }
    request.buffer_bytes = 1024;
    return request;
  }
  wire::UpdateRequest update(std::uint64_t chunk) const {
    wire::UpdateRequest request;
    request.chunk_index = chunk;
    request.handles = handles_;
    for (std::uint64_t i = 0; i < chunks_[chunk].count; ++i) {
      const wire::TensorRecord& tensor = plan_.tensors[chunks_[chunk].first + i];
      request.names.push_back(tensor.name);
      request.dtype_names.emplace_back("bfloat16");
      request.shapes.push_back(tensor.shape);
      request.tensor_sizes.push_back(tensor.nbytes);
    }
    return request;
  }
  wire::FinishRequest finish(std::int64_t version) const {
    wire::FinishRequest request;
    request.header = header(version);
    request.weight_version = std::to_string(version);
    return request;
  }
  void ask(const wire::Payload& payload) {
    ByteBuffer body;
    wire::encode_request(++asked_, payload, body);
    peer_->send(fakes::framed(body));
    names_.emplace_back(name_of(wire::command_of(payload)));
  }
  void ask_publication(std::int64_t version) {
    ask(wire::InitRequest{});
    ask(start(version));
    for (std::uint64_t c = 0; c < chunks_.size(); ++c) ask(update(c));
    ask(finish(version));
    ask(wire::ReleaseRequest{});
  }
  // Serves all that was asked; the responses in order, decoded as the runtime decodes them.
  std::vector<wire::Response> serve_all() {
    peer_->before_read = [this] { peer_->gone = peer_->from_it.empty(); };
    run_worker(
        world_.world(), channel_, *worker_,
        [this](const ResidentModel&) { return std::make_unique<Engine>(script_); }, options_);
    std::vector<wire::Response> responses;
    for (ByteBuffer body = fakes::take_frame(peer_->to_it); !body.empty();
         body = fakes::take_frame(peer_->to_it)) {
      const auto id = static_cast<std::int64_t>(responses.size()) + 1;
      responses.push_back(
          wire::decode_response(body, id, names_[responses.size()], wire::Peer::kWorker));
    }
    return responses;
  }
  // The last response, which must be a failure that contains `text`.
  void expect_last_failed(const std::vector<wire::Response>& responses, const std::string& text) {
    ASSERT_EQ(responses.size(), names_.size());
    EXPECT_FALSE(responses.back().ok);
    EXPECT_THAT(responses.back().error, HasSubstr(text));
  }

  const model::ModelConfig config_ = model::model_named("tiny-tp4");
  const model::CanonicalPlan plan_ = model::plan_canonical(config_);
  std::vector<transfer::Chunk> chunks_;
  device::HostMemory memory_;
  std::optional<device::HostDevice> actor_, worker_;
  fakes::FakeWorld world_;
  std::shared_ptr<fakes::Peer> peer_ = std::make_shared<fakes::Peer>();
  fakes::FakeChannel channel_{peer_, world_.clock};
  WorkerOptions options_;
  Engine::Script script_;
  wire::HandleMap handles_;
  std::vector<std::string> names_;
  std::int64_t asked_ = 0;
};

TEST_F(WorkerTest, StartupAnswersWithItsCapability) {
  const auto responses = serve_all();
  ASSERT_EQ(responses.size(), 1u);
  const auto& capability = std::get<wire::WorkerCapability>(responses[0].result);
  EXPECT_EQ(capability.tp_rank, 1);
  EXPECT_EQ(capability.tp_world_size, 2);
  EXPECT_EQ(capability.cuda_device_uuid, "gpu-1");
  EXPECT_EQ(capability.vllm_version, "1.0");
  EXPECT_EQ(capability.pid, world_.host.pid());
}

TEST_F(WorkerTest, APublicationEndsInAReceiptOfWhatCameAndNothingOpen) {
  ask_publication(5);
  ask(wire::GenerateRequest{});
  const auto responses = serve_all();
  ASSERT_EQ(responses.size(), names_.size());
  for (const wire::Response& response : responses) EXPECT_TRUE(response.ok) << response.error;
  const auto& receipt = std::get<wire::WorkerReceipt>(responses[responses.size() - 3].result);
  EXPECT_EQ(receipt.tp_rank, 1);
  EXPECT_EQ(receipt.device_uuid, "gpu-1");
  EXPECT_EQ(receipt.model_version, 5);
  EXPECT_EQ(receipt.expected_manifest_fingerprint, wire::build_manifest(plan_.tensors).fingerprint);
  EXPECT_TRUE(receipt.ready);
  EXPECT_THAT(script_.layers, ElementsAre(0, -1));
  EXPECT_EQ(memory_.open_imports(), 0u);
}

TEST_F(WorkerTest, AManifestOtherThanTheHeadersIsNotAttested) {
  ask(wire::InitRequest{});
  wire::StartRequest request = start(5);
  request.header.expected_manifest.fingerprint = std::string(64, 'a');
  ask(request);
  for (std::uint64_t c = 0; c < chunks_.size(); ++c) ask(update(c));
  wire::FinishRequest last = finish(5);
  last.header = request.header;
  ask(last);
  expect_last_failed(serve_all(), "PeerViolation: manifest: what this worker received");
}

TEST_F(WorkerTest, AHeaderForAnotherDeviceOrWorldIsRefused) {
  ask(wire::InitRequest{});
  wire::StartRequest request = start(5);
  std::swap(request.header.device_uuids[0], request.header.device_uuids[1]);
  ask(request);
  expect_last_failed(serve_all(), "device_uuids[1]: is gpu-0, this worker runs on gpu-1");
}

TEST_F(WorkerTest, AVersionThatDoesNotRiseIsRefusedByTheWorkerItself) {
  ask(wire::InitRequest{});
  ask(start(4));
  expect_last_failed(serve_all(), "version 4 is not above the committed 4");
}

TEST_F(WorkerTest, AfterAFailedNativeCommandOnlyShutdownWorks) {
  ask(wire::InitRequest{});
  ask(start(5));
  ask(update(1));  // 0 is due
  ask(wire::HealthRequest{});
  ask(wire::GenerateRequest{});
  ask(wire::ShutdownRequest{});
  const auto responses = serve_all();
  ASSERT_EQ(responses.size(), 7u);
  EXPECT_THAT(responses[3].error, HasSubstr("chunk_index"));
  for (const std::size_t i : {4, 5}) {
    EXPECT_FALSE(responses[i].ok);
    EXPECT_THAT(responses[i].error, HasSubstr("an earlier weight update failed"));
  }
  EXPECT_TRUE(responses[6].ok);
}

TEST_F(WorkerTest, ACacheThatCannotBeResetFailsFinish) {
  script_.resets = false;
  ask(wire::InitRequest{});
  ask(start(5));
  for (std::uint64_t c = 0; c < chunks_.size(); ++c) ask(update(c));
  ask(finish(5));
  expect_last_failed(serve_all(), "prefix cache: could not be reset");
}

TEST_F(WorkerTest, TheProbeReadsItsOwnWordAndHasNoEffect) {
  const ByteBuffer handle = exported(8);  // its bytes were never written
  std::uint64_t undefined = 0;
  for (int i = 0; i < 8; ++i) {
    undefined = undefined << 8 | std::to_integer<std::uint64_t>(device::kUndefinedByte);
  }
  wire::ProbeIpcRequest probe;
  probe.handles.entries.emplace_back("gpu-1", handle);
  probe.words = {1, undefined};
  ask(probe);
  probe.words = {undefined, 1};
  ask(probe);
  probe.words = {undefined};
  ask(probe);
  ask(wire::GenerateRequest{});
  const auto responses = serve_all();
  ASSERT_EQ(responses.size(), 5u);
  EXPECT_TRUE(responses[1].ok) << responses[1].error;
  EXPECT_THAT(responses[2].error, HasSubstr("does not hold its actor's word"));
  EXPECT_THAT(responses[3].error, HasSubstr("must be one per TP rank"));
  EXPECT_TRUE(responses[4].ok);
  EXPECT_EQ(memory_.open_imports(), 0u);
}

class ResharderTest : public WorkerTest {
 protected:
  ResharderTest() {
    memory_.add_device("gpu-0", 1 << 20);
    peer_actor_.emplace(memory_, device::HostDeviceOptions{"gpu-0", device::Landing::kAtLaunch});
    handles_.entries.insert(handles_.entries.begin(), {"gpu-0", exported_by_peer(1024)});
  }
  ByteBuffer exported_by_peer(std::uint64_t bytes) {
    return peer_actor_->export_region(
        peer_actor_->allocate({.bytes = bytes, .kind = device::RegionKind::kExportable}));
  }
  wire::PublicationHeader reshard_header() const {
    wire::PublicationHeader result = header(5);
    result.transport = transport_of(wire::Route::kReshard);
    return result;
  }
  wire::StartRequest reshard_start() const {
    wire::StartRequest request = start(5);
    request.header = reshard_header();
    request.layout = wire::Layout::kRankMajor;
    request.source_layout.emplace();
    request.source_layout->world = 2;
    for (const wire::TensorRecord& tensor : plan_.tensors) {
      const std::uint64_t rows = model::rows_cols(tensor).rows;
      for (const std::uint64_t bound : {std::uint64_t{0}, rows / 2, rows}) {
        request.source_layout->row_bounds.push_back(bound);
      }
    }
    return request;
  }
  wire::ProbeIpcRequest probe() {
    std::uint64_t undefined = 0;  // their bytes were never written
    for (int i = 0; i < 8; ++i) {
      undefined = undefined << 8 | std::to_integer<std::uint64_t>(device::kUndefinedByte);
    }
    wire::ProbeIpcRequest request;
    request.handles.entries.emplace_back("gpu-0", exported_by_peer(8));
    request.handles.entries.emplace_back("gpu-1", exported(8));
    request.words = {undefined, undefined};
    request.sources = {"gpu-0", "gpu-1"};
    return request;
  }
  std::optional<device::HostDevice> peer_actor_;
};

TEST_F(ResharderTest, APublicationReadsBothActorsBuffersAndLeavesNothingOpen) {
  ask(wire::InitRequest{});
  ask(reshard_start());
  for (std::uint64_t c = 0; c < chunks_.size(); ++c) ask(update(c));
  wire::FinishRequest last = finish(5);
  last.header = reshard_header();
  ask(last);
  ask(wire::ReleaseRequest{});
  const auto responses = serve_all();
  ASSERT_EQ(responses.size(), names_.size());
  for (const wire::Response& response : responses) EXPECT_TRUE(response.ok) << response.error;
  EXPECT_EQ(memory_.open_imports(), 0u);
}

TEST_F(ResharderTest, AnActorWithoutAHandleIsNamed) {
  handles_.entries.erase(handles_.entries.begin());
  ask(wire::InitRequest{});
  ask(reshard_start());
  ask(update(0));
  expect_last_failed(serve_all(), "PeerViolation: gpu-0: no handle for an actor's device");
}

TEST_F(ResharderTest, AWorkerThatDoesNotTakeTheRouteRefusesItsTransport) {
  options_.routes = {wire::Route::kGather};
  ask(wire::InitRequest{});
  ask(reshard_start());
  expect_last_failed(serve_all(), "transport: is not \"vllm_native_ipc\"");
}

TEST_F(ResharderTest, TheProbeReadsEveryActorsWord) {
  wire::ProbeIpcRequest request = probe();
  ask(request);
  request.words[0] ^= 1;
  ask(request);
  request.sources.pop_back();
  ask(request);
  request = probe();
  request.handles.entries[0].second = request.handles.entries[1].second;
  ask(request);
  ask(wire::GenerateRequest{});
  const auto responses = serve_all();
  ASSERT_EQ(responses.size(), 6u);
  EXPECT_TRUE(responses[1].ok) << responses[1].error;
  EXPECT_THAT(responses[2].error, HasSubstr("gpu-0: the opened export does not hold"));
  EXPECT_THAT(responses[3].error, HasSubstr("sources: must be one per TP rank"));
  EXPECT_THAT(responses[4].error, HasSubstr("gpu-0: the handle opened memory of device gpu-1"));
  EXPECT_TRUE(responses[5].ok);
  EXPECT_EQ(memory_.open_imports(), 0u);
}

TEST_F(WorkerTest, AProbeWithTheBufferThatIsStillOpenIsRefused) {
  ask(wire::InitRequest{});
  ask(start(5));
  for (std::uint64_t c = 0; c < chunks_.size(); ++c) ask(update(c));
  ask(finish(5));
  wire::ProbeIpcRequest probe;
  probe.handles = handles_;
  probe.words = {1, 2};
  ask(probe);
  ask(wire::ReleaseRequest{});
  const auto responses = serve_all();
  ASSERT_EQ(responses.size(), names_.size());
  EXPECT_THAT(responses[responses.size() - 2].error, HasSubstr("was not released yet"));
  EXPECT_TRUE(responses.back().ok) << responses.back().error;
  EXPECT_EQ(memory_.open_imports(), 0u);
}

TEST_F(WorkerTest, LevelTwoLosesTheWeightsUntilAPublication) {
  ask(wire::SleepRequest{2});
  ask(wire::WakeUpRequest{});
  ask(wire::GenerateRequest{});
  ask_publication(5);
  ask(wire::GenerateRequest{});
  const auto responses = serve_all();
  ASSERT_EQ(responses.size(), names_.size());
  EXPECT_THAT(responses[3].error, HasSubstr("the weights are of no version"));
  EXPECT_TRUE(responses.back().ok);
}

}  // namespace
}  // namespace tpsync::runtime
