"""Load generators, unmodified, against the server: every request succeeds, and what they counted and timed agrees with
/metrics, fetched before and after.

Needs the program ($ATTEST_BINARY), the default model in the cache and a folder with its tokenizer for the clients
($ATTEST_HF_SMOLLM2, by default ~/.cache/attest-models/hf-smollm2). The clients are gigabytes, so they are not among the
packages the other tests want; each is looked for in $PATH or under the variable named here, and skipped without it:

    pip install guidellm==0.8.1     $ATTEST_GUIDELLM   the program guidellm
    pip install aiperf==0.13.0      $ATTEST_AIPERF     the program aiperf
    pip install vllm                $ATTEST_VLLM       the program vllm (0.32 was tried), or a command that runs it

Exits 77 where none can run."""
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from openai_client_test import BINARY, CACHE, MODEL, NAME, Server  # noqa: E402
from prerequisites import run_tests  # noqa: E402

TOKENIZER = pathlib.Path(os.environ.get("ATTEST_HF_SMOLLM2") or CACHE / "attest-models/hf-smollm2")
REQUESTS, STREAMS, PROMPT_TOKENS, OUTPUT_TOKENS = 20, 2, 192, 48
# Clients begin their clock before the request travels and stop it in their own event loop.
COUNT_TOLERANCE, TIME_TOLERANCE = 0.05, 0.05


def command(program):
    """The words that run a client, or none."""
    if text := os.environ.get("ATTEST_" + program.upper()):
        return shlex.split(text)
    found = shutil.which(program)
    return [found] if found else []


def needs(program):
    return unittest.skipUnless(command(program), f"{program} is not installed")


class BenchClients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # One thread of two cores: a client that waits for a core would time itself.
        cls.server = Server("--threads", "1")
        body = {"model": NAME, "prompt": "warm", "max_tokens": 4}
        urllib.request.urlopen(urllib.request.Request(cls.server.url + "/v1/completions", json.dumps(body).encode())).close()

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def scrape(self):
        """Sums of the series by name."""
        with urllib.request.urlopen(self.server.url + "/metrics", timeout=10) as reply:
            lines = reply.read().decode().splitlines()
        sums = {}
        for line in lines:
            if line.startswith("attest:") and "_bucket{" not in line:
                name = line[len("attest:"):line.index("{")]
                if name != "request_success_total" or 'reason="stop"' in line or 'reason="length"' in line:
                    sums[name] = sums.get(name, 0.0) + float(line.rsplit(" ", 1)[1])
        return sums

    def run_client(self, words, folder, **environment):
        """What /metrics counted meanwhile, means in milliseconds."""
        before = self.scrape()
        run = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300,
                             env={**os.environ, **environment})
        self.assertEqual(run.returncode, 0, run.stdout[-3000:] + run.stderr[-3000:])
        after = self.scrape()
        delta = {name: value - before.get(name, 0.0) for name, value in after.items()}

        def mean_ms(histogram):
            return 1000 * delta[histogram + "_sum"] / delta[histogram + "_count"]

        return {"requests": delta["request_success_total"], "prompt tokens": delta["prompt_tokens_total"],
                "output tokens": delta["generation_tokens_total"], "TTFT ms": mean_ms("time_to_first_token_seconds"),
                "ITL ms": mean_ms("inter_token_latency_seconds"), "request ms": mean_ms("e2e_request_latency_seconds")}

    def check(self, program, client, server):
        print(program, {name: f"{client[name]:.4g} / {server[name]:.4g}" for name in client}, "(client / server)")
        self.assertEqual(client["requests"], REQUESTS)
        self.assertEqual(server["requests"], REQUESTS)
        for name, value in client.items():
            tolerance = TIME_TOLERANCE if name.endswith(" ms") else COUNT_TOLERANCE
            self.assertLessEqual(abs(value / server[name] - 1), tolerance, (program, name, value, server[name]))

    @needs("guidellm")
    def test_guidellm(self):
        with tempfile.TemporaryDirectory() as folder:
            server = self.run_client(
                [*command("guidellm"), "run", "--backend", f"kind=openai_http,target={self.server.url},model={NAME}",
                 "--profile", f"kind=concurrent,streams={STREAMS}", "--constraint", f"kind=max_requests,count={REQUESTS}",
                 "--tokenizer", f"kind=hf_auto,model={TOKENIZER}",
                 "--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}",
                 "--output", "kind=json,path=bench.json", "--disable-progress"], folder, HF_HUB_OFFLINE="1")
            (benchmark,) = json.loads(pathlib.Path(folder, "bench.json").read_text())["benchmarks"]
        metrics = benchmark["metrics"]
        self.assertEqual((metrics["request_totals"]["successful"], metrics["request_totals"]["errored"]), (REQUESTS, 0))
        of = {name: metrics[name]["successful"] for name in
              ("prompt_token_count", "output_token_count", "time_to_first_token_ms", "inter_token_latency_ms", "request_latency")}
        self.check("guidellm", {
            "requests": metrics["request_totals"]["successful"],
            "prompt tokens": of["prompt_token_count"]["total_sum"], "output tokens": of["output_token_count"]["total_sum"],
            "TTFT ms": of["time_to_first_token_ms"]["mean"], "ITL ms": of["inter_token_latency_ms"]["mean"],
            "request ms": 1000 * of["request_latency"]["mean"]}, server)

    @needs("aiperf")
    def test_aiperf(self):
        with tempfile.TemporaryDirectory() as folder:
            words = [*command("aiperf"), "profile", "-m", NAME, "--url", self.server.url, "--endpoint-type", "completions",
                     "--streaming", "--tokenizer", str(TOKENIZER), "--concurrency", str(STREAMS),
                     "--request-count", str(REQUESTS), "--isl", str(PROMPT_TOKENS), "--osl", str(OUTPUT_TOKENS),
                     "--random-seed", "1", "--ui", "none", "--extra-inputs", "ignore_eos:true", "--use-server-token-count"]
            # With HF_HUB_OFFLINE it takes the folder for a name.
            server = self.run_client(["env", "-u", "HF_HUB_OFFLINE", "-u", "TRANSFORMERS_OFFLINE", *words], folder)
            (path,) = pathlib.Path(folder).rglob("profile_export_aiperf.json")
            result = json.loads(path.read_text())
        self.assertEqual(result["error_summary"], [])
        self.check("aiperf", {
            "requests": result["request_count"]["avg"],
            "prompt tokens": result["input_sequence_length"]["avg"] * REQUESTS,
            "output tokens": result["output_sequence_length"]["avg"] * REQUESTS,
            "TTFT ms": result["time_to_first_token"]["avg"], "ITL ms": result["inter_token_latency"]["avg"],
            "request ms": result["request_latency"]["avg"]}, server)

    @needs("vllm")
    def test_vllm_bench_serve(self):
        with tempfile.TemporaryDirectory() as folder:
            server = self.run_client(
                [*command("vllm"), "bench", "serve", "--backend", "openai", "--base-url", self.server.url,
                 "--endpoint", "/v1/completions", "--model", NAME, "--tokenizer", str(TOKENIZER),
                 "--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS),
                 "--random-output-len", str(OUTPUT_TOKENS), "--num-prompts", str(REQUESTS), "--max-concurrency", str(STREAMS),
                 "--seed", "1", "--ignore-eos", "--percentile-metrics", "ttft,tpot,itl,e2el",
                 "--save-result", "--result-filename", "bench.json"], folder,
                HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
            result = json.loads(pathlib.Path(folder, "bench.json").read_text())
        self.assertEqual(result["failed"], 0)
        self.check("vllm bench serve", {
            "requests": result["completed"], "prompt tokens": result["total_input_tokens"],
            "output tokens": result["total_output_tokens"], "TTFT ms": result["mean_ttft_ms"],
            "ITL ms": result["mean_itl_ms"], "request ms": result["mean_e2el_ms"]}, server)


if __name__ == "__main__":
    run_tests((not os.path.isfile(BINARY), "$ATTEST_BINARY"), (MODEL is None, "the default model"),
              (not any(map(command, ("guidellm", "aiperf", "vllm"))), "guidellm, aiperf or vllm"),
              (not TOKENIZER.is_dir(), f"a tokenizer in {TOKENIZER}"))
