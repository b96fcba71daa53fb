// The structural manifest: ordered records of all canonical tensors, and the SHA-256 of their
// canonical JSON text. Hash input:
// `[{"dtype":"torch.bfloat16","name":"a.weight","nbytes":12,"numel":6,"shape":[2,3]},...]`, ASCII
// only (other characters as \uXXXX, surrogate pairs above U+FFFF), written as a stream into the
// hash.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tpsync::wire {

struct TensorRecord {
  std::string name;
  std::vector<std::int64_t> shape;
  std::string dtype;        // torch's long form
  std::uint64_t numel = 0;  // product of the shape; 1 for an empty shape
  std::uint64_t nbytes = 0;
  friend bool operator==(const TensorRecord&, const TensorRecord&) = default;
};

struct Manifest {
  std::string fingerprint;  // 64 lower-case hex digits
  std::uint64_t tensor_count = 0;
  std::uint64_t byte_count = 0;
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

// Builds a manifest record by record, so that a receiver hashes what arrives without keeping it.
class ManifestBuilder {
 public:
  ManifestBuilder();
  ~ManifestBuilder();
  ManifestBuilder(ManifestBuilder&&) noexcept;
  ManifestBuilder& operator=(ManifestBuilder&&) noexcept;

  // Checks one record, then hashes it. Throws InvalidInput kProtocol, subject
  // "tensors[<index>].<field>", in order: name empty or not UTF-8; negative dimension; numel not
  // the product; dtype empty or not UTF-8; a byte count beyond 2^64. A refused record leaves the
  // builder as it was. A duplicate name is found by finish().
  void add(const TensorRecord& record);

  std::uint64_t tensor_count() const;

  // Throws InvalidInput kProtocol, subject "tensors", for duplicate names (first 8, sorted). The
  // builder is empty afterwards.
  Manifest finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Manifest build_manifest(std::span<const TensorRecord> records);

// True for exactly 64 characters of 0-9 and a-f.
bool is_fingerprint(std::string_view text);

}  // namespace tpsync::wire
