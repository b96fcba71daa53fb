// A config.json is read once, as a document; then every field is taken by name with its type and
// range checked. What would silently change shapes is refused before sizes are looked at, so that a
// foreign model is named as such and not by a field that it lacks.
#include "tpsync/model/config.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "tpsync/base/bytes.h"
#include "tpsync/base/errors.h"

namespace tpsync::model {
namespace {

using Json = nlohmann::json;

// Far above any model; keeps every sum and product of sizes, and the plan's length, in bounds.
constexpr std::uint64_t kSizeMax = std::uint64_t{1} << 40;
constexpr std::uint64_t kTensorsMax = std::uint64_t{1} << 22;
constexpr std::uint64_t kConfigFileBytesMax = 16 * kMiB;

[[noreturn]] void refuse_text(std::string_view field, std::string_view origin,
                              std::string_view text) {
  throw_invalid(ErrorKind::kInvalidConfig, field, fmt::format("{}: {}", origin, text));
}

// A field that stands twice would silently be taken from its last place, so it is refused, at any
// depth.
Json parse_document(std::string_view text, std::string_view origin) {
  std::vector<std::set<std::string>> open_objects;
  const auto watch = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == Json::parse_event_t::object_end) open_objects.pop_back();
    if (event == Json::parse_event_t::key) {
      const std::string key = value.get<std::string>();
      if (!open_objects.back().insert(key).second) {
        refuse_text(key, origin, "stands twice in one object; remove one");
      }
    }
    return true;
  };
  Json document;
  try {
    document = Json::parse(text, watch);
  } catch (const Json::parse_error& error) {
    refuse_text(
        "config", origin,
        fmt::format("is no JSON object: no longer JSON at byte {} of {}", error.byte, text.size()));
  } catch (const Json::exception&) {
    refuse_text("config", origin, "is no JSON object: a number in it is out of range");
  }
  if (!document.is_object()) refuse_text("config", origin, "is no JSON object");
  return document;
}

class Parser {
 public:
  Parser(const Json& document, std::string_view origin) : document_(document), origin_(origin) {}

  [[noreturn]] void refuse(ErrorKind kind, std::string_view field, std::string_view text) const {
    throw_invalid(kind, field, fmt::format("{}: {}", origin_, text));
  }
  [[noreturn]] void invalid(std::string_view field, std::string_view text) const {
    refuse(ErrorKind::kInvalidConfig, field, text);
  }
  [[noreturn]] void unsupported(std::string_view field, std::string_view text) const {
    refuse(ErrorKind::kUnsupported, field, text);
  }

  // nullptr if the field is absent or null.
  const Json* find(std::string_view field) const {
    const auto found = document_.find(field);
    return found == document_.end() || found->is_null() ? nullptr : &*found;
  }

  std::optional<std::uint64_t> natural_if_present(std::string_view field) const {
    const Json* value = find(field);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number_unsigned()) invalid(field, "must be a non-negative integer");
    return value->get<std::uint64_t>();
  }

  std::uint64_t size(std::string_view field) const {
    const auto value = natural_if_present(field);
    if (!value) invalid(field, "is missing");
    if (*value == 0 || *value > kSizeMax) {
      invalid(field, fmt::format("is {}, must be 1 to {}", *value, kSizeMax));
    }
    return *value;
  }

  bool boolean(std::string_view field, bool absent) const {
    const Json* value = find(field);
    if (value == nullptr) return absent;
    if (!value->is_boolean()) invalid(field, "must be true or false");
    return value->get<bool>();
  }

  std::optional<std::string> text_if_present(std::string_view field) const {
    const Json* value = find(field);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) invalid(field, "must be a text");
    return value->get<std::string>();
  }

 private:
  const Json& document_;
  std::string_view origin_;
};

void refuse_other_architectures(const Parser& parser) {
  const auto model_type = parser.text_if_present("model_type");
  if (!model_type) parser.invalid("model_type", "is missing");
  if (*model_type != "qwen3_moe") {
    parser.unsupported("model_type", "only qwen3_moe is supported");
  }
  if (parser.boolean("attention_bias", false)) {
    parser.unsupported("attention_bias", "attention with biases is not supported");
  }
  if (const Json* dense = parser.find("mlp_only_layers")) {
    if (!dense->is_array()) parser.invalid("mlp_only_layers", "must be an array");
    if (!dense->empty()) {
      parser.unsupported("mlp_only_layers", "dense layers are not supported, must be empty");
    }
  }
  const auto step = parser.natural_if_present("decoder_sparse_step");
  if (step && *step != 1) {
    parser.unsupported("decoder_sparse_step",
                       fmt::format("is {}: dense layers are not supported, must be 1", *step));
  }
  for (const std::string_view field :
       {"shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
        "n_shared_experts", "num_shared_experts"}) {
    if (parser.natural_if_present(field).value_or(0) != 0) {
      parser.unsupported(field, "shared experts are not supported");
    }
  }
  for (const std::string_view field : {"quantization_config", "compression_config"}) {
    if (parser.find(field) != nullptr) {
      parser.unsupported(field, "quantized models are not supported");
    }
  }
}

DType parse_dtype(const Parser& parser) {
  const auto old_name = parser.text_if_present("torch_dtype");
  const auto new_name = parser.text_if_present("dtype");
  if (old_name && new_name && *old_name != *new_name) {
    parser.invalid("dtype", "differs from torch_dtype");
  }
  const std::string_view field = old_name || !new_name ? "torch_dtype" : "dtype";
  const auto& name = old_name ? old_name : new_name;
  if (!name) parser.invalid(field, "is missing (torch_dtype or dtype)");
  auto dtype = dtype_from_bare(*name);
  if (!dtype) dtype = dtype_from_torch(*name);
  if (!dtype || !is_floating(*dtype)) {
    parser.invalid(field, "must be bfloat16, float16 or float32");
  }
  return *dtype;
}

void check_totals(const Parser& parser, const ModelConfig& config) {
  const auto product = [](std::initializer_list<std::optional<std::uint64_t>> factors) {
    std::optional<std::uint64_t> result = 1;
    for (const auto& factor : factors) {
      result = result && factor ? checked_mul(*result, *factor) : std::nullopt;
    }
    return result;
  };
  const auto sum = [](std::initializer_list<std::optional<std::uint64_t>> terms) {
    std::optional<std::uint64_t> result = 0;
    for (const auto& term : terms) {
      result = result && term ? checked_add(*result, *term) : std::nullopt;
    }
    return result;
  };
  const std::uint64_t hidden = config.hidden_size;
  // q and o; k and v. Sizes are below 2^40, so the sums of factors do not overflow.
  const auto attention = product(
      {2 * config.num_attention_heads + 2 * config.num_key_value_heads, config.head_dim, hidden});
  const auto experts = product({3 * config.num_experts, config.moe_intermediate_size, hidden});
  const auto router = product({config.num_experts, hidden});
  const auto layer = sum({attention, experts, router, 2 * hidden, 2 * config.head_dim});
  const auto vocabulary = product({2, config.vocab_size, hidden});
  const auto bytes = product({sum({product({config.num_hidden_layers, layer}), vocabulary, hidden}),
                              item_size(config.dtype)});
  if (!bytes || *bytes > INT64_MAX) {
    parser.invalid("hidden_size", "the sizes of this file give more than 2^63 bytes");
  }
  const auto tensors = product({config.num_hidden_layers, 3 * config.num_experts + 9});
  if (!tensors || *tensors > kTensorsMax) {
    parser.invalid("num_hidden_layers",
                   fmt::format("layers and experts give more than {} tensors", kTensorsMax));
  }
}

}  // namespace

ModelConfig parse_model_config(std::string_view json_text, std::string_view origin) {
  const Json document = parse_document(json_text, origin);
  const Parser parser(document, origin);
  refuse_other_architectures(parser);

  ModelConfig config;
  config.model_type = "qwen3_moe";
  config.tie_word_embeddings = parser.boolean("tie_word_embeddings", false);
  config.num_hidden_layers = parser.size("num_hidden_layers");
  config.num_experts = parser.size("num_experts");
  config.hidden_size = parser.size("hidden_size");
  config.moe_intermediate_size = parser.size("moe_intermediate_size");
  config.vocab_size = parser.size("vocab_size");
  config.num_attention_heads = parser.size("num_attention_heads");
  config.num_key_value_heads = parser.size("num_key_value_heads");
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    parser.invalid("num_key_value_heads",
                   fmt::format("is {}, does not divide the {} attention heads",
                               config.num_key_value_heads, config.num_attention_heads));
  }
  if (parser.find("head_dim") != nullptr) {
    config.head_dim = parser.size("head_dim");
  } else {
    if (config.hidden_size % config.num_attention_heads != 0) {
      parser.invalid("head_dim", "is missing, and hidden_size is no multiple of the heads");
    }
    config.head_dim = config.hidden_size / config.num_attention_heads;
  }
  config.dtype = parse_dtype(parser);
  check_totals(parser, config);
  return config;
}

ModelConfig load_model_config(const std::string& path) {
  const auto unreadable = [](const std::string& file, std::string_view reason) {
    throw_invalid(ErrorKind::kInvalidConfig, "config", fmt::format("{}: {}", file, reason));
  };
  std::error_code ignored;
  const std::string file = std::filesystem::is_directory(path, ignored)
                               ? (std::filesystem::path(path) / "config.json").string()
                               : path;
  if (!std::filesystem::is_regular_file(file, ignored)) {
    unreadable(file, "is no file; name a config.json or the directory that holds it");
  }
  std::ifstream stream(file, std::ios::binary);
  // read() reports failures in the stream's state, whereas stream iterators throw; and sizes of
  // files such as those in /proc are known only after reading.
  std::string text(kConfigFileBytesMax + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad() || !stream.is_open()) unreadable(file, "cannot be read");
  text.resize(static_cast<std::size_t>(stream.gcount()));
  if (text.size() > kConfigFileBytesMax) unreadable(file, "is too large for a configuration");
  return parse_model_config(text, file);
}

}  // namespace tpsync::model
