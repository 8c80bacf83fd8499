"""The mutant build: mutants.toml is in order, an edit that does not fit is refused by name, and the shipped program
holds none of it."""
import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(os.environ.get("ATTEST_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
BINARY = pathlib.Path(os.environ.get("ATTEST_BINARY", ROOT / "build/release/attest"))
sys.path.insert(0, str(ROOT / "tests/mutants"))
import mutant_sources  # noqa: E402

SOURCE = """int Sum(int n) {
  int sum = 0;
  for (int i = 0; i < n; ++i) {
    sum += i;
  }
  return sum;  // i < n
}
"""


def mutant(number: int = 1, name: str = "m", old: str = "sum += i;", new: str = "sum -= i;", **more: str) -> dict:
    return {"name": name, "number": number, "file": "f.cc", "why": "w", "old": old, "new": new, "killer": "T.t", **more}


class Sources(unittest.TestCase):
    def refused(self, *mutants: dict) -> str:
        with self.assertRaises(mutant_sources.StaleMutant) as caught:
            mutant_sources.mutate(SOURCE, "f.cc", list(mutants))
        return str(caught.exception)

    def test_a_statement_becomes_a_branch_and_lines_keep_their_numbers(self) -> None:
        text = mutant_sources.mutate(SOURCE, "f.cc", [mutant(new="sum -= i;\n    ++sum;")])
        self.assertIn("{ if (attest_active_mutant == 1) { sum -= i; ++sum; } else { sum += i; } }", text)
        declaration, line, *rest = text.splitlines()
        self.assertEqual((declaration, line), ("extern int attest_active_mutant;", '#line 1 "src/f.cc"'))
        self.assertEqual(len(rest), len(SOURCE.splitlines()))

    def test_an_expression_becomes_a_choice_and_mutants_share_a_place(self) -> None:
        text = mutant_sources.mutate(SOURCE, "f.cc", [mutant(1, "a", "return sum", "return 1"), mutant(2, "b", "int sum = 0", "int sum = 1")])
        self.assertIn("(attest_active_mutant == 2 ? (int sum = 1) : (int sum = 0))", text)
        both = [mutant(3, "a", "n", "n - 1", at="i < n; ++i"), mutant(4, "b", "n", "n + 1", at="i < n; ++i")]
        self.assertIn("i < (attest_active_mutant == 3 ? (n - 1) : attest_active_mutant == 4 ? (n + 1) : (n)); ++i",
                      mutant_sources.mutate(SOURCE, "f.cc", both))

    def test_text_that_is_gone_or_not_unique_is_refused_by_name(self) -> None:
        self.assertIn("mutant 'gone' is stale: its old text occurs 0 times in f.cc", self.refused(mutant(name="gone", old="sum *= i;")))
        self.assertIn("occurs 2 times in f.cc", self.refused(mutant(old="i < n", new="i <= n")))
        self.assertIn("its at text occurs 0 times", self.refused(mutant(old="n", new="m", at="i <= n")))
        self.assertIn("occurs 2 times in its at", self.refused(mutant(old="i", new="j", at="i < n; ++i")))
        self.assertIn("\n", self.refused(mutant(name="a", old="x;"), mutant(name="b", old="y;")))

    def test_overlaps_comments_and_mixed_kinds_are_refused(self) -> None:
        self.assertIn("'b' overlaps mutant 'a'", self.refused(mutant(name="a"), mutant(2, "b", "i", "j", at="+= i;")))
        self.assertIn("comment", self.refused(mutant(new="sum -= i; // wrong")))
        self.assertIn("both be statements or both expressions", self.refused(mutant(new="sum")))


class List(unittest.TestCase):
    def test_sixty_mutants_need_no_more_than_avx2_and_all_are_described(self) -> None:
        mutants = mutant_sources.load()
        self.assertGreaterEqual(sum(not {"avx2", "x86"}.isdisjoint(m.get("needs", "avx2").split()) for m in mutants), 60)
        self.assertLessEqual({word for m in mutants for word in m.get("needs", "x86").split()},
                             {"x86", "avx2", "avx512", "avx512bf16", "amx", "neon"})
        self.assertGreaterEqual(sum("neon" in m.get("needs", "").split() for m in mutants), 10)
        self.assertEqual(len({(m["file"], m.get("at"), m["old"], m["new"]) for m in mutants}), len(mutants), "two are the same")

    def test_the_sources_of_this_tree_take_all_of_them(self) -> None:
        for file in {m["file"] for m in mutant_sources.load()}:
            text = (ROOT / "src" / file).read_text(encoding="utf-8")
            mutant_sources.mutate(text, file, [m for m in mutant_sources.load() if m["file"] == file])


class Programs(unittest.TestCase):
    def test_no_source_and_no_shipped_program_knows_of_mutants(self) -> None:
        for path in (ROOT / "src").rglob("*.*"):
            self.assertNotIn("active_mutant", path.read_text(encoding="utf-8"), path)
        if not BINARY.exists():
            self.skipTest(f"{BINARY} is not built")
        program = BINARY.read_bytes()
        self.assertNotIn(b"attest_active_mutant", program)
        self.assertNotIn(b"ATTEST_MUTANT", program)

    def test_an_unknown_mutant_ends_the_program_and_lists_the_known(self) -> None:
        program = BINARY.parent / "tests/mutants/attest_mutated"
        if not program.exists():
            self.skipTest("the mutant programs are not built")
        ran = subprocess.run([program, "--version"], env={**os.environ, "ATTEST_MUTANT": "nothing"}, capture_output=True, text=True)
        self.assertEqual(ran.returncode, 2)
        self.assertIn("ATTEST_MUTANT is 'nothing', known: skip_threshold", ran.stderr)
        self.assertEqual(subprocess.run([program, "--version"], env={**os.environ, "ATTEST_MUTANT": ""}, capture_output=True).returncode, 0)


if __name__ == "__main__":
    unittest.main()
