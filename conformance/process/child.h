// Children of the harness that go on with its memory: actors, and harnesses of single worlds.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

namespace tpsync::conformance {

// Forks: this process has one thread. The child runs `body` and ends with the status that it
// returns, or with 70 and a line on standard error if it throws a std::exception; it never returns
// from here, and is killed when this process ends. Throws RuntimeBroken kIo if the system has no
// room for a process; then there is none.
pid_t fork_child(const std::string& name, const std::function<int()>& body);

// From now on this process can wait for its children, also where whoever started it had told it to
// ignore their ends, which a program inherits.
void collect_children();

}  // namespace tpsync::conformance
