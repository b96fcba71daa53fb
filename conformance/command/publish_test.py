#!/usr/bin/env python3
"""tpsync publish and doctor as their users see them: tables, JSON, exit codes, what is left."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

TPSYNC = os.path.abspath(sys.argv.pop(1))
MODELS = sys.argv.pop(1)
# Without Gloo there are no worlds of processes.
WORLDS = ("sim", "process") if sys.argv.pop(1) == "ON" else ("sim",)
TINY4 = os.path.join(MODELS, "tiny-tp4.json")
TINY4_BYTES = 2944
SHUT_OUT = 4

EOF_IN_START = {"name": "channel.eof",
                "moment": {"role": "actor", "rank": 0, "phase": "native-start", "chunk": 0,
                           "op": "channel.read", "occurrence": 0}}
WORKER_KILLED = {"name": "process.kill",
                 "moment": {"role": "worker", "rank": 1, "phase": "update_native_weights",
                            "chunk": 1, "op": "device.launch", "occurrence": 0}}
ACTOR_KILLED = {"name": "process.kill",
                "moment": {"role": "actor", "rank": 1, "phase": "native-transfer", "chunk": 1,
                           "op": "control.word", "occurrence": 0}}


def run(*arguments, env=None):
    return subprocess.run([TPSYNC, *arguments], capture_output=True, text=True, timeout=300,
                          errors="replace", env={**os.environ, **(env or {})})


def processes_of(folder):
    """Of all processes, those that were started with or work below this folder."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if folder in command and int(pid) != os.getpid():
            found.append(command)
    return found


class Case(unittest.TestCase):
    """With a folder of its own, which is also the program's folder for temporary files."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.temporary = self.path("tmp")
        os.mkdir(self.temporary)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, content):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(content if isinstance(content, str) else json.dumps(content))
        return self.path(name)

    def plan(self, *faults):
        return self.write("plan.json", {"seed": 1, "faults": faults})

    def run_here(self, *arguments):
        result = run(*arguments, env={"TMPDIR": self.temporary})
        # The folder of a world stands in the command line of each process that it executes.
        self.assertEqual(processes_of(self.temporary), [])
        self.assertEqual(os.listdir(self.temporary), [])
        return result

    def refused(self, *arguments, names, code=64):
        result = run(*arguments)
        self.assertEqual(result.returncode, code, (arguments, result.stderr))
        self.assertEqual(result.stdout, "")
        self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
        for name in names if isinstance(names, tuple) else (names,):
            self.assertIn(name, result.stderr)


class Usage(Case):
    def test_errors_of_publish_are_one_line_that_names_the_flag(self):
        for arguments, names in (
                (("--world", "moon"), ("--world", "sim")),
                (("--tp", "0"), "--tp"),
                (("--tp", "3"), "num_attention_heads"),
                (("--actors", "33"), "--actors"),
                (("--tp", "2", "--actors", "1"), "--actors"),
                (("--versions", "0"), ("--versions", "from 1 to")),
                (("--versions", "10001"), "--versions"),
                (("--versions", "two"), "--versions"),
                (("--seed", "-1"), "--seed"),
                (("--config", "/nowhere"), "--config"),
                (("--bucket-mib", "0"), "--bucket-mib"),
                (("--bucket-mib", "99999999"), "--bucket-mib"),
                (("--bucket-bytes", "8"), "--bucket-bytes"),
                (("--bucket-bytes", "1024", "--bucket-mib", "1"), "--bucket-mib"),
                (("--fault", "/nowhere"), ("--fault", "/nowhere")),
                (("--colour", "red"), "colour")):
            self.refused("publish", *arguments, names=names)
        if "process" in WORLDS:
            self.refused("publish", "--world", "process", "--phantom", names="--phantom")
        self.refused("publish", "--out", "/proc/nowhere", names="--out", code=3)
        self.refused("doctor", "--colour", names="colour")

    def test_errors_of_a_fault_file_name_the_file_and_the_place(self):
        def refuse(content, *names, world="sim"):
            plan = self.write("broken.json", content)
            self.refused("publish", "--world", world, "--fault", plan,
                         names=("--fault", "broken.json", *names))

        def fault(**changes):
            return {"faults": [{**EOF_IN_START, **changes}]}

        refuse('{"faults": [', "byte")
        refuse([], "plan")
        refuse({"faults": []}, "faults")
        refuse({"faults": [], "colour": 1}, "colour")
        refuse({"faults": [EOF_IN_START, {"name": "channel.eof"}]}, "faults[1].moment")
        refuse(fault(name="channel.nonsense"), "faults[0].name")
        refuse(fault(moment={**EOF_IN_START["moment"], "op": "channel.sing"}),
               "faults[0].moment.op")
        refuse(fault(moment={**EOF_IN_START["moment"], "role": "judge"}), "faults[0].moment.role")
        refuse(fault(moment={**EOF_IN_START["moment"], "rank": -1}), "faults[0].moment.rank")
        if "process" in WORLDS:
            killed = {**ACTOR_KILLED, "moment": {**ACTOR_KILLED["moment"], "op": "clock.now"}}
            refuse({"faults": [killed]}, "faults[0].moment.op", world="process")


class Lost(Case):
    def test_answers_are_an_error(self):
        for line in ("publish --world sim --tp 1", "publish --world sim --tp 1 --json", "doctor",
                     "doctor --json"):
            for redirection in (">/dev/full", ">&-"):
                shell = ["bash", "-c", f'"$1" {line} {redirection}', "bash", TPSYNC]
                result = subprocess.run(shell, capture_output=True, text=True, timeout=300)
                self.assertEqual(result.returncode, 3, (line, redirection, result.stderr))
                self.assertIn("standard output", result.stderr.splitlines()[-1])


class Publish(Case):
    def publish(self, *arguments, code=0):
        result = self.run_here("publish", *arguments, "--json")
        self.assertEqual(result.returncode, code, result.stderr)
        return json.loads(result.stdout)

    def check_publication(self, publication, version, world):
        self.assertEqual((publication["version"], publication["outcome"]), (version, "published"))
        self.assertEqual(publication["bytes"], TINY4_BYTES)
        if world == "sim":
            self.assertIsNone(publication["gigabytes_per_second"])
        else:
            self.assertAlmostEqual(publication["gigabytes_per_second"],
                                   TINY4_BYTES / publication["nanoseconds"])
        phases = {phase["phase"]: phase for phase in publication["phases"]}
        self.assertEqual(len(phases), len(publication["phases"]))
        for name, count in (("expected-schema", 1), ("native-init", 1), ("native-materialize", 3),
                            ("native-transfer", 3), ("native-finish", 1),
                            ("native-ipc-release", 1)):
            self.assertEqual(phases[name]["count"], count, name)
        self.assertEqual(sum(phase["nanoseconds"] for phase in publication["phases"]),
                         publication["nanoseconds"])
        self.assertAlmostEqual(sum(phase["percent"] for phase in publication["phases"]), 100)
        for call in ("sleep", "wake-weights", "sync", "wake-all", "generate"):
            self.assertTrue(publication["calls"][call]["ok"], call)

    def test_brings_two_versions_into_service_in_every_world(self):
        for world in WORLDS:
            for tp in (1, 2):
                with self.subTest(world=world, tp=tp):
                    answer = self.publish("--world", world, "--tp", str(tp))
                    self.assertEqual((answer["world"], answer["tp"], answer["verdict"]),
                                     (world, tp, "passed"))
                    self.assertEqual((answer["bytes"], answer["chunks"]), (TINY4_BYTES, 3))
                    for version in (1, 2):
                        self.check_publication(answer["publications"][version - 1], version, world)
                    self.assertEqual(len(answer["publications"]), 2)
                    self.assertEqual([[o["version"] for o in rank] for rank in answer["ranks"]],
                                     [[1, 2]] * tp)
                    self.assertEqual((answer["failures"], answer["inconclusive"]), ([], []))
                    # Simulated devices have a judge of their own for it.
                    uses = answer["device_memory"]
                    self.assertEqual([use["rank"] for use in uses],
                                     [] if world == "sim" else list(range(tp)))
                    for use in uses:
                        self.assertGreaterEqual(use["more_bytes"], answer["bucket_bytes"])
                        self.assertLessEqual(use["more_bytes"], use["asked_bytes"])

    def test_prints_a_line_per_publication_and_tables(self):
        for world in WORLDS:
            result = self.run_here("publish", "--world", world, "--tp", "2", "--versions", "3",
                                   "--config", TINY4, "--bucket-mib", "1")
            self.assertEqual(result.returncode, 0, result.stderr)
            lines = result.stderr.splitlines()
            self.assertIn(f"--world {world} --seed 1 --actors 2 --tp 2", lines[0])
            self.assertIn("--bucket-bytes 1048576 --versions 3", lines[0])
            self.assertIn("version 0 serves", lines[1])
            for version in (1, 2, 3):
                self.assertTrue(lines[1 + version].startswith(f"version {version} published ("),
                                result.stderr)
                self.assertIn(f"\nversion {version}  ", result.stdout)
            self.assertEqual(lines[-1], "passed: 3 publications, every invariant held")
            self.assertEqual(result.stdout.count(f"{TINY4_BYTES} bytes in 1 chunks"), 3)
            self.assertTrue(result.stdout.splitlines()[1].endswith("  GB/s"))

    def test_is_silent_until_its_tables_where_it_is_asked_to_be(self):
        for flag in ("--quiet", "--json"):
            result = self.run_here("publish", "--world", WORLDS[-1], "--tp", "1", "--versions",
                                   "1", flag)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(len(result.stderr.splitlines()), 2, result.stderr)

    def test_is_the_same_twice_in_the_simulated_world(self):
        first, second = (run("publish", "--world", "sim", "--tp", "2", "--json")
                         for _ in range(2))
        self.assertEqual(first.stdout, second.stdout)

    def test_writes_a_trace_that_the_judge_passes_and_a_result(self):
        for world in WORLDS:
            out = self.path(world)
            result = self.run_here("publish", "--world", world, "--tp", "1", "--out", out,
                                   "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            with open(os.path.join(out, "result.json"), encoding="utf-8") as file:
                self.assertEqual(file.read(), result.stdout)
            judged = run("judge", os.path.join(out, "publish.trace.ndjson"))
            self.assertEqual(judged.returncode, 0, judged.stderr)
            self.assertIn(json.loads(result.stdout)["trace_hash"], judged.stdout)


class Faults(Case):
    def under(self, world, *faults, code=0):
        result = self.run_here("publish", "--world", world, "--tp", "2", "--fault",
                               self.plan(*faults), "--json", "--out", self.path("out"))
        self.assertEqual(result.returncode, code, result.stderr)
        return json.loads(result.stdout), result

    def test_that_end_the_runtime_are_reported_alike_by_all_ranks_which_then_publish_again(self):
        for world in WORLDS:
            for fault, phase in ((EOF_IN_START, "native-start"),
                                 (WORKER_KILLED, "native-transfer-1")):
                with self.subTest(world=world, fault=fault["name"]):
                    answer, _ = self.under(world, fault)
                    self.assertEqual([f["applied"] for f in answer["faults"]], [True])
                    first, *others = answer["ranks"]
                    self.assertEqual(others, [first])
                    self.assertEqual(first[0]["error"]["phase"], phase)
                    self.assertEqual(first[0]["error"]["remedy"], "build a new runtime")
                    self.assertEqual([o["version"] for o in first], [None, 1, 2, 3])
                    self.assertEqual([p["outcome"] for p in answer["publications"]],
                                     ["failed"] + ["published"] * 3)
                    self.assertEqual(answer["publications"][0]["error"], first[0]["error"])

    def test_that_end_an_actor_are_reported_by_the_others_and_another_world_publishes(self):
        for world in WORLDS:
            answer, _ = self.under(world, ACTOR_KILLED)
            survivor, lost = answer["ranks"]
            self.assertEqual(survivor[0]["error"]["kind"], "peer lost")
            self.assertEqual(lost, [])
            self.assertEqual(answer["recovered_version"], 1)
            self.assertEqual(answer["publications"][0]["outcome"], "failed")

    def test_whose_moment_never_comes_make_a_run_inconclusive(self):
        never = {**EOF_IN_START, "moment": {**EOF_IN_START["moment"], "chunk": 999}}
        for world in WORLDS:
            answer, result = self.under(world, never, code=2)
            self.assertEqual(answer["verdict"], "inconclusive")
            self.assertEqual([f["applied"] for f in answer["faults"]], [False])
            self.assertIn("its moment never came", result.stderr)
            self.assertIn("channel.eof at actor 0: channel.read#0 in native-start/999",
                          result.stderr)
            self.assertTrue(result.stderr.splitlines()[-1].startswith("tpsync publish --world"))

    def test_are_named_below_the_tables(self):
        result = self.run_here("publish", "--world", "sim", "--tp", "2", "--fault",
                               self.plan(EOF_IN_START))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("fault channel.eof at actor 0: channel.read#0 in native-start/0 was applied",
                      result.stdout)
        for rank in (0, 1):
            self.assertIn(f"rank {rank}: native-start: ", result.stdout)
            self.assertIn(f"rank {rank}: version 3", result.stdout)
        self.assertIn("publication failed: native-start: ", result.stderr)


class Doctor(Case):
    def doctor(self, **env):
        result = run("doctor", "--json", env=env)
        self.assertEqual(result.stderr, "")
        answer = json.loads(result.stdout)
        return (result.returncode, {check["what"]: check for check in answer["checks"]},
                {world["world"]: world for world in answer["worlds"]})

    def test_tries_the_worlds_of_this_build_and_says_why_others_do_not_run(self):
        code, checks, worlds = self.doctor(TMPDIR=self.temporary)
        self.assertEqual(code, 0, worlds)
        for world in WORLDS:
            self.assertTrue(worlds[world]["runs"], worlds)
        if not worlds["gpu"]["built"]:
            self.assertIn("not in this build", worlds["gpu"]["why"])
        elif checks["GPU driver"]["state"] != "ok":
            self.assertEqual("GPU driver: none", worlds["gpu"]["why"])
        else:
            self.assertTrue(worlds["gpu"]["runs"], worlds)
        self.assertEqual(os.listdir(self.temporary), [])
        self.assertEqual(checks["Gloo part"]["state"], "ok" if "process" in WORLDS else "missing")

    def test_a_world_for_which_gpus_are_missing_is_refused_before_it_starts(self):
        _, checks, worlds = self.doctor()
        if not worlds["gpu"]["built"] or checks["GPU driver"]["state"] == "ok":
            self.skipTest("this build has no GPU world, or this machine has GPUs")
        for command in ("run", "publish"):
            result = run(command, "--world", "gpu", "--tp", "4")
            self.assertEqual(result.returncode, SHUT_OUT, result.stderr)
            self.assertIn("--world gpu: every rank needs a GPU of its own, 4 in all",
                          result.stderr)

    def test_gives_a_command_for_what_is_not_as_it_should_be(self):
        _, checks, _ = self.doctor()
        self.assertGreater(len(checks), 15)
        for check in checks.values():
            self.assertTrue(check["found"] and check["why"], check)
            if check["state"] == "ok":
                self.assertEqual(check["mend"], "", check)
            elif check["needed_by"] not in (["gpu"], []):  # what no world of this build needs
                self.assertNotEqual(check["mend"], "", check)

    @unittest.skipIf("process" not in WORLDS, "no world of this build needs a folder")
    def test_finds_a_folder_that_cannot_be_used_and_exits_with_4(self):
        for folder in ("/proc", "/nowhere", self.path("d" * 120)):
            if folder.startswith(self.folder):
                os.mkdir(folder)
            code, checks, worlds = self.doctor(TMPDIR=folder)
            self.assertEqual(code, SHUT_OUT)
            self.assertFalse(worlds["process"]["runs"])
            self.assertTrue(worlds["sim"]["runs"])
            broken = [check for check in checks.values() if "process" in check["needed_by"]
                      and check["state"] == "missing"]
            self.assertTrue(any("TMPDIR" in check["mend"] for check in broken), broken)

    def test_prints_both_tables(self):
        result = run("doctor")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertEqual(result.stdout.splitlines()[0].split(),
                         ["what", "state", "found", "why", "mend"])
        self.assertIn("\nsim      runs", result.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
