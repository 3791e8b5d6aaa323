"""Verbs that make a run prove something: audit (causality, batch, padding) and verify-resume, on real trainers."""
import json
import unittest

import harness
from harness import Cluster

FILE = """
name: proofs
project: test
base:
  kind: train
  data: {{files: {{domains: {{c: ["{corpus}/c/*"], english: ["{corpus}/english/*"]}}, tokens: bytes}}}}
  model:
    transformer_xl: {{layers: 2, d_model: 16, heads: 2, d_head: 8, d_inner: 16, dropout: 0.1}}
    moe: {{layers: [0, 1], experts: 4, top_k: 2}}
  train: {{steps: 30, batch: 4, micro_batch: 2, target_len: 16, memory_len: 16, optimizer: {{adam: {{lr: 3e-3}}}}, schedule: cosine}}
  eval: {{every_steps: 10, splits: [valid], max_tokens: 256, allow_noncausal: true}}
space:
  grid:
    model.moe.router: [{{smoe: {{}}}}, {{mcf: {{r: 3, k_loc: 2, heads: 2, d_kv: 8, local_dir: both}}}}, {{base: {{}}}}]
replicates: {{seeds: [1]}}
telemetry: {{every_steps: 5}}
"""


class Proofs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        cls.addClassCleanup(cls.cluster.close)
        corpus = harness.make_corpus(cls.cluster.folder / "corpus")
        cls.cluster.start_coordinator()
        cls.cluster.start_worker(slots=2)
        text = FILE.format(corpus=corpus).replace("top_k: 2}", "top_k: 1, allow_constant_gate: true}")
        cls.cluster.cli("submit", cls.cluster.write("proofs.yaml", text), "--wait", timeout=300)

    def run_of(self, router):
        return next(r["name"] for r in self.cluster.json("ls", "proofs") if r["router"] == router)

    def last(self, run, series):
        return json.loads(self.cluster.cli("-o", "json", "metrics", run, series).stdout)[-1][series]

    def test_every_run_records_what_was_seen(self):
        for router, causality, batch in (("smoe", 0, 0), ("mcf", 2, 0), ("base", 1, 1)):
            run = self.run_of(router)
            self.assertEqual(self.last(run, "audit/causality"), causality, router)
            self.assertEqual(self.last(run, "audit/batch_dependence"), batch, router)
            self.assertEqual(self.last(run, "audit/padding_dependence"), 0, router)
            self.assertEqual(self.last(run, "audit/undeclared"), 0, router)

    def test_audit_of_a_checkpoint_says_the_same(self):
        said = self.cluster.cli("audit", self.run_of("smoe"), timeout=300).stdout
        self.assertIn("seen:      causal; depends on the batch: none; on padding: none", said)
        self.assertIn("passed: as declared", said)
        shown = self.cluster.json("audit", self.run_of("mcf"), timeout=300)
        self.assertEqual(shown["audit/causality"], 2)
        self.assertEqual(shown["step"], 30)
        self.assertIn("layer 0 scores", shown["report"])
        self.assertIn("noncausal", shown["report"])
        # The same checkpoint again: the same audit, not another one.
        again = self.cluster.json("audit", self.run_of("mcf"), timeout=300)
        self.assertEqual(again["audit"], shown["audit"])

    def test_audit_refuses_what_has_no_model_of_its_own(self):
        audit = self.cluster.json("audit", self.run_of("base"), timeout=300)["audit"]
        refused = self.cluster.cli("audit", audit, check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("from their seed", refused.stderr)

    def test_verify_resume_compares_every_bit(self):
        shown = self.cluster.json("verify-resume", self.run_of("mcf"), "--steps", "20", timeout=300)
        self.assertTrue(shown["equal"], shown)
        self.assertEqual([r["how"] for r in shown["resumed"]], ["stopped", "killed"])
        for resumed in shown["resumed"]:
            self.assertGreater(resumed["tensors"], 50)
            self.assertGreater(resumed["points"], 100)
            self.assertEqual(resumed["difference"], "")
        refused = self.cluster.cli("verify-resume", self.run_of("mcf"), "--steps", "20", "--at", "20", check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("is not before the last step", refused.stderr)

    def test_verify_resume_names_the_first_difference(self):
        # A trainer that forgets its checkpoint's optimizer state: a wrapper that hides it behind another seed.
        real = harness.BIN / "switchyard-trainer"
        broken = self.cluster.write("forgetful.sh", f"""#!/bin/bash
dir=
for ((i = 1; i <= $#; ++i)); do [[ ${{!i}} == --dir ]] && j=$((i + 1)) && dir=${{!j}}; done
[[ $dir == */stopped && -d $dir ]] && rm -r "$dir" && exec {real} "${{@/run.json/other.json}}"
[[ -e ${{dir%/*}}/other.json ]] || sed 's/"seed":"1"/"seed":"2"/' "${{dir%/*}}/run.json" > "${{dir%/*}}/other.json"
exec {real} "$@"
""")
        broken.chmod(0o755)
        found = self.cluster.cli("verify-resume", self.run_of("smoe"), "--steps", "12", "--trainer", broken, check=False, timeout=300)
        self.assertEqual(found.returncode, 2, found.stdout + found.stderr)
        self.assertIn("DIFFERS: curve: ", found.stdout)
        self.assertIn("NOT verified", found.stdout)


if __name__ == "__main__":
    unittest.main()
