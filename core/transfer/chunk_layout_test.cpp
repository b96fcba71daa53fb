// Where pieces lie in the packed buffer, and which shard bounds from outside are taken.
#include "tpsync/transfer/chunk_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/testing/fake_world.h"

namespace tpsync::transfer {
namespace {

using fakes::failure_of;
using testing::ElementsAre;
using testing::IsEmpty;

wire::TensorRecord tensor(const std::string& name, std::vector<std::int64_t> shape) {
  wire::TensorRecord record;
  record.name = name;
  record.numel = 1;
  for (const std::int64_t dim : shape) record.numel *= static_cast<std::uint64_t>(dim);
  record.shape = std::move(shape);
  record.dtype = "torch.bfloat16";
  record.nbytes = record.numel * 2;
  return record;
}

class ChunkLayout : public testing::Test {
 protected:
  // Row bytes: 6, 4, 2. The middle one has no rows at all.
  const std::vector<wire::TensorRecord> tensors_ = {tensor("a", {3, 3}), tensor("empty", {0, 2}),
                                                    tensor("b", {2, 2}), tensor("c", {5})};
  const Chunk all_{0, 4, 18 + 0 + 8 + 10};
  // Actor 1 holds nothing of a, actor 0 nothing of c.
  const wire::SourceLayout source_{2, {0, 3, 3, 0, 0, 0, 0, 1, 2, 0, 0, 5}};
};

TEST_F(ChunkLayout, CompactIsARunningByteSum) {
  EXPECT_THAT(compact_pieces(tensors_, all_),
              ElementsAre(Piece{0, 0, 3, 0, 18}, Piece{1, 0, 0, 18, 0}, Piece{2, 0, 2, 18, 8},
                          Piece{3, 0, 5, 26, 10}));
  EXPECT_THAT(compact_pieces(tensors_, {2, 2, 18}),
              ElementsAre(Piece{2, 0, 2, 0, 8}, Piece{3, 0, 5, 8, 10}));
}

TEST_F(ChunkLayout, RankMajorPacksEachActorsPiecesIntoItsOwnAlignedRegion) {
  const RankMajorChunk chunk = rank_major_pieces(tensors_, all_, source_);
  ASSERT_EQ(chunk.regions.size(), 2u);
  EXPECT_EQ(chunk.regions[0].offset, 0u);
  EXPECT_EQ(chunk.regions[0].bytes, 18u + 4u);
  EXPECT_EQ(chunk.regions[1].offset, 32u);
  EXPECT_EQ(chunk.regions[1].bytes, 4u + 10u);
  EXPECT_THAT(chunk.pieces_of(0), ElementsAre(Piece{0, 0, 3, 0, 18}, Piece{2, 0, 1, 18, 4}));
  EXPECT_THAT(chunk.pieces_of(1), ElementsAre(Piece{2, 1, 2, 32, 4}, Piece{3, 0, 5, 36, 10}));
}

TEST_F(ChunkLayout, AnActorWithoutPiecesHasAnEmptyRegion) {
  const RankMajorChunk chunk = rank_major_pieces(tensors_, {0, 1, 18}, source_);
  EXPECT_EQ(chunk.regions[1].bytes, 0u);
  EXPECT_THAT(chunk.pieces_of(1), IsEmpty());
}

TEST_F(ChunkLayout, OnlyRankMajorNeedsRoomForAlignment) {
  EXPECT_EQ(slot_bytes(wire::Layout::kCompact, 100, 4), 100u);
  EXPECT_EQ(slot_bytes(wire::Layout::kRankMajor, 100, 4), 100u + 4u * 16u);
}

TEST_F(ChunkLayout, ChunksTakeTheAlignedSlotsOfABufferInTurn) {
  EXPECT_EQ(slot_bytes(wire::Layout::kRankMajor, 100, 4, 3), 256u);
  EXPECT_EQ(slot_bytes(wire::Layout::kRankMajor, 240, 4, 2), 512u);
  EXPECT_EQ(slot_offset(768, 3, 0), 0u);
  EXPECT_EQ(slot_offset(768, 3, 5), 512u);
  EXPECT_EQ(slot_offset(100, 1, 7), 0u);
}

TEST_F(ChunkLayout, ByTheReshardRouteEachRegionBeginsItsActorsBuffer) {
  const RankMajorChunk gathered = rank_major_pieces(tensors_, all_, source_);
  const RankMajorChunk chunk = rank_major_pieces(tensors_, all_, source_, wire::Route::kReshard);
  ASSERT_EQ(chunk.regions.size(), 2u);
  std::uint64_t largest = 0;
  for (std::uint64_t r = 0; r < 2; ++r) {
    EXPECT_EQ(chunk.regions[r].offset, 0u);
    EXPECT_EQ(chunk.regions[r].bytes, gathered.regions[r].bytes);
    const auto pieces = chunk.pieces_of(r);
    ASSERT_EQ(pieces.size(), gathered.pieces_of(r).size());
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      Piece moved = gathered.pieces_of(r)[i];
      moved.offset -= gathered.regions[r].offset;
      EXPECT_EQ(pieces[i], moved);
    }
    largest = std::max(largest, chunk.regions[r].bytes);
  }
  EXPECT_EQ(reshard_slot_bytes(tensors_, std::span(&all_, 1), source_), align_up(largest, 256));
}

TEST_F(ChunkLayout, ASlotOfTheReshardRouteHoldsTheLargestPartOfAnyChunk) {
  wire::SourceLayout lopsided = source_;  // everything is actor 1's
  std::uint64_t largest = 0;
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    lopsided.row_bounds[3 * t + 1] = 0;
    largest = std::max(largest, tensors_[t].nbytes);
  }
  std::vector<Chunk> chunks;
  for (std::uint64_t t = 0; t < tensors_.size(); ++t) chunks.push_back({t, 1, tensors_[t].nbytes});
  EXPECT_EQ(reshard_slot_bytes(tensors_, chunks, lopsided), align_up(largest, 256));
  const std::vector<Chunk> whole = {{0, tensors_.size(), 0}};
  EXPECT_GE(reshard_slot_bytes(tensors_, whole, lopsided), largest);
}

TEST_F(ChunkLayout, BoundsFromOutsideAreCheckedBeforeUse) {
  check_source_layout(tensors_, source_);
  const auto refused = [&](wire::SourceLayout source) {
    const ErrorRecord record = failure_of([&] { check_source_layout(tensors_, source); });
    EXPECT_EQ(record.kind, ErrorKind::kProtocol);
    EXPECT_EQ(record.remedy, Remedy::kFixPeer);
    EXPECT_EQ(record.subject, "source_layout");
    return record.detail;
  };
  using testing::HasSubstr;
  wire::SourceLayout no_actor = source_;
  no_actor.world = 0;
  EXPECT_THAT(refused(no_actor), HasSubstr("12 bounds for 4 tensors and 0 actors"));
  wire::SourceLayout too_few = source_;
  too_few.row_bounds.pop_back();
  EXPECT_THAT(refused(too_few), HasSubstr("11 bounds"));
  wire::SourceLayout huge = source_;
  huge.world = UINT64_MAX;
  EXPECT_THAT(refused(huge), HasSubstr("18446744073709551615 actors"));
  for (const auto& [index, value] : std::vector<std::pair<std::size_t, std::uint64_t>>{
           {0, 1}, {1, 4}, {2, 2}, {7, 3}, {10, UINT64_MAX}}) {
    wire::SourceLayout edited = source_;
    edited.row_bounds[index] = value;
    const std::string name = tensors_[index / 3].name;
    EXPECT_THAT(refused(edited), HasSubstr(name + ": shard bounds do not ascend")) << index;
  }
}

}  // namespace
}  // namespace tpsync::transfer
