#!/usr/bin/env python3
"""The page at / in a real browser: markdown, light and dark, narrow screens, the keyboard, names, what it may load.

Exits 77 where the program, the default model, the browser or the package selenium is missing."""
import re

from page_browser import ActionChains, Keys, PageTest, least_contrast, least_edge_contrast, main


class OfTheLook(PageTest):
    def test_markdown_is_shown_and_nothing_in_it_becomes_markup(self):
        text = (
            "# Title\n\nSome **bold**, *it*, `a<b` and <img src=x onerror=alert(1)> [l](javascript:alert(1)).\n\n"
            "1. one\n2. two\n   - deep **x**\n\n```html\n<script>alert(1)</script>\n```\n\n> said\n\n"
            "| a | b |\n|---|---|\n| 1 | 2 |\n\n"
            "2 * 3 * 4, snake_case_name, **open"
        )
        with self.open() as page:
            # Grown by one character at a time, as a stream does, it ends as the same document.
            grown, whole, kept = page.js(
                """
                const emit = (text) => (parent, begin, end) => parent.append(text.slice(begin, end));
                const [a, b] = [document.createElement("div"), document.createElement("div")];
                const growing = new Markdown.View(a);
                let title = null, kept = true;
                for (let i = 1; i <= arguments[0].length; ++i) {
                  growing.update(arguments[0].slice(0, i), emit(arguments[0].slice(0, i)));
                  if (i === 40) title = a.firstChild;
                  if (i > 40 && a.firstChild !== title) kept = false;
                }
                new Markdown.View(b).update(arguments[0], emit(arguments[0]));
                return [a.innerHTML, b.innerHTML, kept];""",
                text,
            )
            self.assertEqual(grown, whole)
            self.assertTrue(kept, "a finished block was made again")
            for part in (
                "<h4>Title</h4>",
                "<strong>bold</strong>",
                "<em>it</em>",
                "<code>a&lt;b</code>",
                "&lt;img src=x onerror=alert(1)&gt;",
                "[l](javascript:alert(1))",
                "<ol><li>one</li><li>two<ul><li>deep <strong>x</strong></li></ul></li></ol>",
                "<code>&lt;script&gt;alert(1)&lt;/script&gt;</code>",
                "<blockquote><p>said</p></blockquote>",
                '<th scope="col">a</th>',
                "<td>2</td>",
                "2 * 3 * 4, snake_case_name, **open",
            ):
                self.assertIn(part, whole)
            # A hostile text takes no more than linear time.
            took = page.js("""
                const text = ("*a **b `c _d " + "[".repeat(20) + "|-").repeat(2000), began = performance.now();
                const emit = (parent, begin, end) => parent.append(text.slice(begin, end));
                new Markdown.View(document.createElement("div")).update(text, emit);
                return performance.now() - began;""")
            self.assertLess(took, 2000)

    def test_dark_and_light_follow_the_system_or_the_button(self):
        def background():
            red, green, blue = map(
                int,
                re.findall(r"\d+", page.js("return getComputedStyle(document.documentElement).backgroundColor"))[:3],
            )
            return red + green + blue

        with self.open(scheme="dark") as page:
            self.assertLess(background(), 150)
            page.sampling(temperature=0, max_tokens=90)
            page.ask("Explain a hash table in two short sentences.")
            page.picture("chat-dark")
            self.assertGreater(least_contrast(page), 4.5)
            self.assertGreater(least_edge_contrast(page), 3)
            page.one("#toggle-tokens").click()
            page.picture("tokens-dark")
            page.js("for (const tok of document.querySelectorAll('.tok')) tok.style.setProperty('--surprise', 1)")
            self.assertGreater(least_contrast(page), 4.5)
            page.scheme("light")
            self.assertGreater(background(), 600)
            self.assertGreater(least_contrast(page), 4.5)
            self.assertGreater(least_edge_contrast(page), 3)
            page.one("#theme").click()
            page.one("#theme").click()
            self.assertEqual(page.text("#theme"), "Theme: dark")
            self.assertLess(background(), 150)

    def test_a_narrow_screen_shows_one_view_at_a_time_and_never_scrolls_sideways(self):
        with self.open(width=390, height=844) as page:

            def fits():
                return page.js(
                    """
                    const wide = [...document.querySelectorAll("body *")].filter((n) =>
                        n.checkVisibility() && n.getBoundingClientRect().right > innerWidth + 1 &&
                        !n.closest("pre, .table, .sr"));
                    return [document.documentElement.scrollWidth <= innerWidth, wide.map((n) => n.outerHTML)];"""
                )

            self.assertEqual(fits(), [True, []])
            page.one(".views [data-view=sampling]").click()
            self.assertFalse(page.one("#draft").is_displayed())
            page.sampling(temperature=0, max_tokens=90)
            self.assertEqual(fits(), [True, []])
            page.one(".views [data-view=chat]").click()
            page.ask("Write one Python line that prints the numbers from 1 to 100, in a code block.")
            self.assertEqual(fits(), [True, []])
            page.picture("narrow-chat")
            page.one("#toggle-tokens").click()
            self.assertEqual(fits(), [True, []])
            page.picture("narrow-tokens")
            for view, shown in (("engine", "#gauges"), ("request", "#curl"), ("sampling", "#p-temperature")):
                page.one(f".views [data-view={view}]").click()
                self.assertTrue(page.one(shown).is_displayed())
                self.assertFalse(page.one("#draft").is_displayed())
                self.assertEqual(fits(), [True, []])
                page.picture(f"narrow-{view}")
            reason = "stopped: attention_decode_avx512 is wrong in decode: step 2 layer 0 sequence 0 row 0 head 0 dim 63"
            for state, words in (("ok", "serving"), ("lost", "no answer since 11:36:20 PM"), ("stopped", reason * 3)):
                for width in (320, 760, 761, 768, 1000, 1180, 1181, 1920):
                    page.resize(width, 800)
                    page.js("""
                        const status = document.getElementById("status"), text = document.getElementById("status-text");
                        [status.dataset.state, text.textContent] = arguments;""", state, words)
                    self.assertEqual(fits(), [True, []], (state, width))

    def test_nothing_jumps_when_an_answer_ends_and_its_end_stays_in_sight(self):
        with self.open(width=390, height=844) as page:
            page.one(".views [data-view=sampling]").click()
            page.sampling(temperature=0, max_tokens=60)
            page.one(".views [data-view=chat]").click()
            page.ask("Tell me a long story about the sea.")
            while_busy, after = page.js("""
                const turn = document.querySelector(".turn.assistant"), heights = [];
                for (const isBusy of [true, false]) {
                  turn.classList.toggle("busy", isBusy);
                  heights.push(turn.offsetHeight);
                }
                return heights;""")
            self.assertEqual(while_busy, after)

            def is_at_end():
                return page.js("""
                    const s = document.getElementById("scroller");
                    return s.scrollHeight - s.clientHeight - s.scrollTop < 2;""")

            page.resize(390, 420)  # as a screen keyboard does
            page.until(is_at_end, "the end of the answer")
            page.one(".views [data-view=engine]").click()
            page.resize(390, 500)
            page.one(".views [data-view=chat]").click()
            page.until(is_at_end, "the end of the answer")
            page.one("#toggle-tokens").click()
            page.until(is_at_end, "the end of its tokens")
            # Who reads further up is left there.
            page.js("document.getElementById('scroller').scrollTop = 0")
            page.until(lambda: not is_at_end(), "the beginning")
            page.resize(390, 420)
            page.js("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            self.assertEqual(page.js("return document.getElementById('scroller').scrollTop"), 0)

    def test_the_keyboard_is_never_left_nowhere_and_steps_as_the_sliders_do(self):
        with self.open() as page:
            page.sampling(temperature=0, max_tokens=400)
            page.begin("Tell me a long story about the sea.", Keys.NULL)
            page.one("#send").send_keys(Keys.ENTER)
            page.until(page.is_running, "the request")
            self.assertIn(page.js("return document.activeElement.id"), ("draft", "stop", "send"))
            page.js("document.getElementById('stop').focus()")
            page.driver.switch_to.active_element.send_keys(Keys.ENTER)
            page.wait_for_answer()
            self.assertIn(page.js("return document.activeElement.id"), ("draft", "send"))
            for name, typed, key, wanted in (
                ("top_p", "", Keys.ARROW_DOWN, "0.99"),  # from the model's default, which is 1
                ("top_p", "0.5", Keys.ARROW_UP, "0.51"),
                ("temperature", "0.7", Keys.ARROW_DOWN, "0.65"),
                ("temperature", "0", Keys.ARROW_DOWN, "0"),
                ("presence_penalty", "", Keys.ARROW_DOWN, "-0.05"),
                ("top_k", "", Keys.ARROW_UP, "1"),
            ):
                box = page.one(f"#p-{name}")
                box.clear()
                box.send_keys(typed, key)
                self.assertEqual(box.get_property("value"), wanted, (name, typed))

    def test_every_control_has_a_name_and_the_keyboard_reaches_it(self):
        with self.open() as page:
            page.sampling(temperature=0, max_tokens=20)
            page.ask("Hello")
            tree = page.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
            roles = {
                "button",
                "textbox",
                "combobox",
                "slider",
                "spinbutton",
                "link",
                "checkbox",
                "meter",
                "region",
                "group",
                "dialog",
            }
            nameless = [
                node["role"]["value"]
                for node in tree
                if not node.get("ignored")
                and node["role"]["value"] in roles
                and not node.get("name", {}).get("value", "").strip()
            ]
            self.assertEqual(nameless, [])
            names = [node["name"]["value"] for node in tree if node.get("role", {}).get("value") == "textbox"]
            self.assertIn("Message", names)
            landmarks = {node["role"]["value"] for node in tree if "role" in node}
            self.assertLessEqual({"main", "banner", "complementary"}, landmarks)
            self.assertEqual(page.js("return document.getElementById('announcer').getAttribute('aria-live')"), "polite")
            # Tab goes through the page in the order of the page and shows where it is.
            page.js("document.activeElement.blur(); document.body.tabIndex = -1; document.body.focus()")
            reached = []
            for _ in range(60):
                ActionChains(page.driver).send_keys(Keys.TAB).perform()
                name, outline, is_new = page.js("""
                    const n = document.activeElement, isNew = !n.wasReached && n !== document.body;
                    n.wasReached = true;
                    return [n.id || n.className || n.textContent, getComputedStyle(n).outlineStyle, isNew]""")
                if not is_new:
                    break
                reached.append(name.removeprefix("body "))
                self.assertNotEqual(outline, "none", name)
            for wanted in (
                "skip",
                "new-chat",
                "toggle-tokens",
                "draft",
                "p-temperature",
                "p-system",
                "copy-curl",
                "answer",
            ):
                self.assertIn(wanted, reached)
            self.assertLess(reached.index("answer"), reached.index("draft"))
            self.assertLess(reached.index("draft"), reached.index("p-temperature"))

    def test_marks_keep_their_color_where_colors_are_forced_and_the_skip_link_hides_at_any_size(self):
        with self.open() as page:

            def marks():
                return page.js("""
                    const dot = getComputedStyle(document.querySelector(".dot")).backgroundColor;
                    const phase = document.querySelector(".kernels li");
                    phase.dataset.active = true;
                    return [dot, getComputedStyle(phase, "::before").backgroundColor];""")

            usual = marks()
            page.driver.execute_cdp_cmd(
                "Emulation.setEmulatedMedia",
                {"features": [{"name": "forced-colors", "value": "active"}, {"name": "prefers-color-scheme", "value": "light"}]},
            )
            self.assertTrue(page.js("return matchMedia('(forced-colors: active)').matches"))
            self.assertEqual(marks(), usual)
            page.js("document.activeElement.blur(); document.documentElement.style.setProperty('font-size', '40px')")
            bottom = "return document.querySelector('.skip').getBoundingClientRect().bottom"
            self.assertLessEqual(page.js(bottom), 0)
            page.js("document.body.tabIndex = -1; document.body.focus()")
            ActionChains(page.driver).send_keys(Keys.TAB).perform()
            self.assertEqual(page.js("return document.activeElement.className"), "skip")
            self.assertGreater(page.js(bottom), 40)

    def test_the_shortcuts_are_listed_and_work(self):
        with self.open() as page:
            page.one("#draft").send_keys("?", Keys.SHIFT, Keys.ENTER, Keys.SHIFT, "b")
            self.assertEqual(page.one("#draft").get_property("value"), "?\nb")  # typed, not taken for a shortcut
            self.assertEqual(page.turns(), [])
            page.one("#draft").clear()
            page.js("document.activeElement.blur()")
            ActionChains(page.driver).send_keys("?").perform()
            page.until(lambda: page.one("#help").is_displayed(), "the list")
            for name in ("Enter", "Esc", "↑", "Alt R", "Alt T"):
                self.assertIn(name, " ".join(page.one("#help").text.split()))
            page.picture("help-light")
            ActionChains(page.driver).send_keys(Keys.ESCAPE).perform()
            page.until(lambda: not page.one("#help").is_displayed(), "no list")
            ActionChains(page.driver).send_keys("/").perform()
            self.assertEqual(page.js("return document.activeElement.id"), "draft")
            ActionChains(page.driver).key_down(Keys.ALT).send_keys("s").key_up(Keys.ALT).perform()
            self.assertEqual(page.js("return document.activeElement.id"), "p-temperature")

    def test_the_page_may_run_no_script_but_its_own(self):
        with self.open() as page:
            page.expected_errors = [r"Content Security Policy|Content-Security-Policy"]
            page.expected_requests += ("https://example.invalid/",)  # tried, and refused by the browser
            blocked = page.driver.execute_async_script("""
                const done = arguments[0], seen = [];
                document.addEventListener("securitypolicyviolation", (event) => seen.push(event.effectiveDirective));
                const script = document.createElement("script");
                script.textContent = "window.foreign = true";
                document.body.append(script);
                const image = document.createElement("img");
                image.src = "https://example.invalid/x.png";
                document.body.append(image);
                fetch("https://example.invalid/").catch(() => {});
                setTimeout(() => done([seen.sort(), window.foreign ?? null]), 500);""")
            self.assertEqual(blocked, [["connect-src", "img-src", "script-src-elem"], None])


if __name__ == "__main__":
    main()
