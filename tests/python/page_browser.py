"""What the tests of the page share: attest serve, and a tab of Debian's headless Chromium with its chromedriver."""
import atexit
import functools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

try:
    from selenium import webdriver
    from selenium.common.exceptions import StaleElementReferenceException
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError:
    webdriver = ActionChains = By = Keys = StaleElementReferenceException = None

BINARY = os.environ.get("ATTEST_BINARY", "")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
FOLDERS = [pathlib.Path(os.environ.get("ATTEST_MODELS") or CACHE / "attest-models"), CACHE / "attest/models"]
MODEL = next((folder / FILE for folder in FOLDERS if (folder / FILE).is_file()), None)
PICTURES = os.environ.get("ATTEST_PAGE_PICTURES")  # a folder: screenshots to look at
WAIT_SECONDS = 60  # a machine may be busy


# Answers have to last while a browser looks at them.
SLOWLY = ["--threads", "1", "--compute", "f32"]


class Server:
    """attest serve on a free port."""

    def __init__(self, *flags, port=0):
        self.log = tempfile.TemporaryFile("w+")
        command = [BINARY, "serve", str(MODEL), "--host", "127.0.0.1", "--port", str(port)]
        self.process = subprocess.Popen([*command, *SLOWLY, "--max-model-len", "512", "--max-attention-cases", "0", *flags],
                                        stdout=subprocess.PIPE, stderr=self.log, text=True)
        for line in self.process.stdout:
            if found := re.search(r"listening on (http://127\.0\.0\.1:(\d+))", line):
                self.url, self.port = found[1], int(found[2])
                break
        else:
            self.log.seek(0)
            raise RuntimeError(f"attest serve ended with status {self.process.wait()}: {self.log.read()}")
        self.reader = threading.Thread(target=self.process.stdout.read, daemon=True)
        self.reader.start()

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        try:
            self.process.wait(timeout=WAIT_SECONDS)
        finally:
            self.process.kill()
            self.reader.join()
            self.process.stdout.close()
            self.log.close()

    def engine(self):
        with urllib.request.urlopen(self.url + "/engine", timeout=30) as reply:
            return json.load(reply)

    def read_log(self):
        self.log.seek(0)
        return self.log.read()


@functools.cache
def browser():
    """One for all tests of a script: starting it takes longer than most of them."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    # --no-sandbox: tests run as root in containers, where Chromium's sandbox cannot start.
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--lang=en",
                 "--disable-background-networking", "--disable-component-update", "--no-first-run"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    atexit.register(driver.quit)
    return driver


class Page:
    """One tab, with nothing stored before. What it logged and asked for is checked when it closes."""

    def __init__(self, url, width=1440, height=900, scheme="light"):
        self.driver = browser()
        self.url = url
        self.expected_errors = []  # patterns of console lines that this test provokes
        self.expected_requests = ("data:", "about:blank", url + "/")
        self.driver.switch_to.new_window("tab")
        self.driver.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": url, "storageTypes": "all"})
        self.driver.execute_cdp_cmd("Browser.resetPermissions", {})
        for log in ("browser", "performance"):
            self.driver.get_log(log)  # of the last test
        self.resize(width, height)
        self.scheme(scheme)
        self.driver.get(url + "/")
        self.wait_until_loaded()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self.check_logs()
        finally:
            self.driver.close()
            self.driver.switch_to.window(self.driver.window_handles[0])

    def check_logs(self):
        for entry in self.driver.get_log("browser"):
            if not any(re.search(pattern, entry["message"]) for pattern in self.expected_errors):
                raise AssertionError(f"the console says: {entry['level']} {entry['message']}")
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                if not url.startswith(self.expected_requests):
                    raise AssertionError(f"the page asked for {url}")

    def wait_until_loaded(self):
        self.until(lambda: self.text("#status-text").startswith("serving"), "the live view")
        self.until(lambda: self.js("return document.querySelectorAll('#model option').length > 0"), "the models")

    def reload(self):
        self.driver.refresh()
        self.wait_until_loaded()

    def js(self, code, *arguments):
        return self.driver.execute_script(code, *arguments)

    def resize(self, width, height):
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
        )

    def scheme(self, name):
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": name}]}
        )

    def picture(self, name):
        if PICTURES:
            self.driver.save_screenshot(f"{PICTURES}/{name}.png")

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector):
        return self.js("return document.querySelector(arguments[0])?.textContent ?? ''", selector)

    def until(self, holds, what, seconds=WAIT_SECONDS):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if found := holds():
                    return found
            except StaleElementReferenceException:
                pass
            time.sleep(0.02)
        self.picture("failed")
        raise AssertionError(f"{what} did not come within {seconds} s")

    def sampling(self, **values):
        for name, value in values.items():
            box = self.one(f"#p-{name}")
            box.clear()
            box.send_keys(str(value))

    def begin(self, text, key=None):
        self.one("#draft").send_keys(text, key or Keys.ENTER)

    def is_running(self):
        return self.js("return !document.getElementById('stop').hidden")

    def wait_for_answer(self):
        self.until(lambda: not self.is_running(), "the end of the answer")
        return self.answer()

    def ask(self, text):
        self.begin(text)
        self.until(lambda: self.is_running() or self.all(".turn.assistant .meta:not(:empty)"), "the request")
        return self.wait_for_answer()

    def answer(self):
        """The text of the last answer, as the server sent it."""
        return self.js("return Chat.lastAnswer()")

    def turns(self):
        return self.js(
            """return [...document.querySelectorAll(".turn")].map(
                   (turn) => [turn.classList[1], turn.querySelector(".body").textContent]);"""
        )


class PageTest(unittest.TestCase):
    """Tests of one server with the default model."""

    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def open(self, **how):
        return Page(self.server.url, **how)


# Colors as they end up: over the backgrounds under them, and thinned by the opacity of what they are in.
CONTRAST = """
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
    const rgba = (color) => {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = color;
      canvas.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
      return [r, g, b, a / 255];
    };
    const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
    const above = (node) => node ? [node, ...above(node.parentElement)] : [];
    const backgroundOf = (node) => above(node).map((n) => rgba(getComputedStyle(n).backgroundColor))
      .reduceRight((below, top) => over(top, below), [255, 255, 255, 1]);
    const opacityOf = (node) => above(node).reduce((all, n) => all * Number(getComputedStyle(n).opacity), 1);
    const linear = (c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => [r, g, b].map((c) => linear(c / 255))
      .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const contrast = (node, color, below) => {
      const [r, g, b, a] = rgba(color);
      const [dark, bright] = [light(over([r, g, b, a * opacityOf(node)], below)), light(below)].sort((x, y) => x - y);
      return (bright + 0.05) / (dark + 0.05);
    };
    const isShown = (node) => node.checkVisibility({visibilityProperty: true}) && !node.closest(".sr, .skip");
    let least = 21, at = null;
    const see = (node, ratio) => { if (ratio < least) [least, at] = [ratio, node.outerHTML.slice(0, 200)]; };
"""


def least_contrast(page):
    """The smallest contrast ratio (WCAG) of a text that is shown; less than 4.5 is an error in the console, too."""
    return page.js(CONTRAST + """
        const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        while (walker.nextNode()) {
          const node = walker.currentNode.parentElement;
          if (walker.currentNode.textContent.trim() === "" || !isShown(node) || node.closest("script, style, option"))
            continue;
          see(node, contrast(node, getComputedStyle(node).color, backgroundOf(node)));
        }
        if (least < 4.5) console.error(`contrast ${least}: ${at}`);
        return least;""")


def least_edge_contrast(page):
    """The same of the edges of boxes to type in, over what is around them; 3 is asked of them."""
    return page.js(CONTRAST + """
        for (const box of document.querySelectorAll("input:not([type=range]), textarea")) {
          if (isShown(box)) see(box, contrast(box, getComputedStyle(box).borderTopColor, backgroundOf(box.parentElement)));
        }
        if (least < 3) console.error(`edge ${least}: ${at}`);
        return least;""")


def main():
    """Runs the tests of the calling script, or exits 77 with what is missing."""
    for is_missing, what in (
        (not BINARY, "ATTEST_BINARY is not set"),
        (MODEL is None, f"{FILE} is in none of {', '.join(map(str, FOLDERS))}"),
        (CHROMIUM is None or DRIVER is None, "the packages chromium and chromium-driver are not installed"),
        (webdriver is None, "the Python package selenium is not installed"),
    ):
        if is_missing:
            print(f"skipped: {what}")
            sys.exit(77)
    unittest.main()
