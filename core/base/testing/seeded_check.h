// RapidCheck from a fixed seed, so that a test fails for everybody or for nobody. RC_PARAMS
// searches further: RC_PARAMS="seed=7 max_success=20000 max_size=200".
#pragma once

#include <rapidcheck.h>
#include <rapidcheck/state.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

namespace tpsync::fakes {

// False if the property fails; RapidCheck prints the shrunk case and how to reproduce it.
template <typename Testable>
bool holds_from_fixed_seed(const std::string& what, Testable&& testable) {
  setenv("RC_PARAMS", "seed=1 max_success=200 max_size=50", 0);
  return rc::check(what, std::forward<Testable>(testable));
}

// Any of [low, high), whatever the size of the case: inRange alone keeps to its begin in small
// ones.
template <typename Number>
rc::Gen<Number> any_of(Number low, Number high) {
  return rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, high));
}

// Runs drawn commands, each on a model and on what `make` makes of the code under test.
template <typename Command, typename Make>
bool model_holds(const std::string& what, Make make) {
  using Model = typename Command::Model;
  return holds_from_fixed_seed(what, [&] {
    const auto commands = *rc::state::gen::commands(Model(), [](const Model&) {
      return rc::gen::exec([]() -> std::shared_ptr<const typename Command::CommandType> {
        return std::make_shared<const Command>();
      });
    });
    auto sut = make();
    rc::state::runAll(commands, Model(), *sut);
  });
}

}  // namespace tpsync::fakes
