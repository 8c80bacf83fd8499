"""The recorded renderings that tests/text/chat_template_test.cc compares with are jinja2's own."""
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(os.environ.get("ATTEST_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))

try:
    import jinja2  # noqa: F401
except ImportError:
    print("skipped: the package jinja2 is not installed")
    sys.exit(77)
sys.exit(subprocess.run([sys.executable, ROOT / "tools/record_chat_templates.py", "--check"]).returncode)
