#!/usr/bin/env python3
"""Checks the rules of this repository that a program can check.

Each rule is one function below: its name is printed with every finding, its message says what to
write instead. Text rules look at the files alone. Two more need a build: `--compiler` compiles
every header alone, `--archives` looks for writable statics in the built core libraries.

Exit status: 0 without findings, 1 with findings, 64 for wrong usage.
"""

import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
from pathlib import Path

TOP_LEVEL = {"CMakeLists.txt", "README.md", "core", "sim", "faults", "conformance", "bench", "ci"}
HARNESS = ("sim", "faults", "conformance", "bench")

# A folder of core may include itself, folders of lower layers, and what SAME_LAYER adds.
LAYERS = {
    "base": 0, "wire": 1, "device": 1, "collective": 1, "model": 2, "transfer": 3, "trainer": 4,
    "sync": 4, "rollout": 5, "runtime": 6,
}
SAME_LAYER = {("collective", "device")}

# Outside core: which top-level folders a folder may include.
MAY_INCLUDE = {
    "core": {"core"},
    "sim": {"core", "sim"},
    "faults": {"core", "faults"},
    "conformance": {"core", "sim", "faults", "conformance"},
    "bench": {"core", "sim", "faults", "conformance", "bench"},
    "ci": {"core"},
}

MAX_LINES = 700
# Longer files, with the length that they may not exceed. Entries are lowered or removed, not added.
LONGER_FILES = {}
MAX_COLUMNS = 100

CODE = (".h", ".cpp", ".cu")
TEXT = CODE + (".py", ".cmake", ".txt", ".sh")


class Finding:
    def __init__(self, path, line, message):
        self.path, self.line, self.message = path, line, message


def strip_code(text):
    """The text without comments, and with empty string and character literals; lines stay."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)

    def replace(match):
        token = match.group(0)
        if token[0] == "'" and re.match(r"\w", text[match.start() - 1:match.start()]):
            return token  # a digit separator
        kept = "\n" * token.count("\n")
        return kept if token.startswith("/") else ('""' if token[0] in 'R"' else "' '") + kept

    # An include keeps its path.
    return "\n".join(
        line if line.lstrip().startswith("#include") else stripped
        for line, stripped in zip(text.split("\n"), pattern.sub(replace, text).split("\n")))


class Tree:
    """The repository's files: what git knows or would add, else all that isn't hidden or built."""

    def __init__(self, root):
        self.root = Path(root)
        self.files = sorted(self._list())
        self._text = {}
        self._code = {}

    def _list(self):
        if (self.root / ".git").exists():
            output = subprocess.run(
                ["git", "-c", "safe.directory=*", "-C", str(self.root), "ls-files", "-z",
                 "--cached", "--others", "--exclude-standard"], capture_output=True, check=False)
            if output.returncode == 0:
                names = output.stdout.decode().split("\0")
                return [name for name in set(names) if name and (self.root / name).is_file()]
        found = []
        for folder, folders, names in os.walk(self.root):
            here = Path(folder).relative_to(self.root)
            at_root = here == Path(".")
            folders[:] = [f for f in folders if f == ".ci" or not f.startswith(".")]
            if at_root:
                folders[:] = [f for f in folders if not f.startswith("build")]
            found += [(here / name).as_posix() for name in names]
        return found

    def text(self, path):
        if path not in self._text:
            self._text[path] = (self.root / path).read_bytes().decode("utf-8", "replace")
        return self._text[path]

    def code(self, path):
        if path not in self._code:
            self._code[path] = strip_code(self.text(path))
        return self._code[path]

    def lines(self, path):
        return enumerate(self.text(path).splitlines(), 1)

    def code_lines(self, path):
        """Number, code without comments, and the line as written."""
        return [(number, code, raw) for number, (code, raw) in enumerate(
            zip(self.code(path).split("\n"), self.text(path).split("\n")), 1)]

    def sources(self, *tops, tests=True):
        return [path for path in self.files
                if path.endswith(CODE) and path.split("/")[0] in tops
                and (tests or not is_test(path))]

    def scripts(self):
        return [path for path in self.files
                if path.split("/")[0] in ("ci", ".ci") and self.text(path).startswith("#!")]

    def includes(self, path):
        """(line, path in the repository or None, as written) of every quoted include."""
        result = []
        for number, code, _ in self.code_lines(path):
            match = re.match(r'\s*#\s*include\s+"([^"]+)"', code)
            if match:
                written = match.group(1)
                target = ("core/" + written[len("tpsync/"):] if written.startswith("tpsync/")
                          else written)
                result.append((number, target if target in self.files else None, written))
        return result

    def reached(self, path):
        """Every file of the repository that `path` includes, directly or not."""
        seen, queue = set(), [path]
        while queue:
            for _, target, _ in self.includes(queue.pop()):
                if target and target not in seen:
                    seen.add(target)
                    queue.append(target)
        return seen


def is_test(path):
    return re.search(r"_test(_\w+)?\.(cpp|h)$|/testing/", path) is not None


def search(tree, paths, pattern, message, mark=None):
    """A finding for every line of code that matches, unless its comment holds `mark`."""
    regex = re.compile(pattern)
    for path in paths:
        for number, code, raw in tree.code_lines(path):
            if regex.search(code) and not (mark and mark in raw):
                yield Finding(path, number, message)


# ---- rules about the tree -----------------------------------------------------------------------


def top_level(tree):
    present = {path.split("/")[0] for path in tree.files}
    for name in sorted(TOP_LEVEL - present):
        yield Finding(name, 0, "the top level is fixed: this is missing")
    for name in sorted(present - TOP_LEVEL):
        if not name.startswith("."):
            yield Finding(name, 0, "the top level is fixed: move it into the folder it belongs to")


def listed_sources(tree):
    for path in tree.files:
        if not path.endswith(".cpp"):
            continue
        folder, name = os.path.split(path)
        lists = os.path.join(folder, "CMakeLists.txt")
        while lists not in tree.files and folder:
            folder = os.path.dirname(folder)
            lists = os.path.join(folder, "CMakeLists.txt")
        if lists not in tree.files or name not in tree.text(lists):
            yield Finding(path, 0, "belongs to no target: list it in its folder's CMakeLists.txt")


def file_length(tree):
    for path in tree.files:
        if not path.endswith(TEXT):
            continue
        lines = tree.text(path).count("\n")
        limit = LONGER_FILES.get(path, MAX_LINES)
        if lines > limit:
            yield Finding(path, lines,
                          f"has {lines} lines, {limit} are allowed: split it by subject")


def line_length(tree):
    for path in tree.files:
        if not (path.endswith(TEXT) or path in tree.scripts()):
            continue
        for number, line in tree.lines(path):
            if len(line) > MAX_COLUMNS and "http" not in line:
                yield Finding(path, number, f"has {len(line)} columns, {MAX_COLUMNS} are allowed: "
                                            "run clang-format, or break the line")


def head_comment(tree):
    for path in tree.sources("core", *HARNESS):
        if path.endswith(".h") and not tree.text(path).startswith("// "):
            yield Finding(path, 1, "starts with a comment that says what the file does and which "
                                   "rules it keeps")


def pragma_once(tree):
    for path in tree.sources("core", *HARNESS):
        if path.endswith(".h") and not re.search(r"^#pragma once$", tree.text(path), re.M):
            yield Finding(path, 1, "write #pragma once below the head comment")


def scripts_run(tree):
    for path in tree.scripts():
        if not os.access(tree.root / path, os.X_OK):
            yield Finding(path, 1, "is a script: make it executable (chmod +x)")
        text = tree.text(path)
        if "bash" in text.split("\n")[0]:
            if not re.search(r"^set -euo pipefail$", text, re.M):
                yield Finding(path, 1, "write 'set -euo pipefail' before the first command")
            if path.startswith("ci/") and "--help" not in text:
                yield Finding(path, 1, "answers --help with what it does and its options")


def unfinished_work(tree):
    word = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    for path in tree.files:
        if path.endswith(TEXT + (".md",)) or path in tree.scripts():
            for number, line in tree.lines(path):
                if word.search(line):
                    yield Finding(path, number, "finish it, or say what is not there")


def own_documents(tree):
    """The project speaks of itself alone: a document that is named exists in the tree."""
    document = re.compile(r"[\w./-]*\w\.md\b")
    outside = re.compile(r"(?<![\w.$}])/(?:work|home|root|Users)/\w|(?<!\w)\.\./\w*shared/")
    names = {os.path.basename(path) for path in tree.files} | TOP_LEVEL
    for path in tree.files:
        if not path.endswith(TEXT + (".md", ".json")) and path not in tree.scripts():
            continue
        for number, line in tree.lines(path):
            for match in document.finditer(line):
                if "http" not in line and os.path.basename(match.group(0)) not in names:
                    yield Finding(path, number, f"{match.group(0)} is not in this tree: state the "
                                                "rule itself, or name a document that is")
            if outside.search(line) and "http" not in line:
                yield Finding(path, number, "names a path outside the tree: use a relative one")


def named_tests_exist(tree):
    """A test that sim/README.md names for a rule of the simulator exists under that name."""
    cases = set()
    for path in tree.files:
        if path.endswith("_test.cpp"):
            for _, line in tree.lines(path):
                cases.update(re.findall(r"^TEST(?:_F|_P)?\((\w+, \w+)", line))
    for number, line in tree.lines("sim/README.md") if "sim/README.md" in tree.files else []:
        for suite, case in re.findall(r"`([A-Z]\w+)\.([A-Z]\w+)`", line):
            if f"{suite}, {case}" not in cases:
                yield Finding("sim/README.md", number, f"there is no test {suite}.{case}: name the "
                                                       "one that shows this rule on the real thing")


# ---- rules about includes -----------------------------------------------------------------------


def includes_exist(tree):
    for path in tree.sources("core", *HARNESS):
        for number, target, written in tree.includes(path):
            if target is None:
                yield Finding(path, number, f'"{written}" is not in the tree: write '
                                            '"tpsync/<folder>/x.h" for core, else the path from '
                                            "the root; libraries in angle brackets")


def include_layers(tree):
    for path in tree.sources(*MAY_INCLUDE):
        top = path.split("/")[0]
        for number, target, _ in tree.includes(path):
            if target is None:
                continue
            target_top = target.split("/")[0]
            if target_top not in MAY_INCLUDE[top]:
                yield Finding(path, number, f"{top}/ never includes {target_top}/: depend on an "
                                            "interface of core instead")
            elif top == "core" and target_top == "core":
                own, other = path.split("/")[1], target.split("/")[1]
                lower = LAYERS.get(other, 99) < LAYERS.get(own, 99)
                if own != other and not lower and (own, other) not in SAME_LAYER:
                    yield Finding(path, number, f"core/{own} is not above core/{other}: move the "
                                                "shared part down, or hand in an interface")


def layout_is_the_runtimes(tree):
    """Trainer, sync and sender never learn the TP layout, not even through another header."""
    for path in tree.sources("core", tests=False):
        folder, name = path.split("/")[1], os.path.basename(path)
        if folder in ("trainer", "sync") or (folder == "transfer" and name.startswith("sender")):
            if "core/model/tp_layout.h" in tree.reached(path):
                yield Finding(path, 0, "reaches model/tp_layout.h: the runtime alone knows the TP "
                                       "layout; use the manifest and the copy plan's inputs")


def exporter_is_independent(tree):
    """Planner and exporter check each other, so the exporter never sees the plan."""
    for path in tree.sources("core", tests=False):
        if path.startswith("core/trainer/") and "core/model/plan.h" in tree.reached(path):
            yield Finding(path, 0, "reaches model/plan.h: the exporter enumerates from the shards "
                                   "that it holds")


def judge_is_independent(tree):
    for path in tree.sources("conformance"):
        if re.match(r"conformance/judge(/|\w*\.)", path) and not is_test(path):
            for reached in sorted(tree.reached(path)):
                if reached.startswith("core/"):
                    yield Finding(path, 0, f"reaches {reached}: the judge shares nothing with what "
                                           "it judges; define the constant again")


def heavy_libraries(tree):
    allowed = [
        (r"<(torch|ATen|c10)/", r"core/runtime/native|core/\w+/torch_|bench/", "LibTorch"),
        (r"<(cuda|cublas|driver_types)",
         r"core/(device|collective)/(?!host)|bench/|conformance/process/gpu_", "CUDA"),
        (r"<nccl", r"core/collective/|bench/", "NCCL"),
        (r"<gloo/", r"core/collective/|bench/", "Gloo"),
    ]
    for pattern, places, library in allowed:
        paths = [p for p in tree.sources("core", *HARNESS) if not re.match(places, p)]
        yield from search(tree, paths, r"#\s*include\s+" + pattern,
                          f"{library} stays behind its interface: use device/ or collective/")
    paths = [p for p in tree.sources("core") if p != "core/base/spdlog_sink.cpp"]
    yield from search(tree, paths, r"#\s*include\s+<spdlog/", "log through tpsync::Log")


# ---- rules about code ---------------------------------------------------------------------------


def seams(tree):
    """Core, sim and faults reach the outside through interfaces, which core's os_* files implement.
    """
    at_os = re.compile(r"core/\w+/os_|core/base/spdlog_sink")
    paths = [path for path in tree.sources("core", "sim", "faults")
             if not at_os.match(path) and not (is_test(path) and path.startswith("core/base/"))]
    rules = [
        (r"\b(steady|system|high_resolution)_clock\b|\bclock_gettime\b|\bgettimeofday\b"
         r"|(?<![\w.>:])time\s*\(\s*(NULL|nullptr|0)", "read time through tpsync::Clock"),
        (r"\bstd::this_thread\b|\b(u|nano|clock_nano)sleep\s*\(|(?<![\w.>])sleep\s*\(\s*\d",
         "wait through tpsync::Clock, or on a channel, group or condition with a deadline"),
        (r"(?<![\w.>:])v?fork\s*\(\s*\)|(?<![\w.>:])exec[vl][pe]*\s*\(|\bposix_spawn|\bpopen\s*\("
         r"|(?<![\w:])std::system\s*\(", "start processes through tpsync::ProcessLauncher"),
        (r"\bgetrandom\s*\(|\brandom_device\b|(?<![\w.>:])s?rand\s*\(",
         "draw through tpsync::Random, in sim by key"),
        (r"\b(secure_)?getenv\s*\(|\bsetenv\s*\(|\bgethostname\s*\(|(?<![\w.>:])getpp?id\s*\(",
         "ask tpsync::Host"),
        (r"\bstd::(jthread|thread|mutex|recursive_mutex|shared_mutex|condition_variable|async"
         r"|call_once|once_flag)\b|\bpthread_\w+",
         "use tpsync::Threads and its Mutex and Condition"),
        (r"#\s*include\s+<(poll|spawn|sys/(socket|un|wait|epoll|eventfd|prctl))\.h>",
         "use tpsync::Channel and tpsync::Process"),
        (r"#\s*include\s+<(thread|mutex|shared_mutex|condition_variable|future|pthread\.h)>",
         "use tpsync::Threads"),
    ]
    in_core = [path for path in paths if path.startswith("core/") and not is_test(path)]
    yield from search(tree, in_core, r"#\s*include\s+<(fcntl|unistd|sys/(mman|stat|file))\.h>",
                      "call the system in a file named os_* of this folder")
    for pattern, message in rules:
        # A test may take its size from the environment.
        where = [p for p in paths if not is_test(p)] if "getenv" in pattern else paths
        yield from search(tree, where, pattern, message)


def catch_all(tree):
    paths = tree.sources("core", "sim", "faults", tests=False)
    yield from search(tree, paths, r"\bcatch\s*\(\s*\.\.\.\s*\)",
                      "catch const std::exception&: a killed fiber must not be stopped",
                      mark="rethrown")


def determinism(tree):
    paths = tree.sources("core", "sim", "faults", tests=False)
    rules = [
        (r"#\s*include\s+<random>|\bstd::\w+_distribution\b|\bmt19937",
         "distributions differ between libraries: draw by key with integer arithmetic", None),
        (r"\bunordered_(multi)?(map|set)\b",
         "its order differs between libraries: use std::map or a sorted vector, or mark a lookup "
         "table with '// lookup only'", "lookup only"),
        (r"\bstd::(map|set)<\s*(const\s+)?[\w:]+\s*\*",
         "is ordered by addresses: use an id as the key, or mark it with '// lookup only'",
         "lookup only"),
        (r"\bsource_location\b|\b__(func|FUNCTION|PRETTY_FUNCTION)__\b",
         "function names differ between compilers: name the place by a constant", None),
        (r"\bfmt::ptr\b|%p", "addresses differ between runs: print an id", None),
        (r"\bstd::hash\b", "hashes differ between libraries: use XXH3 or mix64", None),
    ]
    for pattern, message, mark in rules:
        yield from search(tree, paths, pattern, message, mark)


def library_texts(tree):
    paths = [path for path in tree.sources("core", tests=False)
             if not path.startswith("core/base/errors.")]
    yield from search(tree, paths, r"\bwhat\s*\(\s*\)",
                      "library texts differ between builds: use record_of(error)")


def singletons(tree):
    """A static inside a function or class must be constexpr. Functions are let through."""
    declaration = re.compile(
        r"^\s+(inline\s+)?static\s+(inline\s+)?(?!constexpr\b|consteval\b|constinit\s+const\b)"
        r"[^(=;{]*[=;{]")
    for path in tree.sources("core", "sim", "faults", tests=False):
        for number, code, _ in tree.code_lines(path):
            if declaration.search(code) and "operator" not in code:
                yield Finding(path, number, "a static object is shared by all simulated processes: "
                                            "make it constexpr, or a member that is handed down")
    yield from search(tree, tree.sources("core", "faults", tests=False), r"\bthread_local\b",
                      "is shared by all fibers of a thread: hand the object down")


def tests_never_sleep(tree):
    paths = [path for path in tree.sources("core", *HARNESS) if is_test(path)]
    # A declaration in a fake is no call.
    pattern = r"\bsleep_for\s*\(|(?<![\w.>])(?<!\bvoid )u?sleep\s*\(|\bthis_thread::sleep"
    yield from search(tree, paths, pattern,
                      "wait for a signal or byte from the other side, with a generous bound")


TEXT_RULES = [
    top_level, listed_sources, file_length, line_length, head_comment, pragma_once, scripts_run,
    unfinished_work, own_documents, named_tests_exist, includes_exist, include_layers,
    layout_is_the_runtimes, exporter_is_independent, judge_is_independent, heavy_libraries, seams,
    catch_all, determinism, library_texts, singletons, tests_never_sleep,
]


# ---- rules that need a build --------------------------------------------------------------------


def headers_compile_alone(tree, compiler, include_folders):
    headers = [path for path in tree.sources("core", *HARNESS) if path.endswith(".h")]
    flags = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-x", "c++", "-"]
    flags += [f'-DTPSYNC_SOURCE_DIR="{tree.root}"']  # as tests are compiled
    flags += [f"-I{folder}" for folder in include_folders] + [f"-I{tree.root}"]

    def compile_one(path):
        written = "tpsync/" + path[len("core/"):] if path.startswith("core/") else path
        done = subprocess.run(compiler.split() + flags, input=f'#include "{written}"\n', text=True,
                              capture_output=True, check=False)
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        first = errors[0] if errors else done.stderr[:200]
        return path, done.returncode, first

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, status, error in pool.map(compile_one, headers):
            if status != 0:
                yield Finding(path, 1, f"does not compile alone: include what it uses ({error})")


def no_writable_statics(folder):
    """Simulated processes share one address space, so core's libraries hold no writable object."""
    for archive in sorted(Path(folder).glob("core/*/libtpsync_*.a")):
        done = subprocess.run(["objdump", "-t", "-C", str(archive)], capture_output=True, text=True,
                              check=True)
        for line in done.stdout.splitlines():
            match = re.match(r"[0-9a-f]+ .{7} (\.\S+)\s+[0-9a-f]+\s+(.*)$", line)
            if not match or not is_writable(match.group(1)):
                continue
            symbol = re.sub(r"^\.(hidden|protected|internal)\s+", "", match.group(2))
            # nvcc keeps the addresses of its kernels in objects of its own.
            if "tpsync" in symbol and "__device_stub__" not in symbol:
                yield Finding(archive.name, 0, f"{symbol} is writable ({match.group(1)}): make it "
                                               "constexpr, or a member that is handed down")


def is_writable(section):
    base = re.match(r"\.(data|bss|tdata|tbss)(\.|$)", section)
    return bool(base) and not section.startswith((".data.rel.ro", ".data.rel.local.DW", ".data.DW"))


def run_rules(rules):
    """Prints the findings of (name, iterable) pairs; returns how many there were."""
    count = 0
    for name, findings in rules:
        for finding in findings:
            count += 1
            place = f"{finding.path}:{finding.line}" if finding.line else finding.path
            print(f"{place}: [{name}] {finding.message}")
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--root", default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--compiler", help="compile every header alone with this command")
    parser.add_argument("--include", action="append", default=[], help="include folder for that")
    parser.add_argument("--archives", help="build folder whose core libraries are looked into")
    try:
        options = parser.parse_args()
    except SystemExit as end:
        sys.exit(0 if end.code == 0 else 64)
    tree = Tree(options.root)
    if options.compiler:
        rules = [("headers_compile_alone",
                  headers_compile_alone(tree, options.compiler, options.include))]
    elif options.archives:
        rules = [("no_writable_statics", no_writable_statics(options.archives))]
    else:
        rules = [(rule.__name__, rule(tree)) for rule in TEXT_RULES]
    count = run_rules(rules)
    print(f"{count} findings" if count else f"no findings ({len(tree.files)} files)")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
