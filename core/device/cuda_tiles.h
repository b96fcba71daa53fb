// Cuts the operations of a prepared batch into the tiles of cuda_kernels.h, and remembers how far
// into each region the batch reaches, so that a launch checks one number per binding instead of
// every operation. Pure functions on the host.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tpsync/device/cuda_kernels.h"
#include "tpsync/device/device.h"

namespace tpsync::device::cuda {

// By binding: the bytes that its region must have at least; nullopt where the operations overflow
// 64 bits. Bindings that no operation names need nothing.
using Extents = std::vector<std::optional<std::uint64_t>>;

template <typename Tile>
struct TileTable {
  std::vector<Tile> tiles;
  Extents extents;
};

// Operations without bytes give no tile, but their offsets count. Empty if an extent overflows:
// such a batch is never launched.
TileTable<CopyTile> cut_copies(std::span<const TileCopy> copies);
// Types must be convertible.
TileTable<PackTile> cut_packs(std::span<const PackPiece> pieces);
// Item sizes must be 1, 2, 4 or 8. The tile's item is the place in `items`.
TileTable<DigestTile> cut_digests(std::span<const DigestItem> items);

}  // namespace tpsync::device::cuda
