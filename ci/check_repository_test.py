#!/usr/bin/env python3
"""Each rule of check_repository.py finds its violation in a small tree, and none in a clean one."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import check_repository as check  # noqa: E402

HEAD = "// Says what it does.\n#pragma once\n"
CLEAN = {
    "CMakeLists.txt": "", "README.md": "Read README.md.\n",
    "core/base/CMakeLists.txt": "a.cpp a_test.cpp os_a.cpp", "core/base/a.h": HEAD,
    "core/base/a.cpp": '#include "tpsync/base/a.h"\nint f() { return 1\'000; }\n',
    "core/base/a_test.cpp": '#include "tpsync/base/a.h"\n',
    "core/base/os_a.cpp": "#include <thread>\nvoid g() { fork(); }\n",
    "core/model/CMakeLists.txt": "", "core/model/tp_layout.h": HEAD, "core/model/plan.h": HEAD,
    "sim/a.h": HEAD + '#include "tpsync/base/a.h"\n', "faults/a.h": HEAD,
    "conformance/a.h": HEAD + '#include "sim/a.h"\n#include "faults/a.h"\n',
    "bench/a.h": HEAD,
    "ci/run": "#!/usr/bin/env bash\n# --help\nset -euo pipefail\n",
}

# Rule, file, content, and what the finding's text holds. Content is the whole file.
SEEDED = [
    ("top_level", "extra/file.txt", "", "top level"),
    ("listed_sources", "core/base/b_test.cpp", "", "no target"),
    ("file_length", "core/base/b.h", HEAD + "\n" * 700, "split"),
    ("line_length", "core/base/b.h", HEAD + "// " + "x" * 98 + "\n", "101 columns"),
    ("head_comment", "core/base/b.h", "#pragma once\n", "comment"),
    ("pragma_once", "core/base/b.h", "// Head.\n", "#pragma once"),
    ("scripts_run", "ci/b", "#!/usr/bin/env bash\n# --help\n", "pipefail"),
    ("scripts_run", "ci/b", "#!/usr/bin/env bash\nset -euo pipefail\n", "--help"),
    ("unfinished_work", "core/base/b.h", HEAD + "// TO" + "DO later\n", "finish"),
    ("unfinished_work", "README.md", "FIX" + "ME\n", "finish"),
    ("own_documents", "core/base/b.h", HEAD + "// see notes/absent.m" + "d\n", "absent"),
    ("own_documents", "README.md", "run /ho" + "me/me/x\n", "outside"),
    ("named_tests_exist", "sim/README.md", "shown by `Fork.Forks`\n", "no test Fork.Forks"),
    ("includes_exist", "core/base/b.h", HEAD + '#include "tpsync/base/none.h"\n', "none.h"),
    ("includes_exist", "sim/b.h", HEAD + '#include "a.h"\n', "from the root"),
    ("include_layers", "core/base/b.h", HEAD + '#include "sim/a.h"\n', "never includes sim"),
    ("include_layers", "core/base/b.h", HEAD + '#include "tpsync/model/plan.h"\n', "not above"),
    ("include_layers", "sim/b.h", HEAD + '#include "faults/a.h"\n', "never includes faults"),
    ("layout_is_the_runtimes", "core/sync/b.h", HEAD + '#include "tpsync/model/tp_layout.h"\n',
     "tp_layout"),
    ("layout_is_the_runtimes", "core/transfer/sender.h",
     HEAD + '#include "tpsync/model/tp_layout.h"\n', "tp_layout"),
    ("exporter_is_independent", "core/trainer/b.h", HEAD + '#include "tpsync/model/plan.h"\n',
     "plan.h"),
    ("judge_is_independent", "conformance/judge.h", HEAD + '#include "conformance/a.h"\n',
     "core/base/a.h"),
    ("heavy_libraries", "core/sync/b.h", HEAD + "#include <torch/torch.h>\n", "LibTorch"),
    ("heavy_libraries", "sim/b.h", HEAD + "#include <cuda_runtime.h>\n", "CUDA"),
    ("heavy_libraries", "core/sync/b.h", HEAD + "#include <nccl.h>\n", "NCCL"),
    ("heavy_libraries", "core/sync/b.h", HEAD + "#include <gloo/context.h>\n", "Gloo"),
    ("heavy_libraries", "core/base/b.h", HEAD + "#include <spdlog/spdlog.h>\n", "tpsync::Log"),
    ("seams", "core/sync/b.h", HEAD + "auto t = std::chrono::steady_clock::now();\n", "Clock"),
    ("seams", "sim/b.h", HEAD + "void f() { usleep(1); }\n", "Clock"),
    ("seams", "core/base/b.h", HEAD + "auto p = fork();\n", "ProcessLauncher"),
    ("seams", "core/base/b.h", HEAD + "int i = rand();\n", "Random"),
    ("seams", "faults/b.h", HEAD + 'auto e = std::getenv("A");\n', "Host"),
    ("seams", "core/base/b.h", HEAD + "std::mutex m;\n", "Threads"),
    ("seams", "core/sync/b_test.cpp", "#include <thread>\n", "Threads"),
    ("seams", "sim/b.h", HEAD + "#include <sys/wait.h>\n", "Process"),
    ("seams", "core/device/b.h", HEAD + "#include <sys/mman.h>\n", "os_"),
    ("catch_all", "core/base/b.h", HEAD + "void f() { try {} catch (...) {} }\n", "std::exception"),
    ("determinism", "sim/b.h", HEAD + "#include <random>\n", "by key"),
    ("determinism", "sim/b.h", HEAD + "std::unordered_map<int, int> m;\n", "std::map"),
    ("determinism", "faults/b.h", HEAD + "std::set<const Rank*> m;\n", "addresses"),
    ("determinism", "core/base/b.h", HEAD + "auto s = __func__;\n", "constant"),
    ("determinism", "core/base/b.h", HEAD + "auto s = fmt::ptr(p);\n", "id"),
    ("determinism", "core/base/b.h", HEAD + "std::hash<int> h;\n", "mix64"),
    ("library_texts", "core/base/b.h", HEAD + "auto s = error.what();\n", "record_of"),
    ("singletons", "core/base/b.h", HEAD + "int f() {\n  static int count = 0;\n}\n", "constexpr"),
    ("singletons", "sim/b.h", HEAD + "X& f() {\n  static const X x{1};\n}\n", "constexpr"),
    ("singletons", "core/base/b.h", HEAD + "thread_local int x;\n", "fibers"),
    ("tests_never_sleep", "core/base/b_test.cpp", "void f() { sleep(1); }\n", "signal or byte"),
]

# Allowed, although it looks like a violation.
INNOCENT = {
    "core/base/b.h": HEAD + "class C {\n  static C make(int a = 1);\n"
                     "  static constexpr int kA = 1;\n"
                     "  std::unordered_map<int, int> m;  // lookup only\n};\n"
                     "// In words: catch (...), rand(), std::mutex, TODOs.\n"
                     'constexpr auto kText = "std::mutex fork() catch (...)";\n',
    "core/base/c.h": HEAD + "void f(Device& d) { d.sleep(1); d.kill(2); clock.sleep_until(t); }\n",
    "core/base/testing/b.h": HEAD + "struct B final : A { void sleep() override; };\n",
    "core/runtime/native_engine.h": HEAD + "#include <torch/torch.h>\n",
    "core/collective/b.h": HEAD + '#include "tpsync/device/b.h"\n#include <nccl.h>\n',
    "core/device/b.h": HEAD + "#include <cuda_runtime.h>\n",
    "core/device/os_b.h": HEAD + "#include <pthread.h>\n#include <sys/mman.h>\n",
    "core/runtime/b.h": HEAD + '#include "tpsync/model/tp_layout.h"\n',
}


class Trees(unittest.TestCase):
    def setUp(self):
        self.root = Path(tempfile.mkdtemp(prefix="tpsync-check-"))
        self.addCleanup(shutil.rmtree, self.root)
        for path, content in CLEAN.items():
            self.write(path, content)

    def write(self, path, content):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        if content.startswith("#!"):
            file.chmod(0o755)

    def findings(self):
        tree = check.Tree(self.root)
        return [(rule.__name__, finding.path, finding.message)
                for rule in check.TEXT_RULES for finding in rule(tree)]

    def test_clean_tree_has_no_findings(self):
        self.assertEqual(self.findings(), [])

    def test_what_only_looks_like_a_violation_is_let_through(self):
        for path, content in INNOCENT.items():
            self.write(path, content)
        self.assertEqual(self.findings(), [])

    def test_every_rule_finds_its_violation_and_no_other_rule_speaks(self):
        for rule, path, content, words in SEEDED:
            with self.subTest(rule=rule, content=content):
                before = (self.root / path).read_text() if (self.root / path).exists() else None
                self.write(path, content)
                if path.endswith(".cpp") and rule != "listed_sources":
                    self.write(os.path.dirname(path) + "/CMakeLists.txt", "\n".join(
                        name.name for name in (self.root / path).parent.glob("*.cpp")))
                found = self.findings()
                self.assertEqual({name for name, _, _ in found}, {rule})
                self.assertTrue(any(words in message for _, _, message in found), found)
                if before is None:
                    (self.root / path).unlink()
                else:
                    self.write(path, before)

    def test_every_rule_has_a_seeded_violation(self):
        self.assertEqual({rule for rule, _, _, _ in SEEDED},
                         {rule.__name__ for rule in check.TEXT_RULES})

    def test_missing_top_level_entry_is_found(self):
        (self.root / "README.md").unlink()
        self.assertEqual(self.findings(), [("top_level", "README.md",
                                            "the top level is fixed: this is missing")])

    def test_script_that_is_not_executable_is_found(self):
        (self.root / "ci/run").chmod(0o644)
        self.assertEqual([name for name, _, _ in self.findings()], ["scripts_run"])

    def test_layout_is_found_behind_another_header(self):
        self.write("core/transfer/loader.h", HEAD + '#include "tpsync/model/tp_layout.h"\n')
        self.write("core/sync/b.h", HEAD + '#include "tpsync/transfer/loader.h"\n')
        self.assertEqual([(name, path) for name, path, _ in self.findings()],
                         [("layout_is_the_runtimes", "core/sync/b.h")])

    def test_files_that_git_ignores_are_not_looked_at(self):
        subprocess.run(["git", "init", "-q", str(self.root)], check=True)
        self.write(".gitignore", "/build*/\n")
        self.write("build-x/b.h", "")
        self.assertEqual(self.findings(), [])

    def test_header_that_needs_another_one_before_it_is_found(self):
        compiler = os.environ.get("CXX", "c++")
        if shutil.which(compiler.split()[0]) is None:
            self.skipTest(f"{compiler} is not installed")
        (self.root / "include").mkdir()
        (self.root / "include/tpsync").symlink_to(self.root / "core")
        tree = check.Tree(self.root)
        folders = [self.root / "include"]
        self.assertEqual(list(check.headers_compile_alone(tree, compiler, folders)), [])
        self.write("core/base/b.h", HEAD + "inline std::string f() { return {}; }\n")
        found = list(check.headers_compile_alone(check.Tree(self.root), compiler, folders))
        self.assertEqual([finding.path for finding in found], ["core/base/b.h"])

    def test_writable_objects_are_found_in_archives_and_constants_are_not(self):
        compiler = os.environ.get("CXX", "c++")
        if shutil.which(compiler.split()[0]) is None or shutil.which("objdump") is None:
            self.skipTest("no compiler or objdump is installed")
        source = """
            namespace tpsync {
            struct Thing { Thing(); };
            int counter = 1;
            static int zero;
            int& reach() { return zero; }
            thread_local int each = 2;
            Thing& single() { static Thing thing; return thing; }
            extern const char* const kNames[] = {"one", "two"};
            struct Base { virtual void f(); };
            void Base::f() {}
            }
        """
        folder = self.root / "build/core/base"
        folder.mkdir(parents=True)
        subprocess.run([*compiler.split(), "-std=c++20", "-fPIC", "-x", "c++", "-c", "-", "-o",
                        str(folder / "x.o")], input=source, text=True, check=True)
        subprocess.run(["ar", "rcs", str(folder / "libtpsync_base.a"), str(folder / "x.o")],
                       check=True)
        found = {finding.message.split(" is writable")[0].split("::", 1)[1]
                 for finding in check.no_writable_statics(self.root / "build")}
        self.assertEqual(found, {"counter", "zero", "each", "single()::thing"})


if __name__ == "__main__":
    unittest.main()
