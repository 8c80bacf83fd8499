"""The OpenAI Python SDK, unmodified: every parameter its two methods have, two hundred streams at once, its exceptions,
headers, retries and time limits.

Needs the program ($ATTEST_BINARY), the default model in the cache and the package openai; exits 77 where one is
missing."""
import asyncio
import inspect
import os
import pathlib
import socket
import sys
import time
import unittest

try:
    import openai
except ImportError:
    openai = None

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from openai_client_test import BINARY, FILE, FOLDERS, MODEL, NAME, QUESTION, Server  # noqa: E402
from prerequisites import run_tests  # noqa: E402

PROMPT = "The capital of France is"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
# Two alternatives closer than this may change places when other sequences share the step.
NEAR_TIE = 0.1

# What becomes of each parameter: a value that must change the answer as `SHOWS` says, or `taken` (a hint that asks for
# nothing a reader of the answer could miss), or `refused` (a feature that is not built: a 400 that names it).
COMPLETION = {
    "model": (NAME, "shown"), "prompt": ([504, 3575], "shown"), "best_of": (3, "shown"), "echo": (True, "shown"),
    "frequency_penalty": (2.0, "shown"), "logit_bias": ({"7042": -100}, "shown"), "logprobs": (3, "shown"),
    "max_tokens": (3, "shown"), "n": (2, "shown"), "presence_penalty": (2.0, "taken"), "seed": (7, "shown"),
    "stop": (["Paris"], "shown"), "stream": (True, "shown"), "stream_options": ({"include_usage": True}, "shown"),
    "suffix": ("tail", "refused"), "temperature": (1.5, "shown"), "top_p": (0.001, "shown"), "user": ("u", "taken"),
    "extra_headers": ({"x-request-id": "mine-1"}, "shown"), "extra_query": ({"a": "b"}, "taken"),
    "extra_body": ({"min_p": 1.0}, "taken"), "timeout": (60.0, "taken")}
CHAT = {
    "messages": ([{"role": "user", "content": [{"type": "text", "text": "Say yes."}]}], "shown"), "model": (NAME, "shown"),
    "audio": ({"format": "wav", "voice": "alloy"}, "refused"), "frequency_penalty": (2.0, "taken"),
    "function_call": ("auto", "taken"), "functions": ([TOOL["function"]], "refused"), "logit_bias": ({"504": -100}, "shown"),
    "logprobs": (True, "shown"), "max_completion_tokens": (3, "shown"), "max_tokens": (3, "shown"),
    "metadata": ({"k": "v"}, "taken"), "modalities": (["text", "audio"], "refused"), "moderation": ({"model": "m"}, "refused"),
    "n": (2, "shown"), "parallel_tool_calls": (False, "taken"),
    "prediction": ({"type": "content", "content": "The capital"}, "refused"), "presence_penalty": (2.0, "taken"),
    "prompt_cache_key": ("k", "taken"), "prompt_cache_options": ({"mode": "implicit"}, "taken"),
    "prompt_cache_retention": ("24h", "taken"), "reasoning_effort": ("low", "refused"),
    "response_format": ({"type": "json_object"}, "refused"), "safety_identifier": ("s", "taken"), "seed": (7, "shown"),
    "service_tier": ("auto", "taken"), "stop": ("Paris", "shown"), "store": (False, "taken"), "stream": (True, "shown"),
    "stream_options": ({"include_usage": True}, "shown"), "temperature": (1.5, "shown"), "tool_choice": ("none", "taken"),
    "tools": ([TOOL], "refused"), "top_logprobs": (2, "shown"), "top_p": (0.001, "shown"), "user": ("u", "taken"),
    "verbosity": ("low", "refused"), "web_search_options": ({}, "refused"),
    "extra_headers": ({"x-request-id": "mine-2"}, "shown"), "extra_query": ({"a": "b"}, "taken"),
    "extra_body": ({"min_p": 1.0}, "taken"), "timeout": (60.0, "taken")}


class Parameters(unittest.TestCase):
    """One server for the class; every call is greedy but for the parameter it tries."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.client = cls.server.client()

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        assert cls.server.stop() == 0

    def each(self, method, table, required, texts):
        known = set(inspect.signature(method).parameters)
        # A newer SDK has parameters that nobody has thought about yet; the one in requirements.txt has none.
        unknown = sorted(known - set(table))
        if unknown:
            print(f"openai {openai.__version__} has parameters this test does not know: {unknown}")
        plain = method(**required, max_tokens=6, temperature=0)
        for name, (value, outcome) in table.items():
            if name not in known:
                continue
            with self.subTest(parameter=name, outcome=outcome):
                fields = {**required, "max_tokens": 6, "temperature": 0, name: value}
                if name in ("seed", "top_p"):
                    fields.update(temperature=1.5, max_tokens=12)
                if name == "stream_options":
                    fields["stream"] = True
                if name == "best_of":
                    fields.update(temperature=1.5, seed=7, extra_body={"ignore_eos": True})
                if name == "top_logprobs":
                    fields["logprobs"] = True
                if name == "max_completion_tokens":
                    del fields["max_tokens"]
                if outcome == "refused":
                    with self.assertRaises(openai.BadRequestError) as caught:
                        method(**fields)
                    self.assertEqual(caught.exception.param, name)
                    self.assertIn(name, caught.exception.message)
                    continue
                answer = method(**fields)
                if outcome == "shown":
                    self.shows(name, value, answer, plain, method, fields, texts)
                else:
                    self.assertEqual(texts(answer), texts(plain) if name != "presence_penalty" else texts(answer))

    def shows(self, name, value, answer, plain, method, fields, texts):
        if name in ("stream", "stream_options"):
            chunks = list(answer)
            if name == "stream":
                self.assertTrue(all(chunk.usage is None for chunk in chunks))
                parts = [c.choices[0].text if hasattr(c.choices[0], "text") else c.choices[0].delta.content or "" for c in chunks]
                self.assertEqual("".join(parts), texts(plain)[0])
            else:
                self.assertEqual((chunks[-1].choices, chunks[-1].usage.total_tokens), ([], plain.usage.total_tokens))
        elif name == "model":
            self.assertEqual(answer.model, value)
        elif name in ("max_tokens", "max_completion_tokens"):
            self.assertEqual((answer.usage.completion_tokens, answer.choices[0].finish_reason), (value, "length"))
        elif name == "n":
            self.assertEqual([choice.index for choice in answer.choices], list(range(value)))
        elif name == "best_of":  # one choice, and all that was generated for it
            self.assertEqual((len(answer.choices), answer.usage.completion_tokens), (1, value * 6))
            self.assertEqual(answer.usage.prompt_tokens, plain.usage.prompt_tokens)
        elif name == "seed":
            self.assertEqual(texts(method(**fields)), texts(answer))
            self.assertNotEqual(texts(method(**{**fields, "seed": value + 1})), texts(answer))
        elif name == "top_p":  # so little mass that one token holds it: greedy
            self.assertTrue(texts(answer)[0].startswith(texts(plain)[0]), (texts(answer), texts(plain)))
        elif name == "stop":
            self.assertEqual(answer.choices[0].finish_reason, "stop")
            self.assertNotIn("Paris", texts(answer)[0])
        elif name == "echo":
            self.assertEqual(texts(answer)[0], PROMPT + texts(plain)[0])
        elif name in ("logprobs", "top_logprobs"):
            logprobs = answer.choices[0].logprobs
            if name == "logprobs" and value is not True:
                self.assertEqual([len(top) for top in logprobs.top_logprobs], [value] * 6)
            else:
                self.assertEqual([len(entry.top_logprobs) for entry in logprobs.content],
                                 [value if name == "top_logprobs" else 0] * 6)
        elif name == "extra_headers":
            self.assertIn("mine-", answer.id)
            self.assertEqual(answer._request_id, value["x-request-id"])
        else:
            self.assertNotEqual(texts(answer), texts(plain))

    def test_every_parameter_of_completions_is_honoured_or_refused_by_name(self):
        self.each(self.client.completions.create, COMPLETION, {"model": NAME, "prompt": PROMPT},
                  lambda answer: [choice.text for choice in answer.choices])

    def test_every_parameter_of_chats_is_honoured_or_refused_by_name(self):
        self.each(self.client.chat.completions.create, CHAT, {"model": NAME, "messages": QUESTION},
                  lambda answer: [choice.message.content for choice in answer.choices])

    def test_parameters_beyond_the_sdk_go_through_extra_body(self):
        def text(**extra):
            return self.client.completions.create(model=NAME, prompt=PROMPT, max_tokens=8, temperature=0,
                                                  extra_body=extra).choices[0].text

        plain = text()
        sampled = {"temperature": 2.0, "seed": 3}
        self.assertEqual(text(**sampled, top_k=1), plain)
        self.assertEqual(text(**sampled, min_p=1.0), plain)
        self.assertNotEqual(text(**sampled), plain)
        self.assertEqual(text(**sampled, typical_p=0.5), text(**sampled, typical_p=0.5))
        self.assertNotEqual(text(repetition_penalty=3.0), plain)
        self.assertNotIn("Paris", text(bad_words=["Paris"]))
        self.assertEqual(text(stop=["Paris"], include_stop_str_in_output=True), plain[:plain.index("Paris") + 5])
        self.assertEqual(text(stop=["Paris"], min_tokens=8), plain)
        answer = self.client.completions.create(model=NAME, prompt=PROMPT, max_tokens=8, temperature=0,
                                                extra_body={"stop_token_ids": [7042]})
        self.assertEqual((answer.choices[0].text, answer.choices[0].model_extra["stop_reason"]),
                         (plain[:plain.index(" Paris")], 7042) if " Paris" in plain and answer.choices[0].finish_reason == "stop"
                         else (plain, None))
        prompt_logprobs = self.client.completions.create(model=NAME, prompt=PROMPT, max_tokens=1, temperature=0,
                                                         extra_body={"prompt_logprobs": 1}).choices[0].model_extra["prompt_logprobs"]
        self.assertEqual((len(prompt_logprobs), prompt_logprobs[0]), (5, None))
        chat = self.client.chat.completions.create(model=NAME, messages=QUESTION, max_tokens=4,
                                                   extra_body={"chat_template_kwargs": {"x": 1}, "add_generation_prompt": True})
        self.assertTrue(chat.choices[0].message.content)

    def test_raw_answers_carry_headers(self):
        raw = self.client.completions.with_raw_response.create(model=NAME, prompt=PROMPT, max_tokens=1,
                                                               extra_headers={"X-Request-ID": "abc.123"})
        self.assertEqual((raw.headers["x-request-id"], raw.headers["content-type"]), ("abc.123", "application/json"))
        self.assertEqual(raw.parse().id, "cmpl-abc.123")
        with self.client.chat.completions.with_streaming_response.create(
                model=NAME, messages=QUESTION, max_tokens=2, stream=True) as raw:
            self.assertIn("text/event-stream", raw.headers["content-type"])
            lines = [line for line in raw.iter_lines() if line]
        self.assertEqual(lines[-1], "data: [DONE]")
        self.assertTrue(raw.headers["x-request-id"])

    def test_every_error_is_its_exception(self):
        create = self.client.completions.create
        for fields, kind, param in (
                ({"model": "nobody"}, openai.NotFoundError, "model"), ({"temperature": -1}, openai.BadRequestError, "temperature"),
                ({"n": "two"}, openai.BadRequestError, "n"), ({"prompt": [[]]}, openai.BadRequestError, "prompt"),
                ({"prompt": [{"role": "user", "content": "a chat"}]}, openai.BadRequestError, "prompt"),
                ({"prompt": "x " * 3000}, openai.BadRequestError, "prompt")):
            with self.assertRaises(kind) as caught:
                create(**{"model": NAME, "prompt": PROMPT, **fields})
            error = caught.exception
            self.assertEqual((error.param, error.body["code"]), (param, error.status_code), fields)
            self.assertTrue(error.request_id)
        with self.assertRaises(openai.NotFoundError):
            self.client.embeddings.create(model=NAME, input="x")
        with self.assertRaises(openai.APIStatusError) as caught:
            self.client.get("/completions", cast_to=object)
        self.assertEqual((caught.exception.status_code, caught.exception.response.headers["allow"]), (405, "POST"))
        with self.assertRaises(openai.APIStatusError) as caught:
            create(model=NAME, prompt="x" * (17 << 20))
        self.assertEqual(caught.exception.status_code, 413)

    def test_a_time_limit_of_the_client_ends_its_sequence(self):
        client = self.client.with_options(timeout=0.3)
        with self.assertRaises(openai.APITimeoutError):
            client.completions.create(model=NAME, prompt=PROMPT, max_tokens=1000, extra_body={"ignore_eos": True})
        self.idle()

    def test_leaving_a_stream_ends_its_sequence(self):
        stream = self.client.completions.create(model=NAME, prompt=PROMPT, max_tokens=1000, stream=True,
                                                extra_body={"ignore_eos": True})
        for _, _ in zip(range(3), stream):
            pass
        stream.close()
        self.idle()

    def idle(self):
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if self.server.metric("num_requests_running") + self.server.metric("num_requests_waiting") == 0:
                return self.assertEqual(self.server.metric("kv_cache_usage_perc"), 0)
            time.sleep(0.02)
        self.fail("a sequence outlived its client by 10 s")

    def test_two_hundred_streams_at_once_say_what_each_says_alone(self):
        prompts = [f"{start} {noun}" for start in ("The best thing about a", "My friend has a", "There was once a", "I want a")
                   for noun in ("dog", "house", "river", "book", "song")]
        fields = {"model": NAME, "max_tokens": 12, "temperature": 0, "logprobs": 2}
        alone = [self.client.completions.create(prompt=prompt, **fields).choices[0] for prompt in prompts]

        async def one(client, prompt):
            text, tokens, reason = "", [], None
            async for chunk in await client.completions.create(prompt=prompt, stream=True, **fields):
                (choice,) = chunk.choices
                text += choice.text
                tokens += choice.logprobs.tokens if choice.logprobs else []
                reason = choice.finish_reason or reason
            return text, tokens, reason

        async def all_at_once():
            async with openai.AsyncOpenAI(base_url=self.server.url + "/v1", api_key="x", max_retries=0) as client:
                return await asyncio.gather(*(one(client, prompts[i % len(prompts)]) for i in range(200)))

        answers = asyncio.run(all_at_once())
        self.assertEqual(len(answers), 200)
        ties, widest = 0, 0.0
        for i, (text, tokens, reason) in enumerate(answers):
            want = alone[i % len(prompts)]
            self.assertEqual(reason, want.finish_reason)
            self.assertEqual("".join(tokens), text)
            if text == want.text:
                continue
            first = next(t for t, (a, b) in enumerate(zip(tokens, want.logprobs.tokens)) if a != b)
            best = sorted(want.logprobs.top_logprobs[first].values(), reverse=True)
            widest = max(widest, best[0] - best[1])
            ties += 1
        print(f"200 streams: {200 - ties} as alone, {ties} parted at a near tie, the widest {widest:.2g}")
        self.assertLess(widest, NEAR_TIE)
        self.assertLess(ties, 60)


class Connections(unittest.TestCase):
    def test_nobody_listening_is_a_connection_error(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x", max_retries=0)
        with self.assertRaises(openai.APIConnectionError):
            client.models.list()

    def test_a_wrong_key_is_an_authentication_error_and_is_not_tried_again(self):
        server = Server("--api-key", "secret")
        try:
            with self.assertRaises(openai.AuthenticationError) as caught:
                server.client("wrong").with_options(max_retries=2).completions.create(model=NAME, prompt="x")
            self.assertEqual((caught.exception.status_code, caught.exception.type), (401, caught.exception.body["type"]))
            self.assertEqual(server.metric("http_responses_total"), 1)
        finally:
            self.assertEqual(server.stop(), 0)

    def test_a_draining_server_is_tried_again_as_often_as_the_client_wants(self):
        server = Server()
        self.addCleanup(server.process.kill)
        stream = server.client().completions.create(model=NAME, prompt=PROMPT, max_tokens=1000, stream=True,
                                                    extra_body={"ignore_eos": True})
        next(iter(stream))
        client = server.client().with_options(max_retries=1)
        client.models.list()  # keeps a connection open: a draining server takes no new ones
        server.process.terminate()
        time.sleep(0.2)
        began = time.monotonic()
        with self.assertRaises((openai.InternalServerError, openai.APIConnectionError)) as caught:
            client.completions.create(model=NAME, prompt="x")
        if isinstance(caught.exception, openai.InternalServerError):
            self.assertEqual(caught.exception.status_code, 503)
            wait = float(caught.exception.response.headers["retry-after"])
            self.assertGreaterEqual(time.monotonic() - began, wait)  # between the two tries
        stream.close()
        self.assertEqual(server.ended(), 0)


if __name__ == "__main__":
    run_tests((openai is None, "the package openai"), (not os.path.isfile(BINARY), "$ATTEST_BINARY"),
              (MODEL is None, f"{FILE} in {' or '.join(map(str, FOLDERS))}"))
