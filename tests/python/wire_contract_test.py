"""The contract on the wire, row by row, against the program as it is served: every route and what its answer holds, the
statuses and headers of what goes wrong, the types that clients send for each field, and the series of /metrics.

Needs the program ($ATTEST_BINARY) and the default model in the cache; exits 77 where one is missing."""
import http.client
import json
import os
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from openai_client_test import BINARY, MODEL, NAME, Server  # noqa: E402
from prerequisites import run_tests  # noqa: E402

NULL = None
# Values of each field that clients send, and that both endpoints take.
TAKEN = {
    "model": [NULL, "", NAME, "alias"], "stop": [NULL, "x", ["x", "y"], []], "max_tokens": [3, 3.0],
    "max_completion_tokens": [NULL, 2], "stream": [NULL, False], "stream_options": [NULL, {}, {"include_usage": False}],
    "seed": [NULL, -5, 0, 2**63 - 1, -2**63, 1.0], "logit_bias": [NULL, {}, {"5": -100, "7": 1.5}], "n": [NULL, 1, 2, 1.0],
    "best_of": [NULL, 1, 3], "top_k": [NULL, -1, 0, 5], "top_p": [NULL, 1, 0.5], "min_p": [NULL, 0, 1], "typical_p": [NULL, 1],
    "temperature": [NULL, 0, 2], "presence_penalty": [NULL, -2], "frequency_penalty": [NULL, 1],
    "repetition_penalty": [NULL, 1.1], "ignore_eos": [NULL, True, False], "stop_token_ids": [NULL, [], [5]],
    "bad_words": [NULL, []], "allowed_token_ids": [NULL], "min_tokens": [NULL, 0, 1], "skip_special_tokens": [NULL, True],
    "include_stop_str_in_output": [NULL, False], "prompt_logprobs": [NULL, 0, 1], "priority": [NULL, 0],
    "cache_salt": [NULL, "s"], "echo": [NULL, False], "add_special_tokens": [NULL, True],
    "return_tokens_as_token_ids": [NULL, False],
    # Ignored, or asking for nothing.
    "user": ["u"], "service_tier": ["auto"], "store": [True, False], "metadata": [{"a": "b"}], "parallel_tool_calls": [True],
    "tools": [NULL, []], "response_format": [NULL, {"type": "text"}], "guided_json": [NULL], "request_id": ["abc"],
    "a_key_of_tomorrow": [{"x": [1]}],
}
# And values that are a 400 which names the field.
REFUSED = {
    "stop": [5, [5], {}, True, ["x"] * 17, ""], "max_tokens": ["5", True, -1, 1.5, [], 10**9],
    "seed": ["1", 1.5, True, 2**63], "logit_bias": [[], "x", {"a": 1}, {"5": "x"}, {"5": 101}, {"-1": 1}, {"999999": 1}],
    "n": [0, "1", 129, True, 1.5], "best_of": [0, "2", 129], "stream": ["true", 1],
    "stream_options": [{"include_usage": True}, 5, []], "temperature": ["0", -1, True, 101, [0]],
    "top_p": [0, 1.1, -1, "x"], "top_k": [-2, 1.5, "5"], "min_p": [-1, 2, "x"], "typical_p": [0, 2],
    "min_tokens": [-1, "x", 4], "stop_token_ids": [5, ["5"], [-1], [10**9]], "bad_words": ["x", [5], [""]],
    "allowed_token_ids": [[], [-1], "x"], "ignore_eos": [0, "x"], "presence_penalty": [3, "x"], "frequency_penalty": [-3],
    "repetition_penalty": [0, "x"], "prompt_logprobs": [-1, 21, True, "1"], "priority": [1, "x"], "cache_salt": ["", 5],
    "skip_special_tokens": ["x"], "guided_json": [{}], "use_beam_search": [True],
    "tools": [[{"type": "function", "function": {"name": "f"}}]], "response_format": [{"type": "json_object"}],
}
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info")
COUNTERS = ("prefix_cache_queries_total", "prefix_cache_hits_total", "num_preemptions_total", "prompt_tokens_total",
            "prompt_tokens_cached_total", "generation_tokens_total", "request_success_total")
HISTOGRAMS = ("time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds",
              "e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds",
              "request_decode_time_seconds", "request_inference_time_seconds", "request_prompt_tokens",
              "request_generation_tokens", "request_params_max_tokens", "request_params_n", "iteration_tokens_total")


class Reply:
    def __init__(self, response):
        self.status, self.headers = response.status, {name.lower(): value for name, value in response.getheaders()}
        self.text = response.read().decode()

    def json(self):
        return json.loads(self.text)


class Contract(unittest.TestCase):
    flags = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.flags, max_model_len=512)
        cls.connection = http.client.HTTPConnection("127.0.0.1", cls.server.port, timeout=120)

    @classmethod
    def tearDownClass(cls):
        cls.connection.close()
        assert cls.server.stop() == 0

    def call(self, method, path, body=None, headers=None):
        data = body if body is None or isinstance(body, str) else json.dumps(body)
        self.connection.request(method, path, data, headers or {})
        return Reply(self.connection.getresponse())

    def get(self, path, **headers):
        return self.call("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def post(self, path, body, **headers):
        return self.call("POST", path, body, headers)

    def complete(self, **fields):
        return self.post("/v1/completions", {"prompt": "The capital of France is", "max_tokens": 3, "temperature": 0, **fields})

    def chat(self, **fields):
        messages = [{"role": "user", "content": "hi"}]
        return self.post("/v1/chat/completions", {"messages": messages, "max_tokens": 3, "temperature": 0, **fields})

    def assert_error(self, reply, status, field=None):
        self.assertEqual(reply.status, status, reply.text)
        error = reply.json()["error"]
        self.assertEqual((set(error), error["code"]), ({"message", "type", "param", "code"}, status))
        if field is not None:
            self.assertEqual(error["param"], field, error)
        return error


class TheRoutes(Contract):
    flags = ("alias",)

    def test_probes_and_models(self):
        for path in ("/health", "/ready"):
            self.assertEqual(self.get(path).status, 200)
        self.assertEqual(set(self.get("/version").json()), {"version"})
        self.assertEqual(self.get("/load").json(), {"server_load": 0})
        models = self.get("/v1/models").json()
        self.assertEqual((models["object"], [model["id"] for model in models["data"]]), ("list", [NAME, "alias"]))
        fields = {"id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission"}
        self.assertEqual(set(models["data"][0]), fields)
        for path in (NAME.replace("/", "%2F"), NAME.replace("/", "%2f"), NAME):
            self.assertEqual(self.get("/v1/models/" + path).json(), models["data"][0])
        self.assertEqual(self.assert_error(self.get("/v1/models/none"), 404, "model")["type"], "NotFoundError")
        self.assertTrue(self.get("/").headers["content-type"].startswith("text/html"))
        self.assertEqual(self.get("/docs").status, 200)
        self.assertTrue(self.get("/openapi.json").json()["openapi"].startswith("3.1"))

    def test_the_tokenizer(self):
        text = "hello <|im_end|>"
        answer = self.post("/tokenize", {"prompt": text}).json()
        self.assertEqual((set(answer), answer["count"], answer["max_model_len"], answer["token_strs"]),
                         ({"count", "max_model_len", "tokens", "token_strs"}, len(answer["tokens"]), 512, None))
        self.assertEqual(self.post("/detokenize", {"tokens": answer["tokens"]}).json(), {"prompt": text})
        self.assertEqual(len(self.post("/tokenize", {"prompt": text, "return_token_strs": True}).json()["token_strs"]),
                         answer["count"])
        chat = {"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": True, "continue_final_message": False,
                "add_special_tokens": False, "chat_template": None, "chat_template_kwargs": {}, "tools": None, "model": "alias"}
        opened = self.post("/tokenize", chat).json()["count"]
        self.assertLess(self.post("/tokenize", {**chat, "add_generation_prompt": False}).json()["count"], opened)
        self.assertEqual(self.chat().json()["usage"]["prompt_tokens"], opened)
        self.assert_error(self.post("/tokenize", {**chat, "tools": [{"type": "function"}]}), 400, "tools")
        self.assert_error(self.post("/tokenize", {}), 400)
        self.assert_error(self.post("/tokenize", {"prompt": "a", "model": "x"}), 404, "model")
        for ids in ([-1], [10**9], ["a"], [1.5], "x", None, [True], [[1]]):
            self.assert_error(self.post("/detokenize", {"tokens": ids}), 400, "tokens")
        info = self.get("/tokenizer_info").json()
        for name in ("eos_token", "bos_token", "pad_token", "chat_template", "tokenizer_class"):
            self.assertIsInstance(info[name], str, name)

    def test_what_goes_wrong_says_so_in_one_shape(self):
        for path in ("/nope", "/reset_prefix_cache", "/start_profile", "/stop_profile", "/v1/embeddings"):
            self.assert_error(self.post(path, {}), 404)
        reply = self.get("/v1/completions")
        self.assert_error(reply, 405)
        self.assertEqual(reply.headers["allow"], "POST")
        self.assert_error(self.call("DELETE", "/v1/models"), 405)
        self.assert_error(self.call("OPTIONS", "/v1/completions", headers={"Origin": "http://x"}), 405)
        for body in ('{"prompt":', "", "[]"):
            self.assert_error(self.post("/v1/completions", body), 400)
        for path in ("/health", "/v1/models", "/metrics", "/", "/openapi.json"):
            head, got = self.call("HEAD", path), self.get(path)
            self.assertEqual((head.status, head.text, head.headers["content-type"]), (200, "", got.headers["content-type"]))
            self.assertFalse([name for name in got.headers if name.startswith("access-control")])
        for path in ("/health", "/nope"):
            self.assertEqual(self.get(path, X_Request_Id="my-id.1").headers["x-request-id"], "my-id.1")
            self.assertRegex(self.get(path, X_Request_Id="not sane").headers["x-request-id"], r"^[0-9a-f]+$")
        self.assertEqual(self.get("/v1/models", Authorization="Bearer ").status, 200)
        self.assert_error(self.complete(model="gpt"), 404, "model")
        self.assert_error(self.complete(prompt=[5] * 600), 400, "prompt")
        self.assert_error(self.complete(max_tokens=513), 400, "max_tokens")
        self.assert_error(self.post("/v1/completions", '{"prompt":"' + "x" * (17 << 20) + '"}'), 413)
        self.connection.close()

    def test_the_types_that_clients_send_for_each_field(self):
        for ask in (self.complete, self.chat):
            for field, values in TAKEN.items():
                for value in values:
                    reply = ask(**{field: value})
                    self.assertEqual(reply.status, 200, (ask.__name__, field, value, reply.text))
            for field, values in REFUSED.items():
                for value in values:
                    with self.subTest(ask=ask.__name__, field=field, value=str(value)[:40]):
                        self.assert_error(ask(**{field: value}), 400, field)

    def test_prompts_messages_and_logprobs(self):
        for prompt, choices in (("a b", 1), (["a", "b"], 2), ([504, 3575], 1), ([[504], [3575, 1]], 2)):
            self.assertEqual(len(self.complete(prompt=prompt).json()["choices"]), choices)
        for prompt in (5, None, [], [[]], [5, "a"], ["a", 5], {}, [[5], "a"], [True], [-1], [1.5], [10**9], True):
            self.assert_error(self.complete(prompt=prompt), 400, "prompt")

        def counted(*messages):
            reply = self.chat(messages=[{"role": role, "content": content, "name": "n"} for role, content in messages])
            self.assertEqual(reply.status, 200, reply.text)
            return reply.json()["usage"]["prompt_tokens"]

        text = [{"type": "text", "text": "Be brief."}]
        self.assertEqual(counted(("developer", text), ("user", "a")), counted(("system", "Be brief."), ("user", "a")))
        counted(("user", "a"), ("assistant", None), ("user", []))
        tell = self.complete(logprobs=2).json()["choices"][0]["logprobs"]
        self.assertEqual([len(top) for top in tell["top_logprobs"]], [2] * 3)
        self.assertIsNone(self.complete(logprobs=None).json()["choices"][0]["logprobs"])
        self.assert_error(self.complete(logprobs=True), 400, "logprobs")
        self.assert_error(self.complete(logprobs=21), 400, "logprobs")
        content = self.chat(logprobs=True, top_logprobs=20).json()["choices"][0]["logprobs"]["content"]
        self.assertEqual([len(entry["top_logprobs"]) for entry in content], [20] * len(content))
        self.assertEqual(self.chat(logprobs=None, top_logprobs=None).status, 200)
        self.assert_error(self.chat(logprobs=1), 400, "logprobs")
        self.assert_error(self.chat(logprobs=True, top_logprobs=21), 400, "top_logprobs")
        self.assert_error(self.chat(top_logprobs=2), 400, "top_logprobs")
        scored = self.complete(prompt=[504, 3575, 282], echo=True, logprobs=1, max_tokens=1).json()["choices"][0]["logprobs"]
        self.assertEqual([len(scored[name]) for name in ("tokens", "token_logprobs", "top_logprobs")], [4] * 3)
        self.assertEqual((scored["token_logprobs"][0], scored["top_logprobs"][0]), (None, None))

    def test_streams(self):
        for ask, kind in ((self.complete, "text_completion"), (self.chat, "chat.completion.chunk")):
            reply = ask(stream=True, stream_options={"include_usage": True})
            self.assertEqual(reply.headers["content-type"], "text/event-stream; charset=utf-8")
            self.assertEqual((reply.headers["cache-control"], reply.headers["x-accel-buffering"]), ("no-cache", "no"))
            self.assertNotIn("\r", reply.text)
            *events, done, rest = reply.text.split("\n\n")
            self.assertEqual((done, rest), ("data: [DONE]", ""))
            events = [json.loads(event.removeprefix("data: ")) for event in events]
            self.assertEqual({event["object"] for event in events}, {kind})
            self.assertEqual((events[-1]["choices"], events[-1]["usage"]["completion_tokens"]), ([], 3))
            self.assertEqual(events[-2]["choices"][0]["finish_reason"], "length")
            if ask == self.chat:
                self.assertEqual(events[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})

    def test_the_series_of_metrics(self):
        self.complete()
        reply = self.get("/metrics")
        self.assertTrue(reply.headers["content-type"].startswith("text/plain; version=0.0.4"))
        types = dict(re.findall(r"^# TYPE attest:(\S+) (\S+)$", reply.text, re.M))
        for names, kind in ((GAUGES, "gauge"), (COUNTERS, "counter"), (HISTOGRAMS, "histogram")):
            for name in names:
                self.assertEqual(types.get(name), kind, name)
        for line in reply.text.splitlines():
            if not line.startswith("#"):
                self.assertIn(f'model_name="{NAME}"', line)
                self.assertIn('engine="0"', line)
        reasons = re.findall(r'^attest:request_success_total\{.*finished_reason="(\w+)"', reply.text, re.M)
        self.assertEqual(set(reasons), {"stop", "length", "abort", "error"})
        layout = re.search(r"^attest:cache_config_info\{(.*)\} 1$", reply.text, re.M)[1]
        self.assertRegex(layout, r'block_size="\d+"')
        self.assertRegex(layout, r'num_gpu_blocks="\d+"')


class WithAKeyAndTheRoutesOfDevelopers(Contract):
    flags = ("--api-key", "k", "--enable-dev-endpoints", "--allowed-origins", "http://x", "--metrics-prefix", "vllm:")

    def test_the_key_guards_what_it_should(self):
        for path, body in (("/v1/completions", {"prompt": "a"}), ("/tokenize", {"prompt": "a"}), ("/reset_prefix_cache", {}),
                           ("/start_profile", {})):
            self.assert_error(self.post(path, body), 401)
            self.assert_error(self.post(path, body, Authorization="Bearer wrong"), 401)
        for path in ("/health", "/ready", "/metrics", "/version", "/load", "/"):
            self.assertEqual(self.get(path).status, 200)
        for name, value in (("Authorization", "Bearer k"), ("authorization", "bearer k")):
            self.assertEqual(self.get("/v1/models", **{name: value}).status, 200)
            self.assertEqual(self.post("/reset_prefix_cache", {}, **{name: value}).json(), {"success": True})
            self.assertEqual(self.post("/start_profile", {}, **{name: value}).status, 200)
            self.assertEqual(self.post("/stop_profile", {}, **{name: value}).status, 200)

    def test_origins_and_the_names_of_another_server(self):
        asked = {"Origin": "http://x", "Access-Control-Request-Method": "POST",
                 "Access-Control-Request-Headers": "authorization,content-type"}
        reply = self.call("OPTIONS", "/v1/completions", headers=asked)
        self.assertIn(reply.status, (200, 204))
        self.assertEqual(reply.headers["access-control-allow-origin"], "http://x")
        self.assertEqual(self.get("/health", Origin="http://x").headers["access-control-allow-origin"], "http://x")
        self.assertNotIn("access-control-allow-origin", self.get("/health", Origin="http://y").headers)
        text = self.get("/metrics").text
        self.assertIn("\nvllm:num_requests_running{", text)
        self.assertNotIn("attest:", text)


if __name__ == "__main__":
    run_tests((not os.path.isfile(BINARY), "$ATTEST_BINARY"), (MODEL is None, "the default model"))
