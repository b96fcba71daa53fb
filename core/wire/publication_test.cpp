// Every check of header, receipts, result and content digest: its kind, its subject, and that it
// comes in its place. The order tests start with every fault at once and mend them one by one.
#include "tpsync/wire/publication.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tpsync/base/errors.h"

namespace tpsync::wire {
namespace {

using testing::HasSubstr;

const std::string kFingerprint(64, 'a');

PublicationHeader good_header() {
  PublicationHeader header;
  header.publication_id = std::string(32, '1');
  header.model_version = 7;
  header.tp_world_size = 2;
  header.expected_manifest = {kFingerprint, 2, 100};
  header.device_uuids = {"GPU-a", "GPU-b"};
  return header;
}

WorkerReceipt good_receipt(int rank) {
  const PublicationHeader header = good_header();
  WorkerReceipt receipt;
  receipt.tp_rank = rank;
  receipt.tp_world_size = 2;
  receipt.device_uuid = header.device_uuids[static_cast<std::size_t>(rank)];
  receipt.publication_id = header.publication_id;
  receipt.model_version = 7;
  receipt.expected_manifest_fingerprint = kFingerprint;
  receipt.resident_parameter_count = 5;
  receipt.ready = true;
  return receipt;
}

CommitResult good_result() { return {"committed", 7, {good_receipt(1), good_receipt(0)}, true}; }

void expect_violation(ErrorKind kind, const std::string& subject,
                      const std::function<void()>& check) {
  try {
    check();
    ADD_FAILURE() << "accepted, expected a refusal of " << subject;
  } catch (const PeerViolation& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_EQ(error.record().subject, subject) << error.what();
  }
}

void expect_header(const PublicationHeader& header, ErrorKind kind, const std::string& subject) {
  expect_violation(kind, subject, [&] { validate_header(header, 2, kRoutes); });
}

void expect_receipts(const std::vector<WorkerReceipt>& receipts, ErrorKind kind,
                     const std::string& subject) {
  expect_violation(kind, subject, [&] { validate_receipts(good_header(), receipts, {}); });
}

TEST(Header, AGoodOnePasses) { validate_header(good_header(), 2, kRoutes); }

TEST(Header, FaultsAreFoundInOrder) {
  PublicationHeader header;
  header.protocol_version = 2;
  header.transport = "zmq";
  header.publication_id = "";
  header.model_version = 0;
  header.tp_world_size = 3;
  header.expected_manifest = {"short", 0, 0};
  header.device_uuids = {"GPU-a"};
  expect_header(header, ErrorKind::kMismatch, "protocol_version");
  header.protocol_version = 1;
  expect_header(header, ErrorKind::kMismatch, "transport");
  header.transport = kTransport;
  expect_header(header, ErrorKind::kProtocol, "publication_id");
  header.publication_id = "x";
  expect_header(header, ErrorKind::kProtocol, "model_version");
  header.model_version = -1;
  expect_header(header, ErrorKind::kProtocol, "model_version");
  header.model_version = 1;
  expect_header(header, ErrorKind::kMismatch, "tp_world_size");
  header.tp_world_size = 2;
  expect_header(header, ErrorKind::kProtocol, "expected_manifest.fingerprint");
  header.expected_manifest.fingerprint = std::string(64, 'A');
  expect_header(header, ErrorKind::kProtocol, "expected_manifest.fingerprint");
  header.expected_manifest.fingerprint = kFingerprint;
  expect_header(header, ErrorKind::kProtocol, "expected_manifest.tensor_count");
  header.expected_manifest.tensor_count = 1;
  expect_header(header, ErrorKind::kMismatch, "device_uuids");
  header.device_uuids = {"", ""};
  expect_header(header, ErrorKind::kProtocol, "device_uuids[0]");
  header.device_uuids = {"GPU-a", "GPU-a"};
  expect_header(header, ErrorKind::kProtocol, "device_uuids[1]");
  header.device_uuids = {"GPU-a", "GPU-b"};
  validate_header(header, 2, kRoutes);
}

TEST(Header, OnlyTheTransportsOfTheCallersRoutesPass) {
  PublicationHeader header = good_header();
  for (const Route chosen : kRoutes) {
    for (const Route found : kRoutes) {
      header.transport = transport_of(found);
      const auto validate = [&] { validate_header(header, 2, std::span(&chosen, 1)); };
      if (found == chosen) {
        validate();
      } else {
        expect_violation(ErrorKind::kMismatch, "transport", validate);
      }
    }
    header.transport = transport_of(chosen);
    validate_header(header, 2, kRoutes);
  }
  expect_violation(ErrorKind::kMismatch, "transport",
                   [] { validate_header(good_header(), 2, {}); });
}

TEST(Routes, HaveOneNameAndOneTransportEach) {
  for (const Route route : kRoutes) {
    EXPECT_EQ(route_from(name_of(route)), route);
    EXPECT_EQ(route_of_transport(transport_of(route)), route);
  }
  EXPECT_EQ(transport_of(Route::kGather), kTransport);
  EXPECT_NE(transport_of(Route::kReshard), kTransport);
  EXPECT_EQ(route_from("broadcast"), std::nullopt);
  EXPECT_EQ(route_of_transport(""), std::nullopt);
}

TEST(Header, AWorldOfNoneIsRefused) {
  PublicationHeader header = good_header();
  header.tp_world_size = 0;
  header.device_uuids.clear();
  expect_violation(ErrorKind::kProtocol, "tp_world_size",
                   [&] { validate_header(header, 0, kRoutes); });
  expect_violation(ErrorKind::kProtocol, "tp_world_size",
                   [&] { validate_receipts(header, {}, {}); });
}

TEST(Receipts, GoodOnesPassInAnyOrder) {
  const std::vector<WorkerReceipt> receipts = {good_receipt(1), good_receipt(0)};
  validate_receipts(good_header(), receipts, {});
}

TEST(Receipts, TheHeaderIsCheckedFirst) {
  PublicationHeader header = good_header();
  header.transport = "zmq";
  expect_violation(ErrorKind::kMismatch, "transport", [&] { validate_receipts(header, {}, {}); });
}

TEST(Receipts, AMissingOrExtraOneIsRefusedBeforeAnyIsRead) {
  WorkerReceipt broken;
  expect_receipts({broken}, ErrorKind::kMismatch, "receipts");
  expect_receipts({broken, broken, broken}, ErrorKind::kMismatch, "receipts");
}

TEST(Receipts, FaultsOfOneAreFoundInOrder) {
  std::vector<WorkerReceipt> receipts = {good_receipt(0), WorkerReceipt{}};
  WorkerReceipt& broken = receipts[1];
  const auto expect = [&receipts](ErrorKind kind, const std::string& field) {
    expect_receipts(receipts, kind, "receipts[1]." + field);
  };
  broken.tp_rank = -1;
  expect(ErrorKind::kProtocol, "tp_rank");
  broken.tp_rank = 2;
  expect(ErrorKind::kProtocol, "tp_rank");
  broken.tp_rank = 0;
  expect(ErrorKind::kMismatch, "publication_id");
  broken.publication_id = good_header().publication_id;
  expect(ErrorKind::kMismatch, "model_version");
  broken.model_version = 7;
  expect(ErrorKind::kMismatch, "tp_world_size");
  broken.tp_world_size = 2;
  expect(ErrorKind::kMismatch, "expected_manifest_fingerprint");
  broken.expected_manifest_fingerprint = kFingerprint;
  broken.device_uuid = "GPU-b";  // of the other rank
  expect(ErrorKind::kMismatch, "device_uuid");
  broken.device_uuid = "GPU-a";
  expect(ErrorKind::kMismatch, "ready");
  broken.ready = true;
  expect(ErrorKind::kProtocol, "resident_parameter_count");
  broken.resident_parameter_count = 1;
  expect(ErrorKind::kMismatch, "tp_rank");  // rank 0 twice
  broken = good_receipt(1);
  validate_receipts(good_header(), receipts, {});
}

TEST(Receipts, AFaultOfALaterReceiptIsFoundBeforeDuplicateRanks) {
  std::vector<WorkerReceipt> receipts = {good_receipt(0), good_receipt(0)};
  receipts[1].ready = false;
  expect_receipts(receipts, ErrorKind::kMismatch, "receipts[1].ready");
}

TEST(Result, FaultsAreFoundInOrder) {
  CommitResult result{"aborted", 8, {}, false};
  const auto expect = [&result](ErrorKind kind, const std::string& subject) {
    expect_violation(kind, subject, [&] { validate_result(good_header(), result, true, {}); });
  };
  expect(ErrorKind::kMismatch, "status");
  result.status = "committed";
  expect(ErrorKind::kMismatch, "receipts");
  result.worker_receipts = good_result().worker_receipts;
  expect(ErrorKind::kMismatch, "model_version");
  result.model_version = 7;
  expect(ErrorKind::kMismatch, "prefix_cache_reset");
  validate_result(good_header(), result, false, {});
  result.prefix_cache_reset = true;
  validate_result(good_header(), result, true, {});
}

// ---- content digest: tensor 0 has 4 x 6 elements and is cut by rows or columns, tensor 1 is a
// vector of 3 and replicated.

constexpr std::uint64_t kHuge = UINT64_MAX - 4;

ExpectedDigest expected() {
  ExpectedDigest digest;
  digest.tensors = {{4, 6, kHuge + 10}, {3, 1, 9}};  // the first sum wraps
  return digest;
}

struct DigestCase {
  std::vector<DigestPart> rank0 = {{0, 0, 4, 0, 3, kHuge}, {1, 0, 3, 0, 1, 9}};
  std::vector<DigestPart> rank1 = {{0, 0, 4, 3, 6, 10}, {1, 0, 3, 0, 1, 9}};
  ExpectedDigest digest = expected();

  void validate() const {
    PublicationHeader header = good_header();
    std::vector<WorkerReceipt> receipts = {good_receipt(0), good_receipt(1)};
    receipts[0].digest = rank0;
    receipts[1].digest = rank1;
    validate_receipts(header, receipts, digest);
  }
  void expect(ErrorKind kind, const std::string& subject, const std::string& detail = "") const {
    expect_violation(kind, subject, [this] { validate(); });
    try {
      validate();
    } catch (const PeerViolation& error) {
      EXPECT_THAT(error.record().detail, HasSubstr(detail));
    }
  }
};

TEST(ContentDigest, SlicesByColumnsAndReplicasPass) { DigestCase{}.validate(); }

TEST(ContentDigest, OffMeansThatPartsAreNotRead) {
  DigestCase c;
  c.rank0 = {{99, 5, 1, 0, 0, 1}};
  c.digest = {};
  c.validate();
}

TEST(ContentDigest, SlicesByRowsInAnyOrderPass) {
  DigestCase c;
  c.rank0 = {{1, 0, 3, 0, 1, 9}, {0, 2, 4, 0, 6, 10}};
  c.rank1 = {{0, 0, 2, 0, 6, kHuge}};
  c.validate();
}

TEST(ContentDigest, ATilingThatIsNotMadeOfBandsPasses) {
  // A pinwheel of four 2 x 1 rectangles around one cell of a 3 x 3 tensor.
  DigestCase c;
  c.digest.tensors[0] = {3, 3, 31};
  c.rank0 = {{0, 0, 1, 0, 2, 1}, {0, 0, 2, 2, 3, 2}, {0, 1, 2, 1, 2, 16}, {1, 0, 3, 0, 1, 9}};
  c.rank1 = {{0, 2, 3, 1, 3, 4}, {0, 1, 3, 0, 1, 8}};
  c.validate();
}

TEST(ContentDigest, AnotherNumberOfTensorsThanTheManifestsIsRefused) {
  DigestCase c;
  c.digest.tensors.pop_back();
  c.rank0 = {{99, 0, 1, 0, 1, 0}};
  c.expect(ErrorKind::kMismatch, "digest.tensors");
}

TEST(ContentDigest, APartOfNoTensorIsRefusedBeforeSumsAreCompared) {
  DigestCase c;
  c.rank0[0].sum += 1;
  c.rank1[1].tensor = 2;
  c.expect(ErrorKind::kProtocol, "receipts[1].digest[1]", "names tensor 2 of 2");
}

TEST(ContentDigest, APartOutsideItsTensorIsRefused) {
  for (const auto& change : std::vector<std::function<void(DigestPart&)>>{
           [](DigestPart& p) { p.row1 = 5; }, [](DigestPart& p) { p.col1 = 7; },
           [](DigestPart& p) { p.row0 = 5; }, [](DigestPart& p) { p.col0 = 7; },
           [](DigestPart& p) { p.row1 = UINT64_MAX; }}) {
    DigestCase c;
    change(c.rank1[0]);
    c.expect(ErrorKind::kProtocol, "receipts[1].digest[0]", "tensor 0 rows");
  }
}

TEST(ContentDigest, AnEmptyPartCountsOnlyIfItsSumIsNot0) {
  DigestCase c;
  c.rank0.push_back({0, 2, 2, 0, 6, 0});
  c.validate();
  c.rank0.back().sum = 1;
  c.expect(ErrorKind::kMismatch, "receipts[0].digest[2]");
}

TEST(ContentDigest, AReplicaWithAnotherSumIsRefusedBeforeTheTotalIs) {
  DigestCase c;
  c.rank1[1].sum = 8;
  c.digest.tensors[1].sum = 8;
  c.expect(ErrorKind::kMismatch, "receipts[1].digest[1]",
           "tensor 1 rows 0 to 3 columns 0 to 1 has the sum 8, in receipts[0] it is 9");
}

TEST(ContentDigest, AGapIsRefused) {
  DigestCase c;
  c.rank1.erase(c.rank1.begin());
  c.expect(ErrorKind::kMismatch, "digest.tensors[0]", "cover 12 of 24");
}

TEST(ContentDigest, ATensorThatNoReceiptMentionsIsRefused) {
  DigestCase c;
  c.rank0.pop_back();
  c.rank1.pop_back();
  c.digest.tensors[1].sum = 0;
  c.expect(ErrorKind::kMismatch, "digest.tensors[1]", "cover 0 of 3");
}

TEST(ContentDigest, AnOverlapIsRefusedWhereItIs) {
  DigestCase c;
  c.rank1[0].col0 = 2;
  c.expect(ErrorKind::kMismatch, "receipts[1].digest[0]",
           "rows 0 to 4 columns 2 to 6 overlaps rows 0 to 4 columns 0 to 3 of receipts[0]");
}

TEST(ContentDigest, AnOverlapThatHidesAGapOfTheSameSizeIsRefused) {
  // 2 x 6 twice over rows 1 to 2 of the first, rows 0 missing: 24 elements, not a tiling.
  DigestCase c;
  c.rank0[0] = {0, 1, 3, 0, 6, kHuge};
  c.rank1[0] = {0, 2, 4, 0, 6, 10};
  c.expect(ErrorKind::kMismatch, "receipts[1].digest[0]", "overlaps rows 1 to 3");
}

TEST(ContentDigest, AWrongTotalIsRefusedWithBothSums) {
  DigestCase c;
  c.digest.tensors[1].sum = 10;
  c.expect(ErrorKind::kMismatch, "digest.tensors[1]", "add up to 9, the actors' sum is 10");
}

TEST(ContentDigest, AnEarlierTensorsFaultComesFirst) {
  DigestCase c;
  c.rank1[1].sum = 8;
  c.digest.tensors[0].sum = 1;
  c.expect(ErrorKind::kMismatch, "digest.tensors[0]");
}

TEST(ContentDigest, ATensorOfNoElementsNeedsNoPartAndTheSum0) {
  DigestCase c;
  c.digest.tensors[1] = {0, 4, 0};
  c.rank0.pop_back();
  c.rank1.pop_back();
  c.validate();
  c.digest.tensors[1].sum = 1;
  c.expect(ErrorKind::kMismatch, "digest.tensors[1]");
}

TEST(ContentDigest, ATensorOfMoreThan2To64ElementsIsRefused) {
  DigestCase c;
  c.digest.tensors[1] = {UINT64_MAX, 2, 9};
  c.expect(ErrorKind::kProtocol, "digest.tensors[1]");
}

TEST(ContentDigest, ARealModelsPartsAreComparedWhole) {
  // 18,867 tensors cut by columns over 4 workers; one flipped bit in the last is found.
  constexpr std::uint64_t kTensors = 18867;
  PublicationHeader header = good_header();
  header.tp_world_size = 4;
  header.expected_manifest.tensor_count = kTensors;
  header.device_uuids = {"a", "b", "c", "d"};
  std::vector<WorkerReceipt> receipts(4, good_receipt(0));
  ExpectedDigest digest;
  digest.tensors.resize(kTensors, {8, 16, 0});
  for (std::uint64_t rank = 0; rank < 4; ++rank) {
    WorkerReceipt& receipt = receipts[rank];
    receipt.tp_rank = static_cast<std::int64_t>(rank);
    receipt.tp_world_size = 4;
    receipt.device_uuid = header.device_uuids[rank];
    for (std::uint64_t t = 0; t < kTensors; ++t) {
      const std::uint64_t sum = t * 0x9e3779b97f4a7c15 + rank;
      receipt.digest.push_back({t, 0, 8, 4 * rank, 4 * rank + 4, sum});
      digest.tensors[t].sum += sum;
    }
  }
  validate_receipts(header, receipts, digest);
  receipts[3].digest.back().sum ^= 1;
  expect_violation(ErrorKind::kMismatch, "digest.tensors[18866]",
                   [&] { validate_receipts(header, receipts, digest); });
}

}  // namespace
}  // namespace tpsync::wire
