// Delta debugging: the elements of a list that a property needs, found by leaving out ever smaller
// parts. The result is minimal in that no single element can be left out, as far as the property
// was asked.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tpsync::conformance {

// `holds` is true of `items`, and is asked for sublists in the order of `items`.
template <typename Item, typename Holds>
std::vector<Item> minimized(std::vector<Item> items, Holds holds) {
  if (items.empty() || holds(std::vector<Item>{})) return {};
  std::size_t parts = 2;
  while (items.size() >= 2) {
    const std::size_t size = (items.size() + parts - 1) / parts;
    bool removed = false;
    // From the back: what comes last depends on what comes before it, not the other way round.
    for (std::size_t part = (items.size() + size - 1) / size; part-- > 0;) {
      const std::size_t begin = part * size;
      const std::size_t end = std::min(begin + size, items.size());
      std::vector<Item> rest;
      for (std::size_t i = 0; i < items.size(); ++i) {
        if (i < begin || i >= end) rest.push_back(items[i]);
      }
      if (rest.empty() || !holds(rest)) continue;
      items = std::move(rest);
      removed = true;
      break;
    }
    if (removed) {
      parts = std::max<std::size_t>(parts - 1, 2);
    } else if (size == 1) {
      return items;
    } else {
      parts = std::min(parts * 2, items.size());
    }
  }
  return items;
}

}  // namespace tpsync::conformance
