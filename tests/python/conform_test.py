#!/usr/bin/env python3
"""`attest conform` from outside: exit statuses, files that other programs read, a broken kernel, an engine in a script."""
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

ATTEST = os.environ.get("ATTEST_BINARY", "build/release/attest")
SOURCE = pathlib.Path(os.environ.get("ATTEST_SOURCE_DIR", "."))
EXAMPLES = pathlib.Path(ATTEST).parent / "tests/examples/conform"
BROKEN = EXAMPLES / "broken_window_off_by_one.so"
# The broken examples: trials that meet the bug, and the smallest case that shows it.
SMALLEST = {
    "skip_threshold": ("plain", "q_len [1] kv_len [1] (seed 7)"),
    "loop_count": ("head_dim", "q_len [1] kv_len [1] head_dim 8 (seed 7)"),
    "cu_seqlens_short": ("plain", "q_len [1] kv_len [1] (seed 7)"),
    "descale_row_short": ("descales", "q_len [1] kv_len [1] v_descale (seed 7)"),
    "window_off_by_one": ("window_left_0", "q_len [1] kv_len [2] window_left 0 (seed 7)"),
}


# A shared library of the system, which every machine that runs the binary has.
WITHOUT_KERNELS = next((line.split("=> ")[1].split()[0] for line in subprocess.run(
    ["ldd", ATTEST], capture_output=True, text=True).stdout.splitlines() if "libm.so" in line), "")


def conform(*args, cwd):
    return subprocess.run([ATTEST, "conform", *args], capture_output=True, text=True, cwd=cwd, timeout=300)


def refuse_what_cannot_be_tried(folder, case):
    """Each in one line that says what is wrong, beside the pointer to the help, before any trial, with status 2."""
    folder = pathlib.Path(folder)
    good = case.read_bytes()
    (folder / "cut").write_bytes(good[:-1])
    (folder / "start").write_bytes(good[:5])
    (folder / "empty").write_bytes(b"")
    (folder / "noise").write_bytes(bytes(range(256)) * 20)
    assert good.count(b"attest attention case 1") == 1
    (folder / "newer").write_bytes(good.replace(b"attest attention case 1", b"attest attention case 2"))
    (folder / "text.so").write_text("not a library\n" * 100)
    (folder / "cut.so").write_bytes(BROKEN.read_bytes()[:3000])
    (folder / "folder").mkdir()
    for arguments, said in [
        (["--case", "absent"], "absent"),
        (["--case", "folder"], "directory"),
        (["--case", "cut"], "cut: "),
        (["--case", "start"], "start: byte 0"),
        (["--case", "empty"], "empty: byte 0"),
        (["--case", "noise"], "noise: byte 0"),
        (["--case", "newer"], "newer: format is 'attest attention case 2', expected 'attest attention case 1'"),
        (["--case", str(case), "--bugs"], "--case excludes --bugs"),
        (["--case", str(case), "--filter", "x"], "--case excludes --filter"),
        (["--library", "absent.so"], "absent.so"),
        (["--library", "folder"], "directory"),
        (["--library", "text.so"], "text.so: cannot be loaded"),
        (["--library", "cut.so"], "cut.so: "),
        (["--library", WITHOUT_KERNELS], "does not export attest_conform_kernel_v1"),
        (["--command", "./absent"], "'./absent': the command ended"),
        (["--command", """echo '{"name": 1, "arithmetic": "f32"}'"""], "its first line lacks a name"),
        (["--command", """echo '{"name": "x", "arithmetic": [2]}'"""], "or an arithmetic of f32 or bf16"),
        (["--command", """echo '{"failed": 1}'"""], "its first line lacks a name"),
        (["--kernel", ""], "attention kernel '' does not exist"),
        (["--minutes", "-1"], "--minutes: Value -1 not in range"),
        (["--minutes", "abc"], "--minutes: Value abc not in range"),
        (["--minutes", "nan"], "--minutes: Value nan not in range"),
        (["--time-limit", "nan"], "--time-limit: Value nan not in range"),
        (["--seed", "-1"], "--seed: Value -1 is negative"),
        (["--seed", "abc"], "--seed = abc"),
        (["--random-cases", "-1"], "--random-cases: Value -1 not in range"),
        (["--html", "absent/r.html"], "--html: 'absent/r.html' cannot be written: No such file"),
        (["--json", "folder"], "--json: 'folder' cannot be written: Is a directory"),
        (["--bogus"], "unknown flag --bogus"),
    ]:
        ran = conform(*arguments, cwd=folder)
        lines = ran.stderr.splitlines()
        assert ran.returncode == 2 and not ran.stdout and said in lines[0], (arguments, ran)
        assert lines[1:] in ([], ["Run attest conform --help for the flags."]), (arguments, ran)


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
        (case,) = pathlib.Path(folder, "cases").glob("*.safetensors")
        for library, status in [(BROKEN, 1), (EXAMPLES / "naive.so", 0)]:
            again = conform("--library", str(library), "--case", str(case), "--failures", "", cwd=folder)
            assert again.returncode == status and "recorded case" in again.stdout, again
        for name, (trials, smallest) in SMALLEST.items():
            broken = conform("--library", str(EXAMPLES / f"broken_{name}.so"), "--cases", "--quick", "--filter", trials,
                             "--failures", "", cwd=folder)
            assert broken.returncode == 1 and f"{smallest}\n" in broken.stdout, broken
        refuse_what_cannot_be_tried(folder, case)

        # Nothing but what is drawn round by round; and no round where the filter leaves nothing of it.
        drawn = conform("--minutes", "0.05", "--random", "--random-cases", "0", "--kernel", "attention_general", cwd=folder)
        assert drawn.returncode == 0, drawn
        assert int(re.search(r"^seed 1: (\d+) passed", drawn.stdout, re.M)[1]) >= 32, drawn.stdout
        none = conform("--minutes", "100", "--cases", "--filter", "chunk_16", "--kernel", "reference", cwd=folder)
        assert none.returncode == 0 and "seed 1: 1 passed" in none.stdout, none

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
