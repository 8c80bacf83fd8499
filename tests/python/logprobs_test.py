"""Logprobs of prompts over HTTP against those recorded from Hugging Face transformers on the same weights.

Needs the program ($ATTEST_BINARY) and the default model in the cache; exits 77 where one is missing."""
import json
import os
import pathlib
import sys
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from openai_client_test import BINARY, MODEL, NAME, Server  # noqa: E402

SOURCE = pathlib.Path(os.environ.get("ATTEST_SOURCE_DIR") or pathlib.Path(__file__).resolve().parents[2])
RECORDED = json.loads((SOURCE / "tests/data/model/smollm2_hf.json").read_text())["prompts"]
# Both sides sum in float32 in different orders, over 30 layers.
TOLERANCE = 2e-3


def post(server, path, body):
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(),
                                     {"Content-Type": "application/json", "Authorization": "Bearer "})
    with urllib.request.urlopen(request, timeout=300) as reply:
        return json.load(reply)


class AgainstTransformers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # A budget that cuts the long prompt into chunks, and few rows of logits at a time.
        cls.server = Server("--compute", "f32", "--kv-cache-dtype", "f32", "--max-num-batched-tokens", "200",
                            "--max-num-seqs", "16")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def test_prompt_logprobs_are_those_of_transformers(self):
        answer = post(self.server, "/v1/completions", {
            "model": NAME, "prompt": [p["tokens"] for p in RECORDED], "max_tokens": 1, "temperature": 0,
            "logprobs": 5, "echo": True, "seed": 1234})
        self.assertEqual([c["index"] for c in answer["choices"]], list(range(len(RECORDED))))
        worst, compared = 0.0, 0
        for choice, prompt in zip(answer["choices"], RECORDED):
            logprobs = choice["logprobs"]
            length = len(prompt["tokens"])
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                self.assertEqual(len(logprobs[name]), length + 1, (prompt["name"], name))
            self.assertIsNone(logprobs["token_logprobs"][0])
            self.assertIsNone(logprobs["top_logprobs"][0])
            for t, want in enumerate(prompt["next"]):
                got = logprobs["token_logprobs"][t + 1]
                worst = max(worst, abs(got - want))
                compared += 1
                top = logprobs["top_logprobs"][t + 1]
                self.assertIn(got, top.values())  # the same float, not a near one
                best = prompt["top_ids"][t][0]
                if prompt["tokens"][t + 1] == best and prompt["top"][t][0] - prompt["top"][t][1] > 2 * TOLERANCE:
                    self.assertEqual(got, max(top.values()))
        print(f"{compared} prompt logprobs: largest difference {worst:.2g}")
        self.assertGreater(compared, 1200)
        self.assertLess(worst, TOLERANCE)

    def test_generated_logprobs_are_the_prompt_logprobs_of_the_same_text(self):
        prompt = RECORDED[0]["tokens"][:20]
        first = post(self.server, "/v1/completions", {"prompt": prompt, "max_tokens": 24, "temperature": 0, "logprobs": 3,
                                                      "ignore_eos": True, "return_tokens_as_token_ids": True})
        logprobs = first["choices"][0]["logprobs"]
        made = [int(token.removeprefix("token_id:")) for token in logprobs["tokens"]]
        again = post(self.server, "/v1/completions", {"prompt": prompt + made, "max_tokens": 0, "logprobs": 3, "echo": True})
        echoed = again["choices"][0]["logprobs"]["token_logprobs"]
        self.assertEqual(len(echoed), len(prompt) + len(made))
        for generated, scored in zip(logprobs["token_logprobs"], echoed[len(prompt):]):
            self.assertLess(abs(generated - scored), TOLERANCE)

    def test_tokenizer_routes_round_trip(self):
        text = "Grüße, 世界! <|im_end|>"
        tokens = post(self.server, "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
        self.assertEqual(post(self.server, "/detokenize", {"tokens": tokens})["prompt"], text)
        with urllib.request.urlopen(self.server.url + "/tokenizer_info", timeout=10) as reply:
            info = json.load(reply)
        self.assertEqual(info["eos_token"], "<|im_end|>")
        self.assertEqual(tokens[-1:], post(self.server, "/tokenize", {"prompt": info["eos_token"],
                                                                      "add_special_tokens": False})["tokens"])
        self.assertIn("im_start", info["chat_template"])


if __name__ == "__main__":
    if not BINARY or MODEL is None:
        print("skipped: ATTEST_BINARY is not set" if not BINARY else "skipped: the default model is not in the cache")
        sys.exit(77)
    unittest.main(verbosity=2)
