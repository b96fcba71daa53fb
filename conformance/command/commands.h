// The subcommands of tpsync. Each adds its flags to the application and, when chosen, stores what
// is to be run.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace tpsync::conformance {

using Command = std::function<int()>;

void add_plan_command(CLI::App& app, Command& command);
void add_run_command(CLI::App& app, Command& command);
void add_list_commands(CLI::App& app, Command& command);  // list, describe
void add_explore_command(CLI::App& app, Command& command);
void add_merge_command(CLI::App& app, Command& command);
void add_shrink_command(CLI::App& app, Command& command);
void add_replay_command(CLI::App& app, Command& command);
void add_judge_command(CLI::App& app, Command& command);
void add_hash_command(CLI::App& app, Command& command);
void add_publish_command(CLI::App& app, Command& command);
void add_doctor_command(CLI::App& app, Command& command);

}  // namespace tpsync::conformance
