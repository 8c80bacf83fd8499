"""lm_eval, unmodified, as a client: log-likelihoods equal those of Hugging Face transformers, generations are the same in
one batch and one by one, and the tokenizer comes from the server by itself.

Needs the program ($ATTEST_BINARY), the default model in the cache, and lm_eval in the interpreter that runs this
(`pip install "lm-eval[api]==0.4.13" transformers`: a gigabyte, so it is not among the packages the other tests want);
exits 77 where one is missing. The tasks over other people's data also want the folders lm_eval_tasks and gsm8k of
$ATTEST_TEST_DATA, by default ../shared/data beside the source folder, and are skipped without them."""
import importlib.util
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from logprobs_test import NAME, SOURCE, TOLERANCE, Server, post  # noqa: E402
from openai_client_test import BINARY, MODEL  # noqa: E402
from prerequisites import run_tests  # noqa: E402

OWN_TASKS = SOURCE / "tests/data/clients"
RECORDED = json.loads((OWN_TASKS / "science_choice_hf.json").read_text())
SHARED = pathlib.Path(os.environ.get("ATTEST_TEST_DATA") or SOURCE.parent / "shared/data")
TASKS, GSM8K = SHARED / "lm_eval_tasks", SHARED / "gsm8k"
WITH_TASKS = unittest.skipUnless(TASKS.is_dir(), f"no task files in {TASKS}")
WITH_GSM8K = unittest.skipUnless(TASKS.is_dir() and GSM8K.is_dir(), f"no task files in {TASKS} and {GSM8K}")


class WithLmEval(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--compute", "f32", max_model_len=2048)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def run_tasks(self, tasks, *flags, model="local-completions", route="completions", model_args=""):
        """The results by task, and the samples by task in document order."""
        with tempfile.TemporaryDirectory() as folder:
            files = [*OWN_TASKS.glob("*.yaml"), *(TASKS.glob("*.yaml") if TASKS.is_dir() else [])]
            for file in files:
                text = file.read_text()
                for word, path in (("FOLDER", OWN_TASKS), ("TASKS_DIR", TASKS), ("GSM8K_DIR", GSM8K)):
                    text = text.replace(word, str(path))
                pathlib.Path(folder, file.name).write_text(text)
            # Neither a tokenizer nor its backend is named: lm_eval asks the server.
            run = subprocess.run(
                [sys.executable, "-m", "lm_eval", "run", "--model", model, "--model_args",
                 f"model={NAME},base_url={self.server.url}/v1/{route}{model_args}", "--include_path", folder,
                 "--tasks", tasks, "--output_path", folder, "--log_samples", *flags],
                env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_DATASETS_CACHE": folder},
                capture_output=True, text=True, timeout=600)
            self.assertEqual(run.returncode, 0, run.stdout[-2000:] + run.stderr[-4000:])
            (path,) = pathlib.Path(folder).rglob("results_*.json")
            results = json.loads(path.read_text())["results"]
            samples = {}
            for task in tasks.split(","):
                (path,) = pathlib.Path(folder).rglob(f"samples_{task}_*.jsonl")
                lines = [json.loads(line) for line in path.read_text().splitlines()]
                samples[task] = sorted(lines, key=lambda line: line["doc_id"])
            return results, samples, run.stderr

    def test_log_likelihoods_and_scores_are_those_of_transformers(self):
        tasks = "science_choice" + (",facts_choice_local,facts_rolling_local" if TASKS.is_dir() else "")
        results, samples, log = self.run_tasks(tasks, "--batch_size", "16")
        self.assertIn("Using tokenizer remote", log)
        worst, compared = 0.0, 0
        self.assertEqual(len(samples["science_choice"]), len(RECORDED["documents"]))
        for sample, recorded in zip(samples["science_choice"], RECORDED["documents"]):
            self.assertEqual(len(sample["resps"]), len(recorded["loglikelihoods"]))
            for ((got, is_greedy),), want, want_greedy in zip(sample["resps"], recorded["loglikelihoods"], recorded["greedy"]):
                worst = max(worst, abs(float(got) - want))
                compared += 1
                self.assertEqual(str(is_greedy), str(want_greedy), sample["doc"])
        print(f"science_choice: {compared} log-likelihoods, largest difference {worst:.2g}; "
              f"acc {results['science_choice']['acc,none']}")
        self.assertLess(worst, TOLERANCE)
        self.assertEqual(results["science_choice"]["acc,none"], RECORDED["accuracy"])
        if "facts_choice_local" not in results:
            return
        # Another server with the same weights has 1.0 and 0.875.
        facts = results["facts_choice_local"]
        print("facts_choice_local:", facts["acc,none"], facts["acc_norm,none"])
        self.assertEqual(facts["acc,none"], 1.0)
        self.assertGreaterEqual(facts["acc_norm,none"], 0.75)
        self.check_perplexity(results["facts_rolling_local"]["word_perplexity,none"])

    def check_perplexity(self, got):
        documents = [json.loads(line) for line in (TASKS / "facts_choice.jsonl").read_text().splitlines()]
        texts = [f"{d['question']} {d['choices'][d['answer']]}." for d in documents]
        prompts = [post(self.server, "/tokenize", {"prompt": "<|im_start|>" + text, "add_special_tokens": False})["tokens"]
                   for text in texts]
        answer = post(self.server, "/v1/completions", {"prompt": prompts, "prompt_logprobs": 0, "max_tokens": 1})
        total = 0.0
        for choice, prompt in zip(answer["choices"], prompts):
            total += sum(entry[str(token)]["logprob"] for entry, token in zip(choice["prompt_logprobs"][1:], prompt[1:]))
        want = math.exp(-total / sum(len(text.split()) for text in texts))
        print("facts_rolling_local:", got, want)
        self.assertAlmostEqual(got / want, 1.0, places=3)

    @WITH_GSM8K
    def test_one_batch_of_a_hundred_and_six_at_once_generate_the_same(self):
        flags = ("--limit", "6", "--gen_kwargs", "max_gen_toks=64")
        _, batch, _ = self.run_tasks("gsm8k_local", "--batch_size", "100", *flags)
        _, single, _ = self.run_tasks("gsm8k_local", "--batch_size", "1", *flags, model_args=",num_concurrent=6")
        batch, single = ([line["resps"] for line in run["gsm8k_local"]] for run in (batch, single))
        self.assertEqual(len(batch), 12)  # six documents, two filters
        self.assertEqual(batch, single)
        self.assertTrue(all("####" in text or len(text) > 20 for ((text,),) in batch), batch)

    @WITH_GSM8K
    def test_chats_are_answered(self):
        results, samples, _ = self.run_tasks(
            "gsm8k_local", "--batch_size", "1", "--limit", "2", "--apply_chat_template", "--gen_kwargs", "max_gen_toks=64",
            model="local-chat-completions", route="chat/completions", model_args=",num_concurrent=4")
        self.assertIn("exact_match,last-number", results["gsm8k_local"])
        for sample in samples["gsm8k_local"]:
            ((text,),) = sample["resps"]
            self.assertRegex(text, r"\d")


if __name__ == "__main__":
    run_tests((not os.path.isfile(BINARY), "$ATTEST_BINARY"), (MODEL is None, "the default model"),
              (importlib.util.find_spec("lm_eval") is None, 'lm_eval (pip install "lm-eval[api]==0.4.13" transformers)'))
