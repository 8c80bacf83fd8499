#!/usr/bin/env python3
"""The page at / in a real browser: chat, tokens, the live view, the curl, a server that goes, a key.

Exits 77 where the program, the default model, the browser or the package selenium is missing."""
import http.client
import json
import os
import re
import signal
import subprocess
import time
import unittest

from page_browser import WAIT_SECONDS, ActionChains, Keys, Page, PageTest, Server, least_contrast, main


def run_curl(command, key=None):
    """Runs what the page shows, in a shell; the text of its stream."""
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_SECONDS,
        env={**os.environ, **({"ATTEST_API_KEY": key} if key else {})},
    )
    events = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])


class OfThePage(PageTest):
    def test_a_question_is_typed_and_its_answer_streams_in(self):
        with self.open() as page:
            page.picture("welcome-light")
            page.sampling(temperature=0, max_tokens=60)
            page.begin("What is the capital of France, and what is it known for?")
            seen = {page.until(lambda: len(page.text(".answer")), "the first token")}
            while page.is_running():
                seen.add(len(page.text(".answer")))
            self.assertGreater(len(seen), 5, "the answer came in one piece")
            self.assertIn("Paris", page.answer())
            self.assertEqual([role for role, _ in page.turns()], ["user", "assistant"])
            self.assertRegex(
                page.text(".turn.assistant .meta"),
                r"^\d+ tokens · [\d.]+ tokens/s · first after [\d.]+ m?s · prompt \d+.* · mean p 0\.\d\d.* · "
                r"seed \d+$",
            )
            self.assertRegex(page.text("#context-text"), r"^context \d+ of 512$")
            self.assertTrue(page.text("#announcer").endswith("End of the answer."))  # what a screen reader says last
            # The conversation goes on, with all of it sent.
            page.ask("And of Italy?")
            self.assertEqual([role for role, _ in page.turns()], ["user", "assistant"] * 2)
            sent = json.loads(page.js("return JSON.stringify(Chat.currentRequest().body)"))
            self.assertEqual([message["role"] for message in sent["messages"]], ["user", "assistant", "user"])
            page.picture("chat-light")

    def test_esc_stops_an_answer_and_the_engine_drops_it(self):
        with self.open() as page:
            page.sampling(temperature=0, max_tokens=450)
            before = self.server.engine()["tokens"]["generated"]
            page.begin("Write a very long story about a river.")
            page.until(lambda: len(page.text(".answer")) > 20, "some text")
            page.one("#draft").send_keys(Keys.ESCAPE)
            kept = page.wait_for_answer()
            self.assertGreater(len(kept), 10)
            self.assertIn("stopped by you", page.text(".turn.assistant .meta"))
            self.assertTrue(page.text("#announcer").rstrip().endswith("Stopped."))
            # How full the context is by now, as a request that ended would have told.
            self.assertGreater(int(re.match(r"context (\d+) of 512", page.text("#context-text"))[1]), 30)
            self.assert_dropped(page, before)
            self.assertEqual(page.answer(), kept)
            # The button does the same.
            page.one("#new-chat").click()
            self.assertEqual(page.turns(), [])
            before = self.server.engine()["tokens"]["generated"]
            page.begin("Write a very long story about a river.")
            page.until(lambda: len(page.text(".answer")) > 20, "some text")
            page.one("#stop").click()
            page.wait_for_answer()
            self.assertIn("stopped by you", page.text(".turn.assistant .meta"))
            self.assert_dropped(page, before)

    def assert_dropped(self, page, before):
        """The engine is idle, and told no story to its end for nobody."""
        page.until(lambda: self.server.engine()["sequences"]["running"] == 0, "an idle engine")
        self.assertLess(self.server.engine()["tokens"]["generated"] - before, 450)

    def test_an_answer_is_made_anew_and_a_message_is_edited(self):
        with self.open() as page:
            page.sampling(temperature=1.2, top_p=1, max_tokens=24)
            page.ask("Tell me something surprising.")  # from here on the prompt is cached
            first, first_seed = self.again(page)
            second, second_seed = self.again(page)
            self.assertNotEqual(first_seed, second_seed)
            self.assertNotEqual(first, second)
            self.assertEqual(len(page.turns()), 2)
            # The first seed gives the first text again.
            page.sampling(seed=first_seed)
            self.assertEqual(self.again(page, by_keyboard=True), (first, first_seed))
            self.assertEqual(page.text(".turn.assistant .answer").strip()[:5], first.strip()[:5])

            # Up in an empty box edits the last message; sending drops what came after it.
            page.sampling(temperature=0)
            page.one("#draft").send_keys(Keys.ARROW_UP)
            box = page.one(".turn.user textarea")
            self.assertEqual(box.get_property("value"), "Tell me something surprising.")
            self.assertTrue(page.js("return document.activeElement === arguments[0]", box))
            box.send_keys(Keys.ESCAPE)
            self.assertEqual(page.turns()[0], ["user", "Tell me something surprising."])
            page.one("#draft").send_keys(Keys.ARROW_UP)
            box = page.one(".turn.user textarea")
            box.clear()
            box.send_keys("What is the capital of France?", Keys.ENTER)
            page.until(lambda: page.turns()[0][1] == "What is the capital of France?", "the edited message")
            self.assertIn("Paris", page.wait_for_answer())
            self.assertEqual(len(page.turns()), 2)

    def again(self, page, by_keyboard=False):
        """Regenerates the last answer; its text and seed."""
        turn = page.one(".turn.assistant")
        if by_keyboard:
            page.js("document.activeElement.blur()")
            ActionChains(page.driver).key_down(Keys.ALT).send_keys("r").key_up(Keys.ALT).perform()
        else:
            page.one(".turn.assistant > .turn-tools button").click()
        page.until(lambda: page.one(".turn.assistant") != turn, "a new answer")
        text = page.wait_for_answer()
        return text, re.search(r"seed (\d+)", page.text(".turn.assistant .meta"))[1]

    def test_the_conversation_survives_a_reload_until_a_new_chat(self):
        shown = """
            return [[...document.querySelectorAll(".turn")].map((turn) => turn.textContent), Chat.lastTokens().map(
                (t) => [t.text, t.token, t.logprob, t.top_logprobs.map((other) => [other.token, other.logprob])]),
                document.getElementById("context-text").textContent, document.getElementById("curl").textContent];"""
        with self.open() as page:
            page.sampling(temperature=0, max_tokens=12)
            page.ask("What is the **capital** of France?")
            before = page.js(shown)
            page.reload()
            self.assertEqual(page.js(shown), before)
            self.assertFalse(page.one("#welcome").is_displayed())
            page.ask("And of Italy?")
            sent = page.js("return Chat.currentRequest().body.messages")
            self.assertEqual([message["role"] for message in sent], ["user", "assistant", "user"])
            self.assertEqual(len(page.turns()), 4)
            # What came of an answer that a reload broke off stays, too.
            page.sampling(max_tokens=400)
            page.begin("Tell me a very long story.")
            page.until(lambda: len(page.text("li:last-child .answer")) > 20, "some text")
            page.reload()
            self.assertEqual(len(page.turns()), 6)
            self.assertGreater(len(page.answer()), 20)
            self.assertFalse(page.is_running())
            # Too large for the browser: the texts stay, of the older answers without their tokens.
            page.sampling(max_tokens=4)
            page.js("""
                const set = Storage.prototype.setItem;
                Storage.prototype.setItem = function(name, text) {
                  if (JSON.parse(text).turns?.[1].tokens.length > 0) throw new DOMException("full", "QuotaExceededError");
                  set.call(this, name, text);
                };""")
            page.ask("Thank you.")
            texts, tokens = page.turns(), page.js("return Chat.lastTokens().length")
            self.assertGreater(tokens, 0)
            page.reload()
            self.assertEqual(page.turns(), texts)
            self.assertEqual(page.js("return Chat.lastTokens().length"), tokens)
            self.assertEqual(page.all(".turn:not(:last-child) .tok"), [])
            self.assertGreater(len(page.all(".turn:last-child .tok")), 0)
            page.one("#new-chat").click()
            self.assertIsNone(page.js("return localStorage.getItem('attest.conversation')"))
            page.reload()
            self.assertEqual(page.turns(), [])
            # Something else under this name is nothing of ours.
            for foreign in ("{", "null", "5", '{"version":1,"turns":[{"role":"assistant","text":"x"}]}'):
                page.js("localStorage.setItem('attest.conversation', arguments[0])", foreign)
                page.reload()
                self.assertEqual(page.turns(), [])

    def test_a_browser_that_stores_nothing_loses_nothing_but_the_reload(self):
        with self.open() as page:
            forbid = """
                for (const name of ["localStorage", "sessionStorage"]) {
                  Object.defineProperty(window, name, {get() { throw new DOMException("denied", "SecurityError"); }});
                }"""
            added = page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": forbid})
            page.reload()
            page.sampling(temperature=0, max_tokens=6)
            page.ask("Hello")
            self.assertEqual(len(page.turns()), 2)
            page.reload()
            self.assertEqual(page.turns(), [])
            page.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)

    def test_a_token_shows_what_else_could_have_come(self):
        with self.open() as page:
            page.sampling(temperature=0, max_tokens=30)
            page.ask("What is the capital of France?")
            tokens = page.all(".answer .tok")
            paris = next(token for token in tokens if token.text.strip() == "Paris")
            ActionChains(page.driver).move_to_element(paris).perform()
            page.until(lambda: page.one("#popover").is_displayed(), "the popover")
            self.assertEqual(page.text("#popover strong"), "·Paris")
            rows = page.all("#popover .alternatives li")
            self.assertEqual(len(rows), 5)
            shares = [float(re.match(r"<? ?([\d.]+) %", row.text)[1]) for row in rows]
            self.assertEqual(shares, sorted(shares, reverse=True))
            self.assertLessEqual(sum(shares), 100.5)
            self.assertEqual([("chosen" in row.get_attribute("class")) for row in rows], [True] + [False] * 4)  # greedy
            page.picture("token-light")
            ActionChains(page.driver).move_to_element(page.one(".brand")).perform()
            page.until(lambda: not page.one("#popover").is_displayed(), "no popover")

            # The same by keyboard, and said aloud.
            page.js("document.activeElement.blur()")
            ActionChains(page.driver).key_down(Keys.ALT).send_keys("a").key_up(Keys.ALT).perform()
            self.assertTrue(page.js("return document.activeElement.classList.contains('answer')"))
            page.driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
            self.assertEqual(
                page.text("#popover strong"), page.js("return visibleText(document.querySelector('.tok').textContent)")
            )
            self.assertRegex(page.text("#popover .pop-head"), r"token 1 of \d+")
            page.driver.switch_to.active_element.send_keys(Keys.END)
            # As words: no sign that stands for a blank or a line end.
            self.assertRegex(page.text("#announcer"), r"^[^\u00b7\u21b5]+ [\d.]+ %\. Instead: [^\u00b7\u21b5]+ %\s?$")
            said = page.js("return [' Paris', ' ', '   ', '\\n\\n', '', ' a\\tb', ' -', '.', 'constructor'].map(spokenText)")
            self.assertEqual(
                said,
                ["Paris", "blank", "3 blanks", "line end  line end", "no text", "a tab b", "hyphen", "full stop", "constructor"],
            )
            # All tokens, tinted; also the one that ended the answer, which has no text.
            page.one("#toggle-tokens").click()
            self.assertEqual(page.one("#toggle-tokens").get_attribute("aria-pressed"), "true")
            tints = page.js(
                "return [...document.querySelectorAll('.tok')].map((tok) => getComputedStyle(tok).backgroundColor)"
            )
            self.assertGreater(len(set(tints)), 5)
            self.assertEqual(len(tints), int(page.text(".turn.assistant .meta").split(" ")[0]))
            page.picture("tokens-light")

    def test_the_tokens_of_a_text_in_many_scripts_join_to_the_text(self):
        with self.open() as page:
            page.sampling(temperature=0, max_tokens=60)
            page.ask("Repeat exactly: naïve café ☕ 日本語 🎉 emoji")
            joined, text = page.js("return [Chat.lastTokens().map((t) => t.text).join(''), Chat.lastAnswer()]")
            self.assertEqual(joined, text)
            self.assertGreater(len(text), 0)

    def test_the_live_view_follows_the_engine(self):
        with self.open() as page:
            before = int(page.text("#engine-facts div:nth-child(2) dd").replace(",", ""))
            page.sampling(temperature=0, max_tokens=300)
            page.begin("Tell me a long story about the sea.")
            page.until(lambda: page.text("#g-running") == "1", "a running sequence")
            page.until(lambda: float(page.text("#g-speed")) > 0, "tokens per second")
            page.until(lambda: re.match(r"0\.\d+ %|\d+\.\d %", page.text("#g-kv")), "KV use")
            decode = page.until(lambda: self.active_kernel(page, "decode"), "an active decode kernel")
            self.assertIn(
                decode,
                [entry["kernel"] for entry in self.server.engine()["attention"]["rows"] if entry["phase"] == "decode"],
            )
            self.assertRegex(page.text("#kernels li[data-phase=decode] .rate"), r"^[\d.]+ rows/s$")
            self.assertRegex(page.text("#kernels li[data-phase=prefill] .kernel"), r"^attention_")
            page.picture("live-light")
            page.until(lambda: re.search(r"rows? recomputed, none wrong", page.text("#sentinel-line")), "the sentinel")
            self.assertIn("1 row in 10,000", page.text("#sentinel-facts"))
            self.assertIn("quarantinednone", page.text("#sentinel-facts"))
            page.one("#stop").click()
            page.until(lambda: page.text("#g-running") == "0", "an idle engine")
            page.until(
                lambda: int(page.text("#engine-facts div:nth-child(2) dd").replace(",", "")) > before, "counted tokens"
            )
            self.assertTrue(
                page.js("return document.querySelector('[data-gauge=speed] .line').getAttribute('d').length > 20")
            )
            self.assertEqual(page.text("#g-waiting"), "0")
            # What pages ask for each second is not worth a line of the log.
            self.assertNotIn("GET /engine", self.server.read_log())
            self.assertIn("POST /v1/chat/completions", self.server.read_log())

    def test_a_kernel_that_was_wrong_is_named(self):
        with self.open() as page:
            kernel = next(
                entry["kernel"] for entry in self.server.engine()["attention"]["at_load"] if entry["phase"] == "decode"
            )
            page.js("""
                const real = window.fetch;
                window.fetch = async (...args) => {
                  const reply = await real(...args);
                  if (args[0] !== "/engine") return reply;
                  const now = await reply.json();
                  now.status = "degraded";
                  Object.assign(now.sentinel, {mismatches: 2, rows_checked: 1500, quarantined: [arguments[0]]});
                  now.sentinel.kernels = [{kernel: arguments[0], phase: "decode", worst_error_ratio: null}];
                  now.attention.rows.push({phase: "decode", kernel: "attention_general", rows: 1e9});
                  return new Response(JSON.stringify(now));
                };""".replace("arguments[0]", json.dumps(kernel)))
            page.until(lambda: page.text("#status-text") == "serving, a kernel is quarantined", "the state")
            self.assertEqual(page.text("#sentinel-line"), "2 of 1,500 checked rows were wrong.")
            self.assertEqual(page.one("#sentinel").get_attribute("data-state"), "bad")
            self.assertIn("worst errornot finite", page.text("#sentinel-facts"))
            self.assertEqual(
                page.text("#kernels li[data-phase=decode] .kernel"), f"{kernel} quarantined, attention_general instead"
            )
            page.picture("degraded-light")

    def test_without_a_chat_template_the_text_is_continued(self):
        with self.open() as page:
            page.js("Chat.setLimits(512, false)")  # as /engine tells of such a model
            self.assertTrue(page.one("#no-template").is_displayed())
            page.sampling(temperature=0, max_tokens=6)
            self.assertIn("Paris", page.ask("The capital of France is"))
            self.assertIn("/v1/completions", page.text("#curl"))
            self.assertEqual(page.js("return Chat.currentRequest().body.prompt"), "The capital of France is")
            joined, best = page.js("""
                const tokens = Chat.lastTokens();
                return [tokens.map((t) => t.text).join(""), tokens.map((t) => t.token === t.top_logprobs[0].token)];""")
            self.assertEqual(joined, page.answer())
            self.assertEqual(best, [True] * 6)  # greedy
            page.ask(" and of Italy")
            prompt = page.js("return Chat.currentRequest().body.prompt")
            self.assertEqual(prompt, "The capital of France is" + joined + " and of Italy")

    def test_a_hidden_tab_asks_for_nothing(self):
        with self.open() as page:
            self.assertFalse(page.js("return document.hidden"))
            page.js("""
                window.polls = 0;
                const real = window.fetch;
                window.fetch = (...args) => { if (args[0] === "/engine") ++window.polls; return real(...args); };""")
            page.until(lambda: page.js("return window.polls") >= 1, "polls")
            hide = """
                Object.defineProperty(document, "hidden", {value: arguments[0], configurable: true});
                document.dispatchEvent(new Event("visibilitychange"));"""
            page.js(hide, True)
            time.sleep(0.3)  # one that is under way may end
            polls = page.js("return window.polls")
            time.sleep(1.6)  # one each second
            self.assertEqual(page.js("return window.polls"), polls)
            page.js(hide, False)
            page.until(lambda: page.js("return window.polls") > polls, "polls of a visible tab")

    def active_kernel(self, page, phase):
        return page.js(
            "return document.querySelector(arguments[0])?.textContent",
            f"#kernels li[data-phase={phase}][data-active=true] .kernel",
        )

    def test_the_curl_is_copied_and_says_the_same_in_a_shell(self):
        with self.open() as page:
            page.driver.execute_cdp_cmd(
                "Browser.grantPermissions",
                {"origin": self.server.url, "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]},
            )
            page.sampling(temperature=0.9, max_tokens=20, system="You're $HOME's \"`helper`\" \\ here.", stop="###")
            page.begin('It\'s a test: $(date) `id` \\n "quotes" é', Keys.NULL)
            self.assertEqual(page.text("#curl-what"), "What Enter sends now")
            page.one("#copy-curl").click()
            page.until(lambda: page.text("#copy-curl") == "Copied", "the copy")
            copied = page.driver.execute_async_script("navigator.clipboard.readText().then(arguments[0])")
            self.assertEqual(copied, page.text("#curl"))
            shown = subprocess.run(
                ["bash", "-c", copied.replace("curl -sS -N", "printf '%s\\n'", 1)],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            body = json.loads(shown[shown.index("\n{") :])
            self.assertEqual(
                body["messages"],
                [
                    {"role": "system", "content": "You're $HOME's \"`helper`\" \\ here."},
                    {"role": "user", "content": 'It\'s a test: $(date) `id` \\n "quotes" é'},
                ],
            )
            self.assertEqual(
                {
                    name: body[name]
                    for name in ("temperature", "max_tokens", "stop", "logprobs", "top_logprobs", "stream")
                },
                {
                    "temperature": 0.9,
                    "max_tokens": 20,
                    "stop": ["###"],
                    "logprobs": True,
                    "top_logprobs": 5,
                    "stream": True,
                },
            )
            # Sent by Enter, the page's answer is that of the command: the seed is part of it. (The first run leaves its
            # prompt in the prefix cache, as the others find it.)
            run_curl(copied)
            page.one("#draft").send_keys(Keys.ENTER)
            page.until(lambda: page.all(".turn.assistant"), "the turn")
            answer = page.wait_for_answer()
            self.assertEqual(run_curl(copied), answer)
            self.assertEqual(page.text("#curl-what"), "The request answered last")
            self.assertEqual(page.text("#curl"), copied)
            # A body that no argument can hold goes through a here-document.
            long = page.js(
                "return Curl.command(arguments[0], '/v1/chat/completions', {x: \"it's \".repeat(30000)}, false)",
                self.server.url,
            )
            shown = subprocess.run(
                ["bash", "-s"], input="curl() { cat; }\n" + long + "\n", capture_output=True, text=True, check=True
            ).stdout
            self.assertEqual(json.loads(shown), {"x": "it's " * 30000})

    def test_what_the_server_refuses_is_shown_at_its_field(self):
        with self.open() as page:
            page.expected_errors = [r"400 \(Bad Request\)"]
            page.sampling(temperature=101)
            page.begin("Hello")
            page.until(lambda: page.all(".failure"), "the refusal")
            self.assertIn("Refused 400", page.text(".failure"))
            self.assertIn("temperature must be a number in [0, 100], not 101", page.text(".failure"))
            self.assertEqual(page.one("#p-temperature").get_attribute("aria-invalid"), "true")
            self.assertIn("[0, 100]", page.text("#p-temperature-note"))
            page.picture("refused-light")
            page.js(
                """[...document.querySelectorAll(".failure button")]
                       .find((b) => b.textContent === "Go to temperature").click()"""
            )
            self.assertEqual(page.js("return document.activeElement.id"), "p-temperature")
            page.sampling(temperature=0, max_tokens=8)
            self.assertIsNone(page.one("#p-temperature").get_attribute("aria-invalid"))
            page.one(".failure button").click()
            page.until(lambda: not page.all(".failure") and page.all(".answer .tok"), "an answer")
            page.wait_for_answer()

            # What was refused is no part of the next request, neither of the one shown nor of the one sent.
            page.sampling(temperature=101)
            page.ask("Refuse this")
            page.sampling(temperature=0)
            page.begin("Hi", Keys.NULL)
            shown = page.text("#curl")
            self.assertNotIn("Refuse this", shown)
            page.one("#draft").send_keys(Keys.ENTER)
            page.until(lambda: page.is_running() or not page.all(".failure"), "the request")
            page.wait_for_answer()
            self.assertEqual(page.text("#curl"), shown)
            self.assertEqual([text for role, text in page.turns() if role == "user"], ["Hello", "Hi"])

            # A conversation that no longer fits.
            page.js("arguments[0].value = 'word '.repeat(3000)", page.one("#draft"))
            page.begin(" end")
            page.until(lambda: page.all(".failure"), "the refusal")
            self.assertRegex(page.text(".failure"), r"Refused 400.*512.*A conversation has room for 512 tokens")
            self.assertIn("New chat", page.text(".failure"))

class OfAServerThatGoes(unittest.TestCase):
    def test_the_page_says_so_and_goes_on_when_it_is_back(self):
        server = Server()
        with Page(server.url) as page:
            page.expected_errors = [
                r"ERR_CONNECTION_REFUSED",
                r"ERR_EMPTY_RESPONSE",
                r"ERR_CONNECTION_RESET",
                r"ERR_INCOMPLETE_CHUNKED_ENCODING",
            ]
            page.sampling(temperature=0, max_tokens=400)
            page.begin("Tell me a very long story.")
            page.until(lambda: len(page.text(".answer")) > 10, "some text")
            server.stop(signal.SIGKILL)
            page.until(lambda: page.all(".failure"), "the failure")
            self.assertRegex(page.text(".failure"), "connection (broke off|ended) before the answer was complete")
            self.assertGreater(len(page.answer()), 5)  # what came is kept
            page.until(lambda: page.text("#status-text").startswith("no answer since"), "the state", seconds=15)
            self.assertRegex(page.text("#engine-since"), "^as it was at ")
            self.assertGreater(least_contrast(page), 4.5)
            page.picture("gone-light")
            page.begin("Are you there?")
            page.until(lambda: "The server does not answer" in page.text("li:last-child .failure"), "the failure")
            again = Server(port=server.port)
            page.until(lambda: page.text("#status-text") == "serving", "the server", seconds=20)
            page.sampling(max_tokens=8)
            page.one("li:last-child .failure button").click()
            page.until(lambda: not page.all("li:last-child .failure") and not page.is_running(), "an answer")
            again.stop()


    def test_the_page_shows_that_it_drains_and_what_a_refused_request_may_do(self):
        server = Server()
        with Page(server.url) as page:
            page.expected_errors = [r"503 \(Service Unavailable\)", r"ERR_CONNECTION_REFUSED", r"ERR_EMPTY_RESPONSE"]
            body = json.dumps({"prompt": "Once upon a time", "max_tokens": 480, "n": 4, "ignore_eos": True})
            other = http.client.HTTPConnection("127.0.0.1", server.port)
            other.request("POST", "/v1/completions", body)
            page.until(lambda: page.text("#g-running") == "4", "the other's request")
            server.process.terminate()  # it drains: what runs is finished, the rest is refused
            page.until(lambda: page.text("#status-text") == "draining", "the state")
            page.begin("Hello")
            page.until(lambda: page.all(".failure"), "the refusal")
            self.assertRegex(page.text(".failure"), "^Busy 503.*draining.*It asks to try again in 1 s")
            other.close()  # the last that ran is gone: it need not be told to its end
            page.until(lambda: page.text("#status-text").startswith("no answer since"), "the end", seconds=15)
        server.stop()


class WithAKey(unittest.TestCase):
    def test_the_page_asks_for_the_key_and_keeps_it_in_this_tab(self):
        server = Server("--api-key", "s3cret-key")
        try:
            with self.open(server) as page:
                page.expected_errors = [r"401 \(Unauthorized\)"]
                page.until(lambda: page.one("#key-dialog").is_displayed(), "the question")
                self.assertIn('"model": "SmolLM2', page.text("#curl"))  # /engine names it
                page.picture("key-light")
                page.one("#key").send_keys("wrong", Keys.ENTER)
                page.until(lambda: page.text("#key-error") == "This key was refused.", "the refusal")
                self.assertIsNone(page.js("return sessionStorage.getItem('attest.api-key')"))
                page.one("#key").clear()
                page.one("#key").send_keys("s3cret-key", Keys.ENTER)
                page.until(lambda: not page.one("#key-dialog").is_displayed(), "entry")
                page.sampling(temperature=0, max_tokens=8)
                answer = page.ask("Hello")
                self.assertEqual(page.all(".failure"), [])
                curl = page.text("#curl")
                self.assertIn('-H "Authorization: Bearer $ATTEST_API_KEY"', curl)
                self.assertEqual(run_curl(curl, key="s3cret-key"), answer)
                self.assertEqual(page.js("return sessionStorage.getItem('attest.api-key')"), "s3cret-key")
                for place in (
                    "document.documentElement.outerHTML",
                    "JSON.stringify({...localStorage})",
                    "document.cookie",
                    "location.href",
                ):
                    self.assertNotIn("s3cret-key", page.js(f"return {place}"), place)
                self.assertIn("Hello", page.js("return localStorage.getItem('attest.conversation')"))
                page.reload()
                self.assertFalse(page.one("#key-dialog").is_displayed())
                self.assertEqual(len(page.turns()), 2)
                page.one("#forget-key").click()
                page.until(lambda: page.one("#key-dialog").is_displayed(), "the question")
                self.assertIsNone(page.js("return sessionStorage.getItem('attest.api-key')"))
                page.one("#key").send_keys("s3cret-key", Keys.ENTER)
                page.until(lambda: not page.one("#key-dialog").is_displayed(), "entry")
        finally:
            server.stop()

    def open(self, server):
        return Page(server.url)


if __name__ == "__main__":
    main()
