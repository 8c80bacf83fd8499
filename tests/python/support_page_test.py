#!/usr/bin/env python3
"""docs/support.md is what `attest kernels --markdown` prints: a changed contract must change the page."""
import os
import pathlib
import platform
import subprocess
import sys

if platform.machine() not in ("x86_64", "AMD64"):
    print("skipped: the page lists the kernels of x86-64 builds")
    sys.exit(77)
page = pathlib.Path(os.environ["ATTEST_SOURCE_DIR"]) / "docs" / "support.md"
printed = subprocess.run([os.environ["ATTEST_BINARY"], "kernels", "--markdown"], capture_output=True, text=True, check=True).stdout
assert printed.count("\n") > 50 and "attention_general" in printed, "the command prints no page"
if page.read_text(encoding="utf-8") != printed:
    print(f"{page} is stale: run `attest kernels --markdown > docs/support.md`")
    sys.exit(1)
