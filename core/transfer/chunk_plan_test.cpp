#include "tpsync/transfer/chunk_plan.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "tpsync/base/dtype.h"
#include "tpsync/base/errors.h"
#include "tpsync/model/plan.h"

namespace tpsync::transfer {
namespace {

wire::TensorRecord record(std::string name, DType dtype, std::uint64_t elements) {
  return {std::move(name),
          {static_cast<std::int64_t>(elements)},
          std::string(torch_name(dtype)),
          elements,
          elements * item_size(dtype)};
}

std::vector<std::uint64_t> counts(const std::vector<Chunk>& chunks) {
  std::vector<std::uint64_t> result;
  for (const Chunk& chunk : chunks) result.push_back(chunk.count);
  return result;
}

std::vector<std::uint64_t> counts_of_model(const std::string& name, std::uint64_t bucket) {
  const auto config = model::load_model_config(std::string(TPSYNC_SOURCE_DIR) +
                                               "/conformance/models/" + name + ".json");
  return counts(plan_chunks(model::plan_canonical(config).tensors, bucket));
}

TEST(ChunkPlan, OfTheTinyModelsIsTheKnownOne) {
  EXPECT_EQ(counts_of_model("tiny", 256), (std::vector<std::uint64_t>{1, 3, 5, 4, 4, 1}));
  EXPECT_EQ(counts_of_model("tiny", 512), (std::vector<std::uint64_t>{4, 9, 5}));
  EXPECT_EQ(counts_of_model("tiny-tp4", 1024), (std::vector<std::uint64_t>{5, 10, 9}));
}

TEST(ChunkPlan, OfQwen3ThirtyBillionHas92ChunksAt640MiBAnd29At2048MiB) {
  EXPECT_EQ(counts_of_model("qwen3-30b-a3b", 640ULL << 20).size(), 92u);
  EXPECT_EQ(counts_of_model("qwen3-30b-a3b", 2048ULL << 20).size(), 29u);
}

TEST(ChunkPlan, ATensorThatFitsExactlyStaysAndOneByteMoreDoesNot) {
  const std::vector<wire::TensorRecord> tensors = {record("a", DType::kUInt8, 6),
                                                   record("b", DType::kUInt8, 4)};
  EXPECT_EQ(counts(plan_chunks(tensors, 10)), (std::vector<std::uint64_t>{2}));
  EXPECT_EQ(counts(plan_chunks(tensors, 9)), (std::vector<std::uint64_t>{1, 1}));
}

TEST(ChunkPlan, IsCutWhereTheNextTensorWouldBeMisaligned) {
  const std::vector<wire::TensorRecord> tensors = {
      record("a", DType::kBFloat16, 3), record("b", DType::kFloat32, 1),
      record("c", DType::kUInt8, 1), record("d", DType::kBFloat16, 1)};
  EXPECT_EQ(counts(plan_chunks(tensors, 100)), (std::vector<std::uint64_t>{1, 2, 1}));
}

TEST(ChunkPlan, ZeroSizeTensorsAreKeptAlsoAsTheLastChunk) {
  const std::vector<wire::TensorRecord> tensors = {record("a", DType::kBFloat16, 0),
                                                   record("b", DType::kBFloat16, 2),
                                                   record("c", DType::kBFloat16, 0)};
  EXPECT_EQ(counts(plan_chunks(tensors, 4)), (std::vector<std::uint64_t>{3}));
  const std::vector<wire::TensorRecord> empty = {record("a", DType::kBFloat16, 0)};
  EXPECT_EQ(plan_chunks(empty, 4), (std::vector<Chunk>{{0, 1, 0}}));
}

TEST(ChunkPlan, ATensorLargerThanTheBucketIsNamed) {
  const std::vector<wire::TensorRecord> tensors = {record("big", DType::kUInt8, 11)};
  try {
    plan_chunks(tensors, 10);
    FAIL() << "accepted";
  } catch (const InvalidInput& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidConfig);
    EXPECT_EQ(error.record().subject, "big");
  }
}

TEST(ChunkPlan, NoTensorsAndUnknownDtypesAreRefused) {
  EXPECT_THROW(plan_chunks({}, 10), InvalidInput);
  std::vector<wire::TensorRecord> tensors = {record("a", DType::kUInt8, 1)};
  tensors[0].dtype = "torch.complex64";
  EXPECT_THROW(plan_chunks(tensors, 10), InvalidInput);
}

TEST(ChunkPlan, CoversEachTensorOnceInOrderAndFitsTheBucket) {
  EXPECT_TRUE(rc::check([] {
    const auto sizes =
        *rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 40)));
    std::vector<wire::TensorRecord> tensors;
    std::uint64_t largest = 1;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const DType dtype = *rc::gen::element(DType::kUInt8, DType::kBFloat16, DType::kFloat32);
      tensors.push_back(
          record("t" + std::to_string(i), dtype, static_cast<std::uint64_t>(sizes[i])));
      largest = std::max(largest, tensors.back().nbytes);
    }
    const std::uint64_t bucket = largest + static_cast<std::uint64_t>(*rc::gen::inRange(0, 200));
    std::uint64_t next = 0;
    for (const Chunk& chunk : plan_chunks(tensors, bucket)) {
      RC_ASSERT(chunk.first == next);
      RC_ASSERT(chunk.count > 0);
      RC_ASSERT(chunk.bytes <= bucket);
      std::uint64_t bytes = 0;
      for (std::uint64_t t = next; t < next + chunk.count; ++t) {
        RC_ASSERT(tensors[t].nbytes == 0 ||
                  bytes % item_size(*dtype_from_torch(tensors[t].dtype)) == 0);
        bytes += tensors[t].nbytes;
      }
      RC_ASSERT(bytes == chunk.bytes);
      next += chunk.count;
    }
    RC_ASSERT(next == tensors.size());
  }));
}

TEST(ChunkCounts, ThatDoNotAddUpAreAPeersFault) {
  const std::vector<wire::TensorRecord> tensors = {record("a", DType::kUInt8, 1),
                                                   record("b", DType::kUInt8, 1)};
  const std::vector<std::vector<std::uint64_t>> bad = {{}, {1}, {3}, {0, 2}, {1, 0, 1}, {2, 1}};
  for (const auto& table : bad) {
    try {
      chunks_from_counts(tensors, table);
      FAIL() << "accepted " << table.size() << " chunks";
    } catch (const PeerViolation& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kProtocol);
    }
  }
  const std::vector<std::uint64_t> good = {1, 1};
  EXPECT_EQ(chunks_from_counts(tensors, good), plan_chunks(tensors, 1));
}

}  // namespace
}  // namespace tpsync::transfer
