#!/usr/bin/env python3
"""The tpsync command as its users see it: figures, exit codes, what goes to which stream."""
import json
import os
import shlex
import subprocess
import sys
import tempfile
import unittest

TPSYNC = os.path.abspath(sys.argv.pop(1))
MODELS = sys.argv.pop(1)
QWEN = os.path.join(MODELS, "qwen3-30b-a3b.json")
TINY4 = os.path.join(MODELS, "tiny-tp4.json")


def run(*arguments, cwd=None):
    return subprocess.run([TPSYNC, *arguments], capture_output=True, text=True, timeout=300,
                          cwd=cwd, errors="replace")


class Folder(unittest.TestCase):
    """Tests that need files of their own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, content):
        with open(self.path(name), "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
        return self.path(name)

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return json.load(file)

    def tiny_with(self, name, **changes):
        with open(TINY4, encoding="utf-8") as file:
            return self.write(name, json.dumps({**json.load(file), **changes}))

    def refused(self, *arguments, names, code=64):
        result = run(*arguments)
        self.assertEqual(result.returncode, code, (arguments, result.stderr))
        self.assertEqual(result.stdout, "")
        self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
        for name in names if isinstance(names, tuple) else (names,):
            self.assertIn(name, result.stderr)


class Plan(unittest.TestCase):
    def plan(self, *arguments):
        result = run("plan", *arguments, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr, "")
        return json.loads(result.stdout)

    def test_of_qwen3_30b_a3b_is_the_known_one(self):
        plan = self.plan("--config", QWEN, "--tp", "4", "--bucket-mib", "640",
                         "--headroom-mib", "2048")
        counts = plan.pop("chunk_tensor_counts")
        self.assertEqual(sum(counts), 18867)
        self.assertEqual(len(counts), 92)
        self.assertEqual(plan, {
            "tensor_count": 18867, "byte_count": 61064245248,
            "fingerprint": "fdbde6442ff4fbf827d46a8c89e3e12c07d0fbf9a5272f396d7e60b63979253f",
            "largest_tensor": 622329856, "largest_layer": 1246241280, "chunk_count": 92,
            "boundary_count": 531, "required_free": 5406990848})

    def test_of_the_tiny_models_are_the_known_ones(self):
        plan = self.plan("--config", TINY4, "--tp", "4", "--bucket-bytes", "1024")
        self.assertEqual((plan["tensor_count"], plan["byte_count"]), (24, 2944))
        self.assertEqual(plan["chunk_tensor_counts"], [5, 10, 9])
        plan = self.plan("--config", os.path.join(MODELS, "tiny.json"), "--tp", "1",
                         "--bucket-bytes", "512")
        self.assertEqual((plan["tensor_count"], plan["byte_count"]), (18, 1376))
        self.assertEqual(plan["largest_layer"], 848)
        self.assertEqual(plan["fingerprint"],
                         "26f48d360a430e85ad55f2c2feebaa80c04a3b2ebd4297582317f2b8afec1086")
        self.assertEqual(plan["chunk_tensor_counts"], [4, 9, 5])
        plan = self.plan("--config", os.path.join(MODELS, "tiny-tied.json"), "--tp", "1",
                         "--bucket-bytes", "512")
        self.assertEqual((plan["tensor_count"], plan["byte_count"]), (17, 1120))
        self.assertEqual(plan["fingerprint"],
                         "20f24cbf0c8b3c7d4a5dd6d015d28582963c640745287b83b7566eee140c9b57")


class DefaultModel(unittest.TestCase):
    def test_is_the_model_of_tiny_tp4(self):
        runs = [run("run", "publish.bootstrap", "--json", *config)
                for config in ((), ("--config", TINY4))]
        for result in runs:
            self.assertEqual(result.returncode, 0, result.stderr)
        built_in, loaded = (json.loads(result.stdout)["scenarios"][0]["trace_hash"]
                            for result in runs)
        self.assertEqual(built_in, loaded)


class Usage(Folder):
    def test_errors_are_one_line_that_names_the_flag_or_field(self):
        self.refused("run", "--world", "moon", names="--world")
        self.refused("run", "--tp", "0", names="--tp")
        self.refused("run", "--tp", "3", names="num_attention_heads")
        self.refused("run", "--actors", "65", names="--actors")
        self.refused("run", "--bucket-bytes", "0", names="--bucket-bytes")
        self.refused("run", "--bucket-bytes", "8", names="--bucket-bytes")
        self.refused("run", "--config", "/nowhere", names="--config")
        self.refused("run", "--config", QWEN, names="--phantom")
        self.refused("run", "nothing.like-this", names="nothing.like-this")
        self.refused("run", "--colour", "red", names="colour")
        self.refused("explore", "--faults", "triples", names="--faults")
        self.refused("explore", "--actors", "2", names="--actors")
        self.refused("describe", "nothing", names="nothing")
        self.refused("judge", "/nowhere", names="/nowhere")
        self.refused("replay", TINY4, names="tpsync_replay")
        self.refused("plan", "--config", TINY4, names="--bucket")
        self.refused("plan", "--config", TINY4, "--bucket-bytes", "8", names="bucket")
        self.refused("plan", "--config", TINY4, "--bucket-mib", "99999999999999999",
                     names="--bucket-mib")
        self.refused("hash", "--shard", "2/2", names="--shard")
        self.refused(names="subcommand")
        self.refused("frob", names="frob")
        self.refused("judge", "/tmp", names="/tmp")
        self.refused("judge", "/proc/self/mem", names="/proc/self/mem")

    def test_a_number_is_digits_within_the_range_that_its_refusal_names(self):
        too_large = str(2 ** 64)
        for text in ("", "-1", "+1", " 1", "1 ", "1.0", "0x1", "1e3", "x", too_large,
                     "-18446744073709550592"):
            self.refused("run", "publish.bootstrap", "--seed", text, names=("--seed", "from 0 to"))
            self.refused("run", "--bucket-bytes", text, names=("--bucket-bytes", "from 1 to"))
            self.refused("plan", "--config", TINY4, "--bucket-mib", text, names="--bucket-mib")
            self.refused("plan", "--config", TINY4, "--bucket-mib", "1", "--headroom-mib", text,
                         names="--headroom-mib")
            self.refused("hash", "--plans", text, names="--plans")
            self.refused("hash", "--shard", text + "/2", names="--shard")
        for text in ("", "0", "-1", "33", "64", "65", "4294967297", too_large):
            for command in ("run", "explore"):
                self.refused(command, "--tp", text, names=("--tp", "from 1 to 32"))
                self.refused(command, "--actors", text, names=("--actors", "from 1 to 32"))
        self.refused("plan", "--config", TINY4, "--bucket-mib", "1", "--tp", "0",
                     names=("--tp", "from 1 to"))
        largest = run("run", "publish.bootstrap", "--seed", str(2 ** 64 - 1))
        self.assertEqual(largest.returncode, 0, largest.stderr)
        self.assertIn("--seed 18446744073709551615", largest.stderr)

    def test_what_cannot_be_simulated_is_refused_before_it_is_tried(self):
        for bucket in ("18446744073709551615", "6148914691236517205", "1099511627776",
                       "4294967297"):
            self.refused("run", "publish.bootstrap", "--bucket-bytes", bucket,
                         names="--bucket-bytes")
        for bucket in ("18446744073709551615", "6148914691236517205", "1099511627777"):
            self.refused("run", "--phantom", "--bucket-bytes", bucket, names="--bucket-bytes")
        tracked = run("run", "--phantom", "--bucket-bytes", "1099511627776")
        self.assertEqual(tracked.returncode, 0, tracked.stderr)

    def test_how_weights_move_and_are_stored_may_be_chosen(self):
        flags = ("--tp", "2", "--gather", "copies", "--no-overlap", "--separate-experts", "--fp32")
        result = run("run", "publish.once", *flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        for flag in ("--gather copies", "--no-overlap", "--separate-experts", "--fp32"):
            self.assertIn(flag, result.stderr.splitlines()[0])
        self.refused("run", "--gather", "carrier-pigeon", names=("--gather", "copies"))
        resharded = run("run", "publish.once", "rank.gather", "--tp", "2", "--route", "reshard")
        self.assertEqual(resharded.returncode, 0, resharded.stderr)
        self.assertIn("--route reshard", resharded.stderr.splitlines()[0])
        self.assertIn("not applicable", resharded.stdout + resharded.stderr)
        self.refused("run", "--route", "scenic", names=("--route", "reshard"))
        self.refused("run", "--phantom", "--fp32", names="--fp32")
        self.refused("run", "--at-most", "3", names=("--at-most", "simulated"))

    def test_a_refusal_names_the_flag_that_is_wrong(self):
        heads = self.tiny_with("h8kv8.json", num_attention_heads=8, num_key_value_heads=8,
                               num_experts=16, moe_intermediate_size=16)
        self.refused("run", "--config", heads, "--tp", "16", names=("--tp", "8 heads"))
        self.refused("plan", "--config", heads, "--bucket-mib", "1", "--tp", "16",
                     names=("--tp", "8 heads"))
        self.refused("plan", "--config", TINY4, "--bucket-mib", "1", "--tp", "3", names="--tp")
        self.refused("plan", "--config", TINY4, "--bucket-bytes", "1", names="--bucket-bytes")
        self.refused("plan", "--config", QWEN, "--bucket-mib", "1", names="--bucket-mib")
        self.refused("plan", "--config", TINY4, "--bucket-mib", "0", names="--bucket-mib")
        self.refused("plan", "--config", TINY4, "--bucket-bytes", str(2 ** 64 - 1),
                     names="--bucket-bytes")
        self.refused("explore", "--without", "rain", names=("--without", "rain", "late_copies"))

    def test_a_broken_configuration_is_named_with_the_place(self):
        with open(TINY4, "rb") as file:
            good = file.read()
        for text in (good[:-3], good + b"x", good.replace(b"1e-06", b"NaN"),
                     good.replace(b"silu", b"\xff"), b""):
            self.refused("plan", "--config", self.write("broken.json", text), "--bucket-mib", "1",
                         names=("--config", "broken.json", "at byte"))
        self.refused("plan", "--config", self.write("array.json", "[]"), "--bucket-mib", "1",
                     names=("--config", "is no JSON object"))
        twice = good.replace(b'"hidden_size"', b'"hidden_size": 8, "hidden_size"')
        self.refused("plan", "--config", self.write("twice.json", twice), "--bucket-mib", "1",
                     names=("--config", "hidden_size"))
        self.refused("plan", "--config", "/proc/self/mem", "--bucket-mib", "1",
                     names=("--config", "/proc/self/mem"))


class Output(Folder):
    def shell(self, line, cwd=None):
        return subprocess.run(["bash", "-c", line, "bash", TPSYNC], capture_output=True, text=True,
                              timeout=300, cwd=cwd, errors="replace")

    def test_that_is_lost_is_an_error(self):
        trace = self.path("publish.bootstrap.trace.ndjson")
        self.assertEqual(run("run", "publish.bootstrap", "--out", self.folder).returncode, 0)
        for line in ("run publish.bootstrap --json", "explore --tp 1 --json", "list",
                     "list --faults", "list --json", "describe publish", "hash --plans 0 --shard "
                     "0/64", f"judge '{trace}'", f"plan --config '{TINY4}' --bucket-mib 1",
                     f"plan --config '{TINY4}' --bucket-mib 1 --json", "--help", "--version"):
            for redirection in (">/dev/full", ">&-"):
                result = self.shell(f'"$1" {line} {redirection}')
                self.assertEqual(result.returncode, 3, (line, redirection, result.stderr))
                self.assertIn("standard output", result.stderr.splitlines()[-1])

    def test_folder_is_tried_before_any_world_runs(self):
        for arguments in (("run",), ("explore",)):
            self.refused(*arguments, "--out", "/proc/nowhere", names="--out", code=3)

    def test_help_offers_no_flag_without_a_meaning(self):
        self.assertNotIn("--gloo-only", run("explore", "--help").stdout)

    def test_folder_may_have_a_name_that_is_no_text(self):
        result = self.shell('"$1" run publish.bootstrap --json --out $\'o\\xff\'', cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        scenario = json.loads(result.stdout)["scenarios"][0]
        self.assertEqual(scenario["files"][0], "o\ufffd/publish.bootstrap.trace.ndjson")

    def test_that_no_longer_fits_the_folder_is_an_error_after_the_verdicts(self):
        result = self.shell('trap "" XFSZ; ulimit -f 1; exec "$1" run publish.bootstrap --out out',
                            cwd=self.folder)
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("out/publish.bootstrap.trace.ndjson cannot be written", result.stderr)
        self.assertIn("1 passed, 0 failed", result.stderr)

    @unittest.skipIf(os.environ.get("TPSYNC_SANITIZE"),
                     "a sanitizer maps more address space than a limit would leave")
    def test_of_a_harness_without_memory_is_one_line_and_no_verdict(self):
        result = self.shell('ulimit -v 400000; exec "$1" run publish.bootstrap '
                            '--bucket-bytes 1000000000')
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertEqual(result.stderr.splitlines()[-1],
                         "tpsync: the harness failed: out of memory")
        self.assertNotIn("failed  ", result.stderr)

    def test_line_to_paste_is_quoted_for_a_shell(self):
        name = self.tiny_with("it's a model;.json")
        result = run("run", "publish.bootstrap", "--tp", "1", "--config", name)
        self.assertEqual(result.returncode, 0, result.stderr)
        parts = shlex.split(result.stderr.splitlines()[0])
        self.assertEqual(parts[parts.index("--config") + 1], name)

    def test_rows_come_as_scenarios_end_under_one_head(self):
        result = run("run", "publish.bootstrap", "publish.resumed", "rank.killed", "--tp", "1")
        lines = result.stderr.splitlines()
        self.assertEqual(lines[1].split(), ["scenario", "verdict", "worlds", "reason"])
        at = [lines[1].index(name) for name in ("verdict", "worlds")]
        self.assertEqual([line.split()[0] for line in lines[2:5]],
                         ["publish.bootstrap", "publish.resumed", "rank.killed"])
        for line in lines[2:5]:
            for column in at:
                self.assertEqual(line[column - 1], " ", line)
                self.assertNotEqual(line[column], " ", line)


class Run(unittest.TestCase):
    def test_reaches_as_many_ranks_as_the_simulator_has(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(TINY4, encoding="utf-8") as file:
                model = {**json.load(file), "num_attention_heads": 32, "num_key_value_heads": 4,
                         "num_experts": 32, "moe_intermediate_size": 32}
            config = os.path.join(folder, "config.json")
            with open(config, "w", encoding="utf-8") as file:
                json.dump(model, file)
            result = run("run", "publish.bootstrap", "--tp", "32", "--config", folder,
                         "--bucket-bytes", "4096")
            self.assertEqual(result.returncode, 0, result.stderr)

    def test_prints_json_alone_on_standard_output_and_the_seed_first_on_standard_error(self):
        result = run("run", "publish.bootstrap", "--json", "--seed", "5")
        self.assertEqual(result.returncode, 0, result.stderr)
        scenario = json.loads(result.stdout)["scenarios"][0]
        self.assertEqual((scenario["id"], scenario["verdict"]), ("publish.bootstrap", "passed"))
        self.assertRegex(scenario["trace_hash"], "^[0-9a-f]{16}$")
        self.assertIn("seed 5", result.stderr.splitlines()[0])

    def test_that_does_not_apply_says_why_and_does_not_fail(self):
        result = run("run", "rank.killed", "--tp", "1")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("needs at least 2 ranks", result.stderr)
        result = run("run", "publish", "--tp", "2", "--actors", "1")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("needs as many actors as TP ranks", result.stderr)

    def test_writes_traces_that_the_judge_passes_and_a_result(self):
        with tempfile.TemporaryDirectory() as folder:
            result = run("run", "publish.bootstrap", "--out", folder)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertTrue(os.path.exists(os.path.join(folder, "result.json")))
            judged = run("judge", os.path.join(folder, "publish.bootstrap.trace.ndjson"))
            self.assertEqual(judged.returncode, 0, judged.stderr)
            self.assertIn("trace_hash", judged.stdout)

    def test_is_the_same_twice_and_another_with_another_seed(self):
        first, second, other = (run("hash", "--plans", "0", "--lines", "--shard", "0/64"),
                                run("hash", "--plans", "0", "--lines", "--shard", "0/64"),
                                run("run", "publish.resumed", "--json", "--seed", "2"))
        for result in (first, second):
            self.assertEqual(result.returncode, 0, result.stderr)
        self.assertGreater(len(first.stdout.splitlines()), 10)
        self.assertEqual(first.stdout, second.stdout)
        same = run("run", "publish.resumed", "--json", "--seed", "1")
        self.assertNotEqual(json.loads(same.stdout)["scenarios"][0]["trace_hash"],
                            json.loads(other.stdout)["scenarios"][0]["trace_hash"])

    def test_phantom_without_an_id_runs_one_publication(self):
        result = run("run", "--phantom", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        ids = [s["id"] for s in json.loads(result.stdout)["scenarios"]]
        self.assertEqual(ids, ["publish.once"])

    def test_of_one_publication_may_be_asked_for_by_its_id(self):
        by_id, by_default = (run(*command, "--phantom", "--json")
                             for command in (("run", "publish.once"), ("run",)))
        self.assertEqual(by_id.stdout, by_default.stdout)
        self.assertEqual(by_id.stderr, by_default.stderr)
        self.assertEqual([s["verdict"] for s in json.loads(by_id.stdout)["scenarios"]], ["passed"])
        both = run("run", "publish.once", "publish.bootstrap", "publish.once", "--json")
        self.assertEqual(both.returncode, 0, both.stderr)
        self.assertEqual([s["id"] for s in json.loads(both.stdout)["scenarios"]],
                         ["publish.bootstrap", "publish.once"])


def without_times(result):
    """A result as it is however the exploration was split and however long it took."""
    schedules = [{**report, "seconds": 0} for report in result["schedules"]]
    return {**result, "schedules": schedules}


class Explore(Folder):
    def test_prints_a_row_per_schedule_under_one_head(self):
        result = run("explore", "--tp", "1")
        self.assertEqual(result.returncode, 0, result.stderr)
        head, *rows = result.stderr.splitlines()[1:5]
        at = head.index("operations")
        self.assertEqual([row.split()[0] for row in rows], ["first-ready", "last-ready", "seeded"])
        for row in rows:
            self.assertEqual(row[at - 1], " ", row)
            self.assertNotEqual(row[at], " ", row)

    def test_random_plans_of_all_shards_are_those_of_the_whole(self):
        def explore(*flags):
            result = run("explore", "--faults", "random", "--tp", "1", "--first", "5", "--seeds",
                         "40", "--json", *flags)
            self.assertEqual(result.returncode, 0, result.stderr)
            return json.loads(result.stdout)["schedules"][0]
        whole = explore()
        self.assertEqual((whole["schedule"], whole["runs"]), ("random", 40))
        parts = [explore("--shard", f"{i}/3") for i in range(3)]
        self.assertEqual(sum(part["runs"] for part in parts), 40)
        self.assertEqual(sum(int(part["trace_hash"], 16) for part in parts) % 2**64,
                         int(whole["trace_hash"], 16))

    def test_flags_of_random_plans_are_refused_without_them(self):
        for flags in (("--seeds", "5"), ("--first", "1"), ("--budget-s", "1")):
            result = run("explore", *flags)
            self.assertEqual(result.returncode, 64)
            self.assertIn(flags[0] + ": only for --faults random", result.stderr)
        for flags in (("--shard", "3/3"), ("--depth", "2"), ("--preemptions", "2"), ("--swarm",),
                      ("--schedules", "bounded"), ("--faults", "none"), ("--jobs", "0"),
                      ("--faults", "pairs", "--schedules", "pct"), ("--schedules", "all")):
            self.refused("explore", *flags, names="--")

    def result(self, *flags):
        result = run("explore", "--tp", "1", "--json", *flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def test_jobs_share_the_work_and_change_nothing(self):
        for flags in (("--faults", "single"), ("--faults", "random", "--seeds", "50"),
                      ("--faults", "pairs", "--shard", "3/300"),
                      ("--faults", "none", "--schedules", "pct", "--seeds", "7")):
            self.assertEqual(without_times(self.result(*flags, "--jobs", "3")),
                             without_times(self.result(*flags)))

    def test_merged_shards_are_the_whole(self):
        for flags in (("--faults", "single"),
                      ("--faults", "random", "--seeds", "48", "--draw-worlds", "--swarm"),
                      ("--faults", "none", "--schedules", "bounded", "--preemptions", "1")):
            whole = self.result(*flags)
            names = [self.write(f"{i}.json", json.dumps(self.result(*flags, "--shard", f"{i}/3")))
                     for i in (2, 0, 1)]
            merged = run("merge", *names, "--json", "--out", self.path("merged"))
            self.assertEqual(merged.returncode, 0, merged.stderr)
            self.assertEqual(without_times(json.loads(merged.stdout)), without_times(whole))
            with open(self.path("merged/result.json"), encoding="utf-8") as file:
                self.assertEqual(file.read(), merged.stdout)

    def test_parts_that_do_not_fit_together_are_refused(self):
        flags = ("--faults", "random", "--seeds", "9")
        parts = [self.result(*flags, "--shard", f"{i}/2") for i in range(2)]
        first, second = (self.write(f"{i}.json", json.dumps(part)) for i, part in enumerate(parts))
        self.assertEqual(run("merge", first, second).returncode, 0)
        self.refused("merge", first, names=("shard", "1 of 2 is missing"))
        self.refused("merge", first, second, first, names=("0.json", "is shard 0 of 2"))
        for change, name in (({"seed": 2}, "seed"), ({"version": "0"}, "version"),
                             ({"parameters": "--faults single"}, "parameters"),
                             ({"shard": "1/3"}, "shards"), ({"schedules": []}, "schedules")):
            other = self.write("other.json", json.dumps({**parts[1], **change}))
            self.refused("merge", first, other, names=("other.json", name))
        self.refused("merge", TINY4, names="tpsync_exploration")
        self.refused("merge", self.write("broken.json", "{"), names="broken.json")

    def test_coverage_has_no_blank_cell(self):
        result = run("explore", "--tp", "2", "--coverage", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        faults = {fault["name"] for fault in json.loads(run("list", "--faults", "--json").stdout)}
        for report in json.loads(result.stdout)["schedules"]:
            self.assertGreater(len(report["coverage"]), 20)
            for row in report["coverage"]:
                self.assertEqual(set(row["faults"]), faults)
                for cell in row["faults"].values():
                    if isinstance(cell, dict):
                        self.assertGreater(cell["runs"], 0, row)
                    else:
                        self.assertRegex(cell, "^not applicable: no operation of .* \\(.+\\)$")
        self.assertIn("applicable cells have a run", result.stderr)
        self.assertIn("a: not applicable: ", result.stderr)

    def test_every_run_can_be_made_twice(self):
        report = self.result("--faults", "random", "--seeds", "40",
                             "--check-determinism")["schedules"][0]
        self.assertEqual((report["repeated"], report["diverged"]), (report["runs"], 0))


class Shrink(Folder):
    def failing(self, **changes):
        """A replay file of a pair that is said to be survived."""
        self.assertEqual(run("explore", "--tp", "2", "--seed", "7", "--out",
                             self.folder).returncode, 0)
        recorded = self.read("seeded-fault-free.replay.json")
        recorded["trace_hash"] = ""
        recorded["plan"]["faults"] = [{
            "name": "channel.eof",
            "moment": {"role": "actor", "rank": 0, "phase": "native-transfer", "chunk": 1,
                       "op": "channel.read", "occurrence": 0}}]
        recorded["facts"] = [{"demand": "survive", "kinds": ["end of file"]}]
        return self.write("bad.replay.json", json.dumps({**recorded, **changes}))

    def test_leaves_a_minimal_replay_file_that_fails_in_the_same_way(self):
        result = run("shrink", self.failing())
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, "I10: 1 fault, 0 deviations, TP 1, 1 chunk\n")
        self.assertIn("actor 0", result.stderr)
        minimal = self.read("bad.min.replay.json")
        self.assertEqual((minimal["tp"], minimal["seed"]), (1, 1))
        self.assertEqual(minimal["plan"]["faults"][0]["moment"]["chunk"], 0)
        replayed = run("replay", self.path("bad.min.replay.json"))
        self.assertEqual(replayed.returncode, 1, replayed.stderr)
        self.assertIn("I10", replayed.stderr)

    def test_refuses_what_it_cannot_reduce(self):
        fine = self.failing(facts=[{"demand": "fail", "kinds": ["end of file"]}])
        result = run("shrink", fine)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("does not fail", result.stderr)
        self.refused("shrink", TINY4, names="tpsync_replay")
        self.assertEqual(run("run", "publish.bootstrap", "--out", self.folder).returncode, 0)
        self.refused("shrink", self.path("publish.bootstrap.replay.json"), names="scenario")


class Replay(Folder):
    def replay(self, recorded):
        return run("replay", self.write("changed.replay.json", json.dumps(recorded)))

    def test_of_a_scenario_is_the_recorded_run(self):
        self.assertEqual(run("run", "rank.every-gate", "publish.layouts", "--tp", "2", "--out",
                             self.folder).returncode, 0)
        for name in ("rank.every-gate", "publish.layouts"):
            result = run("replay", os.path.join(self.folder, name + ".replay.json"))
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(result.stdout.split(),
                             ["trace_hash", self.read(name + ".replay.json")["trace_hash"]])

    def test_of_a_world_without_a_cruelty_is_again_without_it(self):
        self.assertEqual(run("run", "copy.late", "--tp", "2", "--without", "late_copies", "--lane",
                             "--out", self.folder).returncode, 0)
        recorded = self.read("copy.late.replay.json")
        self.assertEqual(recorded["without"], ["late_copies"])
        self.assertEqual(self.replay(recorded).returncode, 0)
        self.assertEqual(self.replay({**recorded, "without": []}).returncode, 3)
        self.assertEqual(self.replay({**recorded, "without": ["rain"]}).returncode, 64)

    def test_says_what_differs_or_is_not_there(self):
        self.assertEqual(run("run", "publish.pipes", "--out", self.folder).returncode, 0)
        recorded = self.read("publish.pipes.replay.json")
        other = self.replay({**recorded, "trace_hash": "0" * 32})
        self.assertEqual(other.returncode, 3, other.stderr)
        self.assertIn("0" * 32, other.stderr)
        for change, named in (({"world": 99}, "world"), ({"scenario": "no.such"}, "scenario"),
                              ({"tp": 0}, "tp"), ({"bucket_bytes": "much"}, "bucket_bytes")):
            refused = self.replay({**recorded, **change})
            self.assertEqual(refused.returncode, 64, refused.stderr)
            self.assertIn(named, refused.stderr)

    def test_takes_no_value_of_another_type_or_range(self):
        self.assertEqual(run("explore", "--tp", "1", "--out", self.folder).returncode, 0)
        recorded = self.read("seeded-fault-free.replay.json")
        wrong = {"tpsync_replay": (1.9, 2, "1", True),
                 "tp": (4.9, True, 0, -1, 33, 2 ** 32 + 1, 3),
                 "actors": (2, 0, 1.0),
                 "seed": (1e300, -1, 1.5, False),
                 "bucket_bytes": (-1, 0, 8, 1024.0, 2 ** 63),
                 "headroom_bytes": (-1, 2 ** 63, 0.5),
                 "device_bytes": (-1, 2 ** 63),
                 "kv_cache_bytes": (-1, 2 ** 63),
                 "control_timeout_ns": (-5, 0, 1, 1e10, 2 ** 63 - 1),
                 "weight_update_timeout_ns": (-1, 0, 2 ** 63 - 1),
                 "startup_timeout_ns": (-1, 0, 2 ** 63 - 1),
                 "base_version": (-1, 2 ** 63 - 1, 0.0),
                 "pipe_capacity": (-1, 0, 1.5, 2 ** 62),
                 "policy": (-1, 4, 1.0, True),
                 "deviations": ([[1]], [[0.5, 1]], [[0, -1]], [1], {}),
                 "phantom": (1, "yes"),
                 "stored": ("int64", 1),
                 "actor_uuids": ("x", ["a", "b"], [1]),
                 "lane_bytes": (-1, 7, 8, 1.5)}
        for field, values in wrong.items():
            for value in values:
                refused = self.replay({**recorded, field: value})
                self.assertEqual(refused.returncode, 64, (field, value, refused.stderr))
                self.assertIn(field, refused.stderr.split("changed.replay.json", 1)[1])

    def test_of_a_pair_that_breaks_its_demand_fails_as_it_did_before(self):
        self.assertEqual(run("explore", "--tp", "1", "--out", self.folder).returncode, 0)
        recorded = self.read("seeded-fault-free.replay.json")
        same = self.replay(recorded)
        self.assertEqual(same.returncode, 0, same.stderr)
        self.assertIn(recorded["trace_hash"], same.stdout)
        recorded["trace_hash"] = ""
        recorded["plan"]["faults"] = [{
            "name": "channel.eof",
            "moment": {"role": "actor", "rank": 0, "phase": "native-start", "chunk": 0,
                       "op": "channel.read", "occurrence": 0}}]
        recorded["facts"] = [{"demand": "fail", "kinds": ["end of file"]}]
        good = self.replay(recorded)
        self.assertEqual(good.returncode, 0, good.stderr)
        recorded["facts"] = [{"demand": "survive", "kinds": []}]
        bad = self.replay(recorded)
        self.assertEqual(bad.returncode, 1, bad.stderr)
        self.assertIn("I10", bad.stderr)


class Lists(unittest.TestCase):
    def test_the_table_of_worlds_is_the_one_of_the_documentation(self):
        with open(os.path.join(MODELS, os.pardir, "README.md"), encoding="utf-8") as file:
            documented = file.read().split("<!-- worlds-table -->")[1]
        lines = run("list", "--worlds").stdout.splitlines()
        self.assertEqual([line.strip() for line in documented.strip().splitlines()],
                         [line.strip() for line in lines])
        self.assertFalse([line for line in lines if len(line.split()) < 3], "a blank cell")

    def test_every_scenario_and_fault_can_be_described(self):
        scenarios = json.loads(run("list", "--json").stdout)
        faults = json.loads(run("list", "--faults", "--json").stdout)
        self.assertGreater(len(scenarios), 20)
        for name in [s["id"] for s in scenarios] + [f["name"] for f in faults] + ["publish.once"]:
            result = run("describe", name)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(name, result.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
