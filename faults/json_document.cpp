#include "faults/json_document.h"

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tpsync/base/errors.h"

namespace tpsync::faults {
namespace {

using Json = nlohmann::ordered_json;

// Follows a parser through the document, to where it stands.
class Place {
 public:
  // False for a field that its object has already.
  bool take(Json::parse_event_t event, const Json& value) {
    switch (event) {
      case Json::parse_event_t::object_start:
        open_.push_back({.is_array = false});
        return true;
      case Json::parse_event_t::array_start:
        open_.push_back({.is_array = true});
        return true;
      case Json::parse_event_t::key:
        open_.back().field = value.get<std::string>();
        return open_.back().fields.insert(open_.back().field).second;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        open_.pop_back();
        break;
      case Json::parse_event_t::value:
        break;
    }
    if (!open_.empty()) ++open_.back().items;
    return true;
  }
  std::string text() const {
    std::string text;
    for (const Level& level : open_) {
      if (level.is_array)
        text += "[" + std::to_string(level.items) + "]";
      else
        text += (text.empty() ? "" : ".") + level.field;
    }
    return text;
  }

 private:
  struct Level {
    bool is_array = false;
    std::size_t items = 0;         // that are complete
    std::set<std::string> fields;  // of an object
    std::string field;             // the latest
  };
  std::vector<Level> open_;
};

}  // namespace

Json parse_document(std::string_view text, std::string_view what) {
  Place place;
  const auto watch = [&place](int, Json::parse_event_t event, const Json& value) {
    if (!place.take(event, value))
      throw_invalid(ErrorKind::kInvalidConfig, place.text(), "stands twice; remove one");
    return true;
  };
  try {
    return Json::parse(text, watch);
  } catch (const Json::parse_error& error) {
    throw_invalid(ErrorKind::kInvalidConfig, what,
                  "is not JSON: the text breaks off or goes wrong at byte " +
                      std::to_string(error.byte) + "; correct it there");
  }
}

}  // namespace tpsync::faults
