"""The server as the OpenAI Python client sees it, with the default model, and what happens when clients vanish.

Needs the program ($ATTEST_BINARY), the default model in the cache and the package openai; exits 77 where one is
missing."""
import json
import os
import pathlib
import re
import socket
import subprocess
import threading
import time
import unittest
import urllib.error
import urllib.request

from prerequisites import run_tests

try:
    import openai
except ImportError:
    openai = None

BINARY = os.environ.get("ATTEST_BINARY", "")
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
FOLDERS = [pathlib.Path(os.environ.get("ATTEST_MODELS") or CACHE / "attest-models"), CACHE / "attest/models"]
MODEL = next((folder / FILE for folder in FOLDERS if (folder / FILE).is_file()), None)
NAME = "smol/test"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


class Server:
    """attest serve on a free port."""

    def __init__(self, *flags, max_model_len=1024):
        self.process = subprocess.Popen(
            [BINARY, "serve", str(MODEL), "--host", "127.0.0.1", "--port", "0", "--max-model-len", str(max_model_len),
             "--served-model-name", NAME, *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in self.process.stdout:
            if found := re.search(r"listening on (http://127\.0\.0\.1:(\d+))", line):
                self.url, self.port = found[1], int(found[2])
                break
        else:
            raise RuntimeError(f"attest serve ended with status {self.process.wait()}")
        self.reader = threading.Thread(target=self.process.stdout.read, daemon=True)
        self.reader.start()

    def client(self, api_key="any"):
        return openai.OpenAI(base_url=self.url + "/v1", api_key=api_key, max_retries=0)

    def metric(self, name):
        with urllib.request.urlopen(self.url + "/metrics", timeout=10) as reply:
            text = reply.read().decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
                   if line.startswith(f"attest:{name}{{"))

    def stop(self):
        self.process.terminate()
        return self.ended()

    def ended(self):
        """The exit status, waited for."""
        try:
            return self.process.wait(timeout=60)
        finally:
            self.process.kill()
            self.reader.join()
            self.process.stdout.close()


class WithTheOpenAiClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.client = cls.server.client()

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def complete(self, prompt="The capital of France is", **fields):
        fields = {"model": NAME, "max_tokens": 12, "temperature": 0, **fields}
        return self.client.completions.create(prompt=prompt, **fields)

    def test_models_are_listed_and_found_by_name(self):
        (model,) = self.client.models.list().data
        self.assertEqual(model.id, NAME)
        self.assertEqual(self.client.models.retrieve(NAME).max_model_len, 1024)
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("another/model")

    def test_a_completion_answers(self):
        answer = self.complete()
        self.assertIn("Paris", answer.choices[0].text)
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.usage.completion_tokens, 12)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + 12)

    def test_a_priority_without_its_policy_is_refused(self):
        with self.assertRaises(openai.BadRequestError) as refused:
            self.complete(extra_body={"priority": 1})
        self.assertIn("fcfs", str(refused.exception))

    def test_a_chat_answers_and_ends_by_itself(self):
        answer = self.client.chat.completions.create(model=NAME, messages=QUESTION, temperature=0)
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertIn("Paris", answer.choices[0].message.content)
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assertNotIn("<|im_end|>", answer.choices[0].message.content)

    def test_streams_say_what_the_whole_answers_say(self):
        whole = self.complete(max_tokens=24)
        chunks = list(self.complete(max_tokens=24, stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].text for c in chunks if c.choices), whole.choices[0].text)
        self.assertEqual(chunks[-1].usage.completion_tokens, 24)

        chat = {"model": NAME, "messages": QUESTION, "temperature": 0, "max_completion_tokens": 24}
        whole = self.client.chat.completions.create(**chat)
        chunks = list(self.client.chat.completions.create(**chat, stream=True))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks), whole.choices[0].message.content)
        self.assertEqual(chunks[-1].choices[0].finish_reason, whole.choices[0].finish_reason)

    def test_token_ids_and_batches_keep_their_order(self):
        prompts = ["The capital of France is", "One, two, three,"]
        alone = [self.complete(prompt).choices[0].text for prompt in prompts]
        batch = self.complete(prompts, n=2).choices
        self.assertEqual([choice.index for choice in batch], [0, 1, 2, 3])
        self.assertEqual([choice.text for choice in batch], [alone[0], alone[0], alone[1], alone[1]])
        ids = self.complete([504, 3575, 282, 4649, 314])  # "The capital of France is"
        self.assertEqual((ids.choices[0].text, ids.usage.prompt_tokens), (alone[0], 5))

    def test_a_stop_string_cuts_the_text_on_every_route(self):
        text = self.complete(max_tokens=24).choices[0].text
        stop = text[7:13]
        expected = text[:text.index(stop)]
        answer = self.complete(max_tokens=24, stop=[stop, "never said"])
        self.assertEqual((answer.choices[0].text, answer.choices[0].finish_reason), (expected, "stop"))
        chunks = self.complete(max_tokens=24, stop=stop, stream=True)
        self.assertEqual("".join(c.choices[0].text for c in chunks), expected)

    def test_seeds_make_choices_that_differ_and_repeat(self):
        def texts():
            answer = self.complete("Once upon a time", n=3, seed=1, temperature=1.0, max_tokens=20)
            self.assertEqual(answer.usage.completion_tokens, 60)
            return [choice.text for choice in answer.choices]

        first = texts()
        self.assertEqual(len(set(first)), 3)
        self.assertEqual(texts(), first)

    def test_logprobs_are_the_clients_types(self):
        choice = self.complete(logprobs=2, max_tokens=4).choices[0]
        logprobs = choice.logprobs
        self.assertEqual("".join(logprobs.tokens), choice.text)
        offsets = [o - logprobs.text_offset[0] for o in logprobs.text_offset]
        self.assertEqual([choice.text[o:o + len(t)] for o, t in zip(offsets, logprobs.tokens)], logprobs.tokens)
        for value, top in zip(logprobs.token_logprobs, logprobs.top_logprobs):
            self.assertEqual(value, max(top.values()))  # greedy

        chat = {"model": NAME, "messages": QUESTION, "temperature": 0, "logprobs": True, "top_logprobs": 3}
        whole = self.client.chat.completions.create(**chat).choices[0]
        content = whole.logprobs.content
        text = b"".join(bytes(entry.bytes) for entry in content).decode()
        self.assertEqual(text.removesuffix("<|im_end|>"), whole.message.content)
        for entry in content:
            self.assertEqual(len(entry.top_logprobs), 3)
            self.assertEqual((entry.token, entry.logprob), (entry.top_logprobs[0].token, entry.top_logprobs[0].logprob))
        streamed = [entry for chunk in self.client.chat.completions.create(**chat, stream=True)
                    if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
        self.assertEqual(streamed, content)

    def test_biases_and_penalties_change_the_text(self):
        plain = self.complete(max_tokens=8)
        paris = self.complete(logprobs=0, max_tokens=1, extra_body={"return_tokens_as_token_ids": True})
        first = paris.choices[0].logprobs.tokens[0].removeprefix("token_id:")
        other = self.complete(max_tokens=8, logit_bias={first: -100})
        self.assertNotEqual(other.choices[0].text, plain.choices[0].text)
        only = self.complete(max_tokens=5, extra_body={"allowed_token_ids": [int(first)], "ignore_eos": True})
        self.assertEqual(only.choices[0].text, self.complete(max_tokens=1).choices[0].text * 5)
        self.assertNotIn("Paris", self.complete(extra_body={"bad_words": ["Paris"]}).choices[0].text)
        # A word that costs more each time does not fill the text.
        counting = self.complete("a a a a a a a a", max_tokens=24, extra_body={"ignore_eos": True})
        varied = self.complete("a a a a a a a a", max_tokens=24, frequency_penalty=2, presence_penalty=2,
                               extra_body={"ignore_eos": True, "repetition_penalty": 1.5})
        self.assertGreater(len(set(varied.choices[0].text.split())), len(set(counting.choices[0].text.split())))

    def test_errors_are_the_right_exceptions(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            self.complete(model="nobody")
        self.assertEqual((caught.exception.param, caught.exception.type), ("model", "NotFoundError"))
        self.assertTrue(caught.exception.request_id)
        for field, value in (("temperature", -1), ("logprobs", 21), ("echo", "yes"), ("max_tokens", 5000)):
            with self.assertRaises(openai.BadRequestError, msg=field) as caught:
                self.complete(**{field: value})
            self.assertEqual(caught.exception.param, field)
        with self.assertRaises(openai.BadRequestError):
            self.complete([1] * 2000)
        with self.assertRaises(openai.BadRequestError):
            self.client.chat.completions.create(model=NAME, messages=[])

    def test_clients_that_vanish_free_their_sequences(self):
        body = b'{"prompt":"Once upon a time","max_tokens":900,"ignore_eos":true,"stream":true,"n":2}'
        head = b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % len(body)
        aborted = self.server.metric("request_success_total")
        sockets = []
        for _ in range(3):
            sockets.append(socket.create_connection(("127.0.0.1", self.server.port), timeout=30))
            sockets[-1].sendall(head + body)
        for one in sockets:
            self.assertIn(b"data: ", one.recv(65536) + one.recv(65536))
        # The engine publishes its numbers after each step, so those of the first tokens may still be on their way.
        deadline = time.monotonic() + 10
        while self.server.metric("num_requests_running") < 6 and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual(self.server.metric("num_requests_running") + self.server.metric("num_requests_waiting"), 6)
        for one in sockets:
            one.close()
        deadline = time.monotonic() + 10
        while self.server.metric("num_requests_running") > 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(self.server.metric("num_requests_running"), 0)
        self.assertEqual(self.server.metric("kv_cache_usage_perc"), 0)
        self.assertEqual(self.server.metric("request_success_total"), aborted + 6)
        self.assertIn("Paris", self.complete().choices[0].text)


class WithAKey(unittest.TestCase):
    def test_only_the_right_key_is_served(self):
        server = Server("--api-key", "secret")
        try:
            with self.assertRaises(openai.AuthenticationError):
                server.client().models.list()
            self.assertEqual(server.client("secret").models.list().data[0].id, NAME)
        finally:
            self.assertEqual(server.stop(), 0)


class ThePrefixCache(unittest.TestCase):
    PROMPT = "The sea is wide. " * 40

    def cached(self, server, tail, **fields):
        answer = server.client().completions.create(
            model=NAME, prompt=self.PROMPT + tail, max_tokens=4, temperature=0, extra_body=fields)
        return answer.choices[0].text, answer.usage.prompt_tokens_details.cached_tokens

    def reset(self, server):
        request = urllib.request.Request(server.url + "/reset_prefix_cache", method="POST")
        with urllib.request.urlopen(request, timeout=30) as reply:
            return json.load(reply)

    def test_a_shared_beginning_is_reused_reported_and_forgotten(self):
        server = Server("--enable-dev-endpoints")
        try:
            text, cached = self.cached(server, "The ship")
            self.assertEqual(cached, 0)
            again, hit = self.cached(server, "The ship")
            self.assertEqual(again, text)
            self.assertGreaterEqual(hit, 192)  # 200 tokens and more, in blocks of 16
            self.assertEqual(self.cached(server, "A boat")[1], hit)
            self.assertEqual(server.metric("prefix_cache_hits_total"), 2 * hit)
            self.assertEqual(server.metric("prompt_tokens_cached_total"), 2 * hit)
            self.assertGreater(server.metric("prefix_cache_queries_total"), 3 * hit)
            self.assertEqual(self.cached(server, "The ship", cache_salt="another")[1], 0)
            self.assertEqual(self.reset(server), {"success": True})
            self.assertEqual(self.cached(server, "The ship")[1], 0)
        finally:
            self.assertEqual(server.stop(), 0)

    def test_without_it_nothing_is_reused_and_there_is_no_route_to_reset_it(self):
        server = Server("--no-enable-prefix-caching")
        try:
            self.assertEqual(self.cached(server, "The ship"), self.cached(server, "The ship"))
            self.assertEqual(self.cached(server, "The ship")[1], 0)
            with self.assertRaises(urllib.error.HTTPError) as refused:
                self.reset(server)
            self.assertEqual(refused.exception.code, 404)
        finally:
            self.assertEqual(server.stop(), 0)

    def test_a_priority_is_taken_under_its_policy(self):
        server = Server("--scheduling-policy", "priority")
        try:
            self.assertIn("text", server.client().completions.create(
                model=NAME, prompt="a", max_tokens=1, extra_body={"priority": -2}).choices[0].model_dump())
        finally:
            self.assertEqual(server.stop(), 0)


class Draining(unittest.TestCase):
    def test_what_runs_finishes_and_the_rest_is_told_to_come_back(self):
        server = Server()
        self.addCleanup(server.process.kill)
        stream = server.client().completions.create(
            model=NAME, prompt="Once upon a time", max_tokens=300, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        server.process.terminate()
        time.sleep(0.3)
        if server.process.poll() is None:  # else all 300 tokens were faster than that
            with self.assertRaises(openai.InternalServerError) as caught:
                server.client().completions.create(model=NAME, prompt="x")
            self.assertEqual(caught.exception.status_code, 503)
        chunks = list(stream)
        self.assertEqual(chunks[-1].choices[0].finish_reason, "length")
        self.assertEqual(server.ended(), 0)


if __name__ == "__main__":
    run_tests((openai is None, "the package openai"), (not os.path.isfile(BINARY), "$ATTEST_BINARY"),
              (MODEL is None, f"{FILE} in {' or '.join(map(str, FOLDERS))}"))
