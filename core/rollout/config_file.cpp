// The document is walked by name: what a section takes is marked, and what is left is an unknown
// key. yaml-cpp reads JSON too, since YAML contains it; which of the two a file is plays no role.
#include "tpsync/rollout/config_file.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <vector>

#include "tpsync/base/errors.h"
#include "tpsync/base/process.h"

namespace tpsync::rollout {

namespace {

constexpr std::size_t kTextBytesMax = kMiB;
constexpr double kSecondsMax = 1e8;  // three years
constexpr std::uint64_t kMebibytesMax = std::uint64_t{1} << 30;
// Of free-form values: aliases can make a small document unfold into a huge one.
constexpr std::size_t kFreeFormNodesMax = 10'000;
constexpr int kFreeFormDepthMax = 32;

[[noreturn]] void refuse_at(std::string_view origin, const YAML::Node& node, std::string_view path,
                            std::string_view detail) {
  const YAML::Mark mark = node.Mark();
  const std::string place =
      mark.is_null() ? std::string(origin) : fmt::format("{}:{}", origin, mark.line + 1);
  throw_invalid(ErrorKind::kInvalidConfig, path, fmt::format("{}: {}", place, detail));
}

// Takes no notice of what a document holds.
class Ignore final : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

// Not by YAML::LoadAll: there are texts of which it makes documents without end.
bool has_second_document(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  Ignore ignore;
  return parser.HandleNextDocument(ignore) && parser.HandleNextDocument(ignore);
}

bool quoted(const YAML::Node& node) { return node.Tag() == "!"; }

// A scalar's JSON value by YAML's core schema.
nlohmann::ordered_json scalar_value(const YAML::Node& node) {
  const std::string& text = node.Scalar();
  if (quoted(node)) return text;
  if (text.empty() || text == "~" || text == "null") return nullptr;
  if (text == "true") return true;
  if (text == "false") return false;
  const char* const end = text.data() + text.size();
  std::int64_t integer = 0;
  if (const auto parsed = std::from_chars(text.data(), end, integer);
      parsed.ec == std::errc() && parsed.ptr == end)
    return integer;
  double number = 0;
  if (const auto parsed = std::from_chars(text.data(), end, number);
      parsed.ec == std::errc() && parsed.ptr == end && std::isfinite(number))
    return number;
  return text;
}

// One mapping of the document.
class Section {
 public:
  Section(YAML::Node node, std::string path, std::string_view origin)
      : node_(std::move(node)), path_(std::move(path)), origin_(origin) {
    if (!node_.IsMap()) refuse_at(origin_, node_, subject(), "must be a mapping of keys to values");
    for (const auto& entry : node_) {
      if (!entry.first.IsScalar())
        refuse_at(origin_, entry.first, subject(), "has a key that is no text");
      const std::string key = entry.first.Scalar();
      if (!fields_.emplace(key, entry.second).second)
        refuse_at(origin_, entry.first, path_of(key), "stands twice; remove one");
      order_.emplace_back(key, entry.first);
    }
  }

  // Called when everything known was taken.
  void refuse_unknown() const {
    for (const auto& [key, node] : order_) {
      if (taken_.contains(key)) continue;
      std::string known;
      for (const std::string& name : taken_) known += (known.empty() ? "" : ", ") + name;
      refuse_at(origin_, node, path_of(key),
                fmt::format("is no key of this section; there are: {}", known));
    }
  }

  // nullopt if the key is absent.
  std::optional<YAML::Node> take(const std::string& key) {
    taken_.insert(key);
    const auto found = fields_.find(key);
    if (found == fields_.end()) return std::nullopt;
    return found->second;
  }

  void read(const std::string& key, bool& value) {
    read_scalar(key, "true or false", [&](const YAML::Node& node) {
      if (quoted(node) || (node.Scalar() != "true" && node.Scalar() != "false")) return false;
      value = node.Scalar() == "true";
      return true;
    });
  }
  void read(const std::string& key, std::int64_t& value) {
    read_scalar(key, "an integer",
                [&](const YAML::Node& node) { return number_from(node, value); });
  }
  void read(const std::string& key, double& value) {
    read_scalar(key, "a number", [&](const YAML::Node& node) {
      return number_from(node, value) && std::isfinite(value);
    });
  }
  // Any scalar is text, save null and what is left out.
  void read(const std::string& key, std::string& value) {
    read_scalar(key, "text", [&](const YAML::Node& node) {
      if (scalar_value(node).is_null()) return false;
      value = node.Scalar();
      return true;
    });
  }
  void read(const std::string& key, Duration& value) {
    read_scalar(key, "a number of seconds, at most 100000000",
                [&](const YAML::Node& node) { return seconds_from(node, value); });
  }
  void read_mebibytes(const std::string& key, std::uint64_t& bytes) {
    read_scalar(key, "a number of MiB from 0 to 1073741824", [&](const YAML::Node& node) {
      std::uint64_t count = 0;
      if (!number_from(node, count) || count > kMebibytesMax) return false;
      bytes = count * kMiB;
      return true;
    });
  }
  // null gives an empty value.
  template <typename Value>
  void read(const std::string& key, std::optional<Value>& value) {
    const auto node = take(key);
    if (!node) return;
    if (node->IsNull() || (node->IsScalar() && scalar_value(*node).is_null())) {
      value.reset();
      return;
    }
    Value given{};
    read(key, given);
    value = given;
  }
  void read(const std::string& key, JsonFields& fields) {
    const auto node = take(key);
    if (!node || node->IsNull()) return;
    const Section section(*node, path_of(key), origin_);
    fields.clear();
    std::size_t nodes = 0;
    for (const auto& [name, at] : section.order_)
      fields.emplace_back(
          name,
          section.free_form(section.fields_.at(name), section.path_of(name), 0, nodes).dump());
  }

  [[noreturn]] void refuse(const std::string& key, std::string_view detail) const {
    const auto found = fields_.find(key);
    refuse_at(origin_, found == fields_.end() ? node_ : found->second, path_of(key), detail);
  }
  std::string path_of(const std::string& key) const {
    const std::string name = key.empty() ? "\"\"" : key;
    return path_.empty() ? name : path_ + "." + name;
  }
  const std::vector<std::pair<std::string, YAML::Node>>& order() const { return order_; }

 private:
  std::string subject() const { return path_.empty() ? "config" : path_; }

  template <typename Take>
  void read_scalar(const std::string& key, std::string_view wanted, const Take& take_value) {
    const auto node = take(key);
    if (!node) return;
    if (!node->IsScalar() || !take_value(*node)) {
      const std::string found = node->IsScalar() ? fmt::format("\"{}\"", node->Scalar())
                                : node->IsNull() ? "null"
                                : node->IsMap()  ? "a mapping"
                                                 : "a list";
      refuse(key, fmt::format("is {}; must be {}{}", found, wanted,
                              node->IsScalar() && quoted(*node) ? ", without quotes" : ""));
    }
  }

  template <typename Number>
  static bool number_from(const YAML::Node& node, Number& value) {
    if (quoted(node)) return false;
    const std::string& text = node.Scalar();
    const char* const end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, value);
    return parsed.ec == std::errc() && parsed.ptr == end;
  }
  static bool seconds_from(const YAML::Node& node, Duration& value) {
    double seconds = 0;
    if (!number_from(node, seconds) || !(std::abs(seconds) <= kSecondsMax)) return false;
    value = Duration(std::llround(seconds * 1e9));
    return true;
  }

  nlohmann::ordered_json free_form(const YAML::Node& node, const std::string& path, int depth,
                                   std::size_t& nodes) const {
    if (depth > kFreeFormDepthMax || ++nodes > kFreeFormNodesMax)
      refuse_at(origin_, node, path, "is too large or too deeply nested");
    if (node.IsNull()) return nullptr;
    if (node.IsScalar()) return scalar_value(node);
    if (node.IsSequence()) {
      auto list = nlohmann::ordered_json::array();
      for (const auto& item : node) list.push_back(free_form(item, path, depth + 1, nodes));
      return list;
    }
    const Section section(node, path, origin_);
    auto object = nlohmann::ordered_json::object();
    for (const auto& [name, at] : section.order_)
      object[name] = free_form(section.fields_.at(name), section.path_of(name), depth + 1, nodes);
    return object;
  }

  YAML::Node node_;
  std::string path_;
  std::string_view origin_;
  std::map<std::string, YAML::Node> fields_;
  std::vector<std::pair<std::string, YAML::Node>> order_;  // keys as they stand
  std::set<std::string> taken_;
};

void read_rollout(Section& section, EngineConfig& config) {
  std::string runtime(to_string(config.runtime));
  section.read("runtime", runtime);
  if (runtime == "vllm")
    config.runtime = RuntimeKind::kVllm;
  else if (runtime != "native")
    section.refuse("runtime", fmt::format("is \"{}\"; must be native or vllm", runtime));
  section.read("pretrained_model_ckpt_path", config.pretrained_model_ckpt_path);
  section.read("model_revision", config.model_revision);
  section.read("tokenizer_revision", config.tokenizer_revision);
  section.read("tp_size", config.tp_size);
  section.read("trust_remote_code", config.trust_remote_code);
  section.read("dtype", config.dtype);
  section.read("moe_backend", config.moe_backend);
  section.read("quantization", config.quantization);
  section.read("enforce_eager", config.enforce_eager);
  section.read("enable_prefix_caching", config.enable_prefix_caching);
  section.read("enable_chunked_prefill", config.enable_chunked_prefill);
  section.read("logprobs_mode", config.logprobs_mode);
  section.read("max_prompt_length", config.max_prompt_length);
  section.read("max_new_tokens", config.max_new_tokens);
  section.read("temperature", config.temperature);
  section.read("top_p", config.top_p);
  section.read("top_k", config.top_k);
  section.read("ignore_eos", config.ignore_eos);
  section.read("request_timeout_s", config.request_timeout);
  section.read("startup_timeout_s", config.startup_timeout);
  section.read("generate_timeout_s", config.generate_timeout);
  section.read("weight_update_timeout_s", config.weight_update_timeout);
  section.read("health_timeout_s", config.health_timeout);
  section.read("sleep_timeout_s", config.sleep_timeout);
  section.read("wake_up_timeout_s", config.wake_up_timeout);
  section.read("shutdown_timeout_s", config.shutdown_timeout);
  section.read("system_instruction", config.system_instruction);
  section.read("chat_template_kwargs", config.chat_template_kwargs);
  section.read("engine_kwargs", config.engine_kwargs);
}

void read_name_remap(Section& section, std::string_view origin, sync::SyncOptions& options) {
  const auto node = section.take("name_remap");
  if (!node || node->IsNull()) return;
  Section remap(*node, section.path_of("name_remap"), origin);
  options.name_remap.clear();
  for (const auto& [pattern, at] : remap.order()) {
    std::optional<std::string> replacement;
    remap.read(pattern, replacement);
    options.name_remap.emplace_back(pattern, std::move(replacement));
  }
}

void read_sync(Section& section, std::string_view origin, sync::SyncOptions& options) {
  section.read_mebibytes("bucket_size_mb", options.bucket_bytes);
  section.read("flush_cache", options.flush_cache);
  section.read("lora_merged", options.lora_merged);
  section.read("adapter_name", options.adapter_name);
  read_name_remap(section, origin, options);
  std::optional<std::string> dtype;
  section.read("wire_dtype", dtype);
  if (dtype) {
    try {
      options.wire_dtype = sync::parse_wire_dtype(*dtype);
    } catch (const InvalidInput& error) {
      section.refuse("wire_dtype", error.record().detail);
    }
  }
  section.read_mebibytes("gpu_memory_headroom_mb", options.gpu_memory_headroom_bytes);
  section.read("control_timeout_s", options.control_timeout);
  section.read("last_committed_version", options.last_committed_version);
  section.read("content_digest", options.content_digest);
  std::string route(name_of(options.route));
  section.read("route", route);
  const auto known = wire::route_from(route);
  if (!known) section.refuse("route", fmt::format("is \"{}\"; must be gather or reshard", route));
  options.route = *known;
  std::optional<std::string> layout;
  section.read("layout", layout);
  if (!layout) return;
  if (*layout == "compact")
    options.layout = wire::Layout::kCompact;
  else if (*layout == "rank_major")
    options.layout = wire::Layout::kRankMajor;
  else
    section.refuse("layout",
                   fmt::format("is \"{}\"; must be null, compact or rank_major", *layout));
}

void read_trainer(Section& section, TrainerConfig& trainer) {
  section.read("weight_sync_interval", trainer.weight_sync_interval);
  section.read("enable_fsdp_offload", trainer.enable_fsdp_offload);
  section.read("rollout_shutdown_timeout_s", trainer.rollout_shutdown_timeout);
}

template <typename Read>
void read_section(Section& document, const std::string& name, std::string_view origin,
                  const Read& read) {
  const auto node = document.take(name);
  if (!node || node->IsNull()) return;
  Section section(*node, name, origin);
  read(section);
  section.refuse_unknown();
}

// The key of what a check refuses: options of the sync have other names in a file, and know of no
// section.
std::string key_of(std::string_view subject) {
  for (const std::string_view section : {"rollout.", "sync.", "trainer."})
    if (subject.starts_with(section)) return std::string(subject);
  if (subject == "bucket_bytes") return "sync.bucket_size_mb";
  if (subject == "control_timeout") return "sync.control_timeout_s";
  return fmt::format("sync.{}", subject);
}

template <typename Check>
void check_file(const std::string& path, const Check& check) {
  try {
    check();
  } catch (const InvalidInput& error) {
    ErrorRecord record = error.record();
    record.subject = key_of(record.subject);
    record.detail = fmt::format("{}: {}", path, record.detail);
    throw InvalidInput(std::move(record));
  }
}

double in_seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

ConfigFile parse_config(std::string_view text, std::string_view origin) {
  const auto refuse = [&](std::string_view detail) {
    throw_invalid(ErrorKind::kInvalidConfig, "config", fmt::format("{}: {}", origin, detail));
  };
  if (text.size() > kTextBytesMax) refuse("is larger than 1 MiB");
  ConfigFile config;
  try {
    const std::string whole(text);
    if (has_second_document(whole)) refuse("holds several documents; use one");
    const YAML::Node root = YAML::Load(whole);
    if (root.IsNull()) return config;
    Section document(root, "", origin);
    read_section(document, "rollout", origin,
                 [&](Section& section) { read_rollout(section, config.rollout); });
    read_section(document, "sync", origin,
                 [&](Section& section) { read_sync(section, origin, config.sync); });
    read_section(document, "trainer", origin,
                 [&](Section& section) { read_trainer(section, config.trainer); });
    document.refuse_unknown();
  } catch (const YAML::Exception& error) {
    refuse(fmt::format("is neither YAML nor JSON: line {}, column {}", error.mark.line + 1,
                       error.mark.column + 1));
  } catch (const nlohmann::json::exception&) {
    refuse("holds text that is not UTF-8");
  }
  return config;
}

ConfigFile load_config(const std::string& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  std::string text;
  if (!error && size <= kTextBytesMax) {
    text.resize(size);
    file.read(text.data(), static_cast<std::streamsize>(size));
  }
  if (error || size > kTextBytesMax || !file)
    throw_invalid(ErrorKind::kInvalidConfig, "config",
                  fmt::format("{}: cannot be read, or is larger than 1 MiB", path));
  ConfigFile config = parse_config(text, path);
  check_file(path, [&] {
    check_config(config.rollout,
                 std::filesystem::exists(config.rollout.pretrained_model_ckpt_path, error));
    sync::check_options(config.sync);
    check_budgets(config);
  });
  return config;
}

void check_budgets(const ConfigFile& config) {
  const CommandTimeouts timeouts = command_timeouts(config.rollout);
  const double kill = in_seconds(kKillAllowance);
  if (config.sync.control_timeout <= timeouts.weight_update + kKillAllowance)
    throw_invalid(ErrorKind::kInvalidConfig, "sync.control_timeout_s",
                  fmt::format("is {}; must exceed the weight update timeout of {} by more than {}, "
                              "the time that ending a runtime takes at most",
                              in_seconds(config.sync.control_timeout),
                              in_seconds(timeouts.weight_update), kill));
  const Duration shutdown = 2 * timeouts.shutdown + kKillAllowance;
  if (config.trainer.rollout_shutdown_timeout < shutdown)
    throw_invalid(
        ErrorKind::kInvalidConfig, "trainer.rollout_shutdown_timeout_s",
        fmt::format("is {}; must be at least {}: the shutdown timeout of {} for the request and "
                    "again for the runtime's end, and {} for ending it by force",
                    in_seconds(config.trainer.rollout_shutdown_timeout), in_seconds(shutdown),
                    in_seconds(timeouts.shutdown), kill));
  if (config.trainer.weight_sync_interval < 1)
    throw_invalid(ErrorKind::kInvalidConfig, "trainer.weight_sync_interval",
                  fmt::format("is {}; must be at least 1", config.trainer.weight_sync_interval));
}

}  // namespace tpsync::rollout
