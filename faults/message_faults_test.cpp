// Receipts, results and updates altered on their way: nothing but the named field may differ.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "faults/catalogue.h"
#include "faults/messages.h"
#include "faults/testing/fakes.h"
#include "tpsync/collective/forwarding_groups.h"
#include "tpsync/wire/frame.h"

namespace tpsync::faults {
namespace {

using ::testing::ElementsAre;
using testing::FakeChannel;
using testing::fault_at;
using testing::Victim;
using testing::Wire;

constexpr const char* kFinish = "finish_native_weight_update";
const Deadline kSoon = Deadline::at(TimePoint{1});

wire::WorkerReceipt receipt_of(int rank) {
  wire::WorkerReceipt receipt;
  receipt.tp_rank = rank;
  receipt.tp_world_size = 2;
  receipt.device_uuid = "uuid-" + std::to_string(rank);
  receipt.publication_id = std::string(32, 'a');
  receipt.model_version = 7;
  receipt.expected_manifest_fingerprint = std::string(64, '0');
  receipt.resident_parameter_count = 12;
  receipt.ready = true;
  receipt.digest = {{0, 0, 1, 0, 1, 99}};
  return receipt;
}

wire::Response reply_with(wire::Result result) {
  wire::Response response;
  response.request_id = 9;
  response.command = kFinish;
  response.ok = true;
  response.result = std::move(result);
  return response;
}

wire::CommitResult commit() { return {"committed", 7, {receipt_of(0), receipt_of(1)}, true}; }

ByteBuffer body_of(const wire::Response& response) {
  ByteBuffer body;
  wire::encode_response(response, body);
  return body;
}

// All frames that were written, as responses.
std::vector<wire::Response> replies(Victim& victim, const Wire& wire, wire::Peer peer) {
  Wire reread;
  reread.incoming = wire.written;
  FakeChannel channel(victim.process, reread);
  std::vector<wire::Response> found;
  while (!reread.incoming.empty()) {
    ByteBuffer body;
    wire::receive_frame(channel, body, kSoon);
    found.push_back(wire::decode_response(body, 9, kFinish, peer));
  }
  return found;
}

// What arrives when the process with the fault sends `response`, a few bytes at a time.
struct Sent {
  std::vector<wire::Response> replies;
  std::size_t applied = 0;
};
Sent send(const Fault& fault, const wire::Response& response, wire::Peer sender) {
  Victim victim(fault);
  Wire wire;
  wire.write_limit = 100;
  std::unique_ptr<Channel> inner = std::make_unique<FakeChannel>(victim.process, wire);
  const auto channel =
      victim.faults->channel({sender == wire::Peer::kWorker ? "runtime" : "actor", 0}, inner);
  wire::send_frame(*channel, body_of(response), kSoon);
  return {replies(victim, wire, sender), victim.injector.applied()};
}

struct Field {
  const char* name;
  void (*change)(wire::WorkerReceipt&);
};

const Field kFields[] = {
    {"receipt.tp_rank", [](wire::WorkerReceipt& r) { r.tp_rank += 1; }},
    {"receipt.tp_world_size", [](wire::WorkerReceipt& r) { r.tp_world_size = 3; }},
    {"receipt.device_uuid",
     [](wire::WorkerReceipt& r) { r.device_uuid = r.tp_rank == 0 ? "uuid-1" : "uuid-0"; }},
    {"receipt.publication_id", [](wire::WorkerReceipt& r) { r.publication_id[0] = '0'; }},
    {"receipt.model_version", [](wire::WorkerReceipt& r) { r.model_version = 8; }},
    {"receipt.expected_manifest_fingerprint",
     [](wire::WorkerReceipt& r) { r.expected_manifest_fingerprint[0] = '1'; }},
    {"receipt.resident_parameter_count",
     [](wire::WorkerReceipt& r) { r.resident_parameter_count = 0; }},
    {"receipt.ready", [](wire::WorkerReceipt& r) { r.ready = false; }},
    {"receipt.digest", [](wire::WorkerReceipt& r) { r.digest[0].sum = 100; }},
};

TEST(MessageFaults, AWorkersReceiptDiffersInTheNamedFieldAlone) {
  for (const Field& field : kFields) {
    wire::WorkerReceipt expected = receipt_of(1);
    field.change(expected);
    const Sent sent =
        send(fault_at(field.name, "worker", 1, kFinish, "channel.write", 0, {{"hop", "worker"}}),
             reply_with(receipt_of(1)), wire::Peer::kWorker);
    EXPECT_THAT(sent.replies, ElementsAre(reply_with(expected))) << field.name;
    EXPECT_EQ(sent.applied, 1u) << field.name;
  }
}

TEST(MessageFaults, TheRuntimesResultDiffersInTheNamedFieldOfOneReceiptAlone) {
  for (const Field& field : kFields) {
    wire::CommitResult expected = commit();
    field.change(expected.worker_receipts[1]);
    const Sent sent = send(fault_at(field.name, "runtime", 0, kFinish, "channel.write", 0,
                                    {{"hop", "runtime"}, {"receipt", "1"}}),
                           reply_with(commit()), wire::Peer::kRuntime);
    EXPECT_THAT(sent.replies, ElementsAre(reply_with(expected))) << field.name;
    EXPECT_EQ(sent.applied, 1u) << field.name;
  }
}

Fault at_runtime(const char* name) {
  return fault_at(name, "runtime", 0, kFinish, "channel.write", 0, {{"hop", "runtime"}});
}

TEST(MessageFaults, AReceiptIsMissingOrDuplicatedInTheRuntimesResult) {
  wire::CommitResult expected = commit();
  expected.worker_receipts.erase(expected.worker_receipts.begin());
  EXPECT_THAT(
      send(at_runtime("receipt.missing"), reply_with(commit()), wire::Peer::kRuntime).replies,
      ElementsAre(reply_with(expected)));
  expected = commit();
  expected.worker_receipts.push_back(receipt_of(0));
  EXPECT_THAT(
      send(at_runtime("receipt.duplicated"), reply_with(commit()), wire::Peer::kRuntime).replies,
      ElementsAre(reply_with(expected)));
}

TEST(MessageFaults, TheResultDiffersInTheNamedFieldAlone) {
  wire::CommitResult expected = commit();
  expected.status = "aborted";
  EXPECT_THAT(send(at_runtime("result.status"), reply_with(commit()), wire::Peer::kRuntime).replies,
              ElementsAre(reply_with(expected)));
  expected = commit();
  expected.model_version = 8;
  EXPECT_THAT(
      send(at_runtime("result.model_version"), reply_with(commit()), wire::Peer::kRuntime).replies,
      ElementsAre(reply_with(expected)));
  expected = commit();
  expected.prefix_cache_reset = false;
  EXPECT_THAT(
      send(at_runtime("result.prefix_cache_reset"), reply_with(commit()), wire::Peer::kRuntime)
          .replies,
      ElementsAre(reply_with(expected)));
}

TEST(MessageFaults, AWorkersReceiptComesTwiceOrNotAtAll) {
  const wire::Response reply = reply_with(receipt_of(1));
  const Sent twice = send(
      fault_at("receipt.duplicated", "worker", 1, kFinish, "channel.write", 0, {{"hop", "worker"}}),
      reply, wire::Peer::kWorker);
  EXPECT_THAT(twice.replies, ElementsAre(reply, reply));

  Victim victim(
      fault_at("receipt.missing", "worker", 1, kFinish, "channel.write", 0, {{"hop", "worker"}}));
  const auto altered = alter_worker_reply(victim.injector.plan().faults[0], body_of(reply));
  ASSERT_TRUE(altered.has_value());
  const ErrorRecord record = testing::error_of(
      [&] { wire::decode_response(altered->body, 9, kFinish, wire::Peer::kWorker); });
  EXPECT_EQ(record.kind, ErrorKind::kProtocol);
}

TEST(MessageFaults, AReplyWithoutTheFieldPassesUnchangedAndTheFaultIsNotApplied) {
  wire::WorkerReceipt without_digest = receipt_of(1);
  without_digest.digest.clear();
  const Fault fault =
      fault_at("receipt.digest", "worker", 1, kFinish, "channel.write", 0, {{"hop", "worker"}});
  const Sent sent = send(fault, reply_with(without_digest), wire::Peer::kWorker);
  EXPECT_THAT(sent.replies, ElementsAre(reply_with(without_digest)));
  EXPECT_EQ(sent.applied, 0u);
  wire::Response failed = reply_with(std::monostate{});
  failed.ok = false;
  failed.error = "RuntimeBroken: no";
  EXPECT_THAT(send(fault, failed, wire::Peer::kWorker).replies, ElementsAre(failed));
}

TEST(MessageFaults, ARuntimesRequestToAWorkerIsNoReply) {
  Victim victim(at_runtime("receipt.ready"));
  Wire wire;
  std::unique_ptr<Channel> inner = std::make_unique<FakeChannel>(victim.process, wire);
  const auto channel = victim.faults->channel({"worker", 0}, inner);
  const ByteBuffer body = body_of(reply_with(commit()));
  wire::send_frame(*channel, body, kSoon);
  EXPECT_EQ(wire.written.size(), wire::kFrameHeadBytes + body.size());
  EXPECT_EQ(victim.injector.applied(), 0u);
}

TEST(MessageFaults, AFrameLargerThanOneWriteIsAlteredAsAWhole) {
  wire::CommitResult large = commit();
  large.worker_receipts[1].digest.assign(3000, {1, 0, 1, 0, 1, 0x1234567890abcdef});
  wire::CommitResult expected = large;
  expected.worker_receipts[0].ready = false;
  EXPECT_THAT(send(at_runtime("receipt.ready"), reply_with(large), wire::Peer::kRuntime).replies,
              ElementsAre(reply_with(expected)));
}

class BroadcastGroup final : public collective::ControlGroup {
 public:
  BroadcastGroup(testing::FakeProcess& process, int rank) : process_(process), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return 2; }
  void all_gather_word(std::uint64_t, std::span<std::uint64_t>, Deadline) override {}
  std::vector<ByteBuffer> all_gather(ByteView, Deadline) override { return {}; }
  void broadcast(ByteBuffer& bytes, int, Deadline) override {
    process_.enter("control.broadcast");
    bytes.clear();
    wire::encode(commit(), bytes);
  }
  std::optional<int> lost_peer() override { return std::nullopt; }
  void raise_alarm() noexcept override {}
  std::optional<int> alarm() override { return std::nullopt; }
  void leave() noexcept override {}

 private:
  testing::FakeProcess& process_;
  int rank_;
};

TEST(MessageFaults, OneActorReceivesAnAlteredResult) {
  Victim victim(fault_at("receipt.model_version", "actor", 1, "native-result", "control.broadcast",
                         0, {{"hop", "broadcast"}}));
  std::unique_ptr<collective::ControlGroup> inner =
      std::make_unique<BroadcastGroup>(victim.process, 1);
  const auto group = victim.faults->control_group(inner);
  wire::CommitResult expected = commit();
  expected.worker_receipts[0].model_version = 8;
  ByteBuffer bytes;
  group->broadcast(bytes, 0, kSoon);
  EXPECT_EQ(wire::decode_commit_result(bytes), expected);
  EXPECT_TRUE(victim.took_effect());
  group->broadcast(bytes, 0, kSoon);
  EXPECT_EQ(wire::decode_commit_result(bytes), commit());
}

TEST(MessageFaults, AnUpdateLosesTheExpertsTensorsOnItsWay) {
  wire::UpdateRequest update;
  update.chunk_index = 1;
  update.handles.entries = {{"uuid-0", ByteBuffer(3)}};
  update.names = {"model.layers.0.mlp.experts.0.up_proj.weight", "model.norm.weight"};
  update.dtype_names = {"bfloat16", "float32"};
  update.shapes = {{2, 3}, {4}};
  update.tensor_sizes = {12, 16};
  wire::UpdateRequest expected = update;
  expected.names.erase(expected.names.begin());
  expected.dtype_names.erase(expected.dtype_names.begin());
  expected.shapes.erase(expected.shapes.begin());
  expected.tensor_sizes.erase(expected.tensor_sizes.begin());

  Victim victim(fault_at("weights.missing_expert", "actor", 0, "native-transfer", "channel.write",
                         0, {{"where", "wire"}}));
  Wire wire;
  std::unique_ptr<Channel> inner = std::make_unique<FakeChannel>(victim.process, wire);
  const auto channel = victim.faults->channel({"runtime", 0}, inner);
  ByteBuffer body;
  wire::encode_request(4, wire::Payload(update), body);
  wire::send_frame(*channel, body, kSoon);
  EXPECT_TRUE(victim.took_effect());

  Wire reread;
  reread.incoming = wire.written;
  FakeChannel other(victim.process, reread);
  wire::receive_frame(other, body, kSoon);
  EXPECT_EQ(wire::decode_request_head(body).request_id, 4);
  EXPECT_EQ(std::get<wire::UpdateRequest>(wire::decode_payload(wire::Command::kUpdate, body)),
            expected);
  EXPECT_TRUE(reread.incoming.empty());
}

}  // namespace
}  // namespace tpsync::faults
