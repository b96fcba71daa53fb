#!/usr/bin/env python3
"""The tpsync command as its users see it: figures, exit codes, what goes to which stream."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

TPSYNC = sys.argv.pop(1)
MODELS = sys.argv.pop(1)
QWEN = os.path.join(MODELS, "qwen3-30b-a3b.json")
TINY4 = os.path.join(MODELS, "tiny-tp4.json")


def run(*arguments, cwd=None):
    return subprocess.run([TPSYNC, *arguments], capture_output=True, text=True, timeout=300,
                          cwd=cwd)


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


class Usage(unittest.TestCase):
    def refused(self, *arguments, names):
        result = run(*arguments)
        self.assertEqual(result.returncode, 64, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
        self.assertIn(names, result.stderr)

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


class Run(unittest.TestCase):
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


class Replay(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def read(self, name):
        with open(os.path.join(self.folder, name), encoding="utf-8") as file:
            return json.load(file)

    def replay(self, recorded):
        path = os.path.join(self.folder, "changed.replay.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(recorded, file)
        return run("replay", path)

    def test_of_a_scenario_is_the_recorded_run(self):
        self.assertEqual(run("run", "rank.every-gate", "publish.layouts", "--tp", "2", "--out",
                             self.folder).returncode, 0)
        for name in ("rank.every-gate", "publish.layouts"):
            result = run("replay", os.path.join(self.folder, name + ".replay.json"))
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(result.stdout.split(),
                             ["trace_hash", self.read(name + ".replay.json")["trace_hash"]])

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
        recorded["facts"] = [{"demand": "fail", "kinds": ["kEndOfFile"]}]
        good = self.replay(recorded)
        self.assertEqual(good.returncode, 0, good.stderr)
        recorded["facts"] = [{"demand": "survive", "kinds": []}]
        bad = self.replay(recorded)
        self.assertEqual(bad.returncode, 1, bad.stderr)
        self.assertIn("I10", bad.stderr)


class Lists(unittest.TestCase):
    def test_every_scenario_and_fault_can_be_described(self):
        scenarios = json.loads(run("list", "--json").stdout)
        faults = json.loads(run("list", "--faults", "--json").stdout)
        self.assertGreater(len(scenarios), 20)
        for name in [s["id"] for s in scenarios] + [f["name"] for f in faults]:
            result = run("describe", name)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(name, result.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
