"""tools/check_layers.py refuses upward, sideways and missing includes and accepts this tree."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(os.environ.get("ATTEST_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))


def run(src):
    return subprocess.run([sys.executable, ROOT / "tools/check_layers.py", str(src)], capture_output=True, text=True)


class CheckLayers(unittest.TestCase):
    def tree(self, files):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for name, text in files.items():
            path = pathlib.Path(folder.name) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return folder.name

    def test_accepts_downward_and_own_folder(self):
        src = self.tree({"base/a.h": "", "tensor/b.h": '#include "base/a.h"\n', "tensor/c.h": '#include "tensor/b.h"\n'})
        self.assertEqual(run(src).returncode, 0)

    def test_refuses_upward(self):
        result = run(self.tree({"base/a.h": '#include "tensor/b.h"\n', "tensor/b.h": ""}))
        self.assertEqual(result.returncode, 1)
        self.assertIn("upward", result.stdout)

    def test_refuses_sideways(self):
        result = run(self.tree({"engine/a.h": '#include "text/b.h"\n', "text/b.h": ""}))
        self.assertEqual(result.returncode, 1)
        self.assertIn("sideways", result.stdout)

    def test_refuses_mutual(self):
        result = run(self.tree({"cache/a.h": '#include "attention/b.h"\n', "attention/b.h": '#include "cache/a.h"\n'}))
        self.assertEqual(result.returncode, 1)
        self.assertIn("cache includes attention/b.h sideways", result.stdout)

    def test_refuses_unknown_folder_and_relative_names(self):
        result = run(self.tree({"misc/a.h": "", "base/b.h": '#include "c.h"\n', "base/c.h": ""}))
        self.assertIn("has no layer", result.stdout)
        self.assertIn("write the path from src/", result.stdout)

    def test_the_oracle_includes_nothing_it_judges(self):
        result = run(self.tree({"kernels/cpu/a.h": "", "kernels/reference/b.cc": '#include "kernels/cpu/a.h"\n'}))
        self.assertIn("the oracle includes", result.stdout)

    def test_this_tree_is_clean(self):
        result = run(ROOT / "src")
        self.assertEqual(result.returncode, 0, result.stdout)


if __name__ == "__main__":
    unittest.main()
