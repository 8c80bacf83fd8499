#!/usr/bin/env python3
"""`attest conform` from outside: exit statuses, files that other programs read, a broken kernel, an engine in a script."""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

ATTEST = os.environ.get("ATTEST_BINARY", "build/release/attest")
SOURCE = pathlib.Path(os.environ.get("ATTEST_SOURCE_DIR", "."))
BROKEN = pathlib.Path(ATTEST).parent / "tests/examples/conform/broken_window_off_by_one.so"


def conform(*args, cwd):
    return subprocess.run([ATTEST, "conform", *args], capture_output=True, text=True, cwd=cwd, timeout=300)


def main():
    with tempfile.TemporaryDirectory() as folder:
        unknown = conform("--kernel", "attention_genral", cwd=folder)
        assert unknown.returncode == 2 and "attention_genral" in unknown.stderr, unknown
        nothing = conform("--filter", "no such thing", cwd=folder)
        assert nothing.returncode == 2 and "no such thing" in nothing.stderr, nothing

        listed = conform("--list", "--bugs", cwd=folder)
        ids = {line.split()[3][:3] for line in listed.stdout.splitlines()}
        assert ids == {f"A{i:02}" for i in range(1, 56)}, sorted(ids)

        good = conform("--kernel", "attention_general", "--cases", "--filter", "chunk", "--json", "r.json", "--junit", "r.xml",
                       "--html", "r.html", cwd=folder)
        assert good.returncode == 0, good.stdout + good.stderr
        report = json.loads(pathlib.Path(folder, "r.json").read_text())
        assert report["num_failures"] == 0 and len(report["trials"]) >= 8, report["trials"]
        suite = xml.etree.ElementTree.parse(pathlib.Path(folder, "r.xml")).getroot()[0]
        assert int(suite.get("tests")) == len(report["trials"]) and suite.get("failures") == "0"
        assert pathlib.Path(folder, "r.html").read_text().endswith("</html>\n")

        bad = conform("--library", str(BROKEN), "--cases", "--filter", "window_left", "--failures", "cases", cwd=folder)
        assert bad.returncode == 1, bad.stdout + bad.stderr
        assert "smallest failing case" in bad.stdout and "q_len [1] kv_len [2] window_left 0" in bad.stdout, bad.stdout
        assert list(pathlib.Path(folder, "cases").glob("*.safetensors")), bad.stdout

        if importlib.util.find_spec("torch") is None:
            print("without torch in this interpreter: tools/conform_torch.py is not tried")
            return 0
        script = SOURCE / "tools" / "conform_torch.py"
        torch = conform("--command", f"{sys.executable} {script}", "--cases", "--filter", "window_left_3", "--time-limit", "60",
                        "--json", "t.json", cwd=folder)
        assert torch.returncode == 0, torch.stdout + torch.stderr
        verdicts = [list(trial["outcomes"].values())[0]["verdict"]
                    for trial in json.loads(pathlib.Path(folder, "t.json").read_text())["trials"]]
        assert "pass" in verdicts, verdicts
    return 0


if __name__ == "__main__":
    sys.exit(main())
