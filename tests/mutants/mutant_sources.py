#!/usr/bin/env python3
"""Makes the sources of the mutant build from mutants.toml: copies of the listed files of src/ in which every mutant is
a branch on `attest_active_mutant`, an int that only the mutant build defines.

  mutant_sources.py list SRC               prints the .cc files of SRC whose code a mutant is in, or in a header of theirs
  mutant_sources.py write SRC OUT FILES    writes OUT/<path> for every listed file, and OUT/mutant_names.inc; FILES, the
                                           comma separated output of `list` when the build was configured, must still hold

An `old` text that ends in ';' or '}' is a statement and becomes `if (mutant) new else old`; any other is an expression
and becomes `(mutant ? (new) : (old))`. `old` must occur exactly once, so a mutant never drifts to another place; where
it cannot, `at` gives a longer text that does and holds `old` once.
"""
import pathlib
import re
import sys
import tomllib

LIST = pathlib.Path(__file__).with_name("mutants.toml")
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)
NAME = re.compile(r"[a-z][a-z0-9_]*")
FIELDS = {"name", "file", "why", "at", "old", "new", "killer", "also", "needs"}


class StaleMutant(Exception):
    """A mutant that does not fit the sources; the message names it and says what is wrong."""


def load(path: pathlib.Path = LIST) -> list[dict]:
    """The mutants in their order; each gets its `number`, from 1."""
    mutants = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    seen = set()
    for number, mutant in enumerate(mutants, 1):
        name = mutant.get("name", f"number {number}")
        if not NAME.fullmatch(name) or name in seen:
            raise StaleMutant(f"mutant '{name}': the name must be new, in a-z, 0-9 and _")
        for field in ("file", "why", "old", "new", "killer"):
            if not mutant.get(field, "").strip():
                raise StaleMutant(f"mutant '{name}': {field} is empty")
        unknown = set(mutant) - FIELDS
        if unknown:
            raise StaleMutant(f"mutant '{name}': unknown field {sorted(unknown)[0]}, known: {', '.join(sorted(FIELDS))}")
        seen.add(name)
        mutant["number"] = number
    return mutants


def is_statement(text: str) -> bool:
    return text.rstrip().endswith((";", "}"))


def branch(old: str, mutants: list[dict]) -> str:
    """`old` behind the branches of its mutants; no line more than `old` has, so that later lines keep their numbers."""
    for mutant in mutants:
        if "//" in mutant["new"]:
            raise StaleMutant(f"mutant '{mutant['name']}': new holds a comment, it is put on one line")
        if is_statement(old) != is_statement(mutant["new"]):
            raise StaleMutant(f"mutant '{mutant['name']}': old and new must both be statements or both expressions")
    parts = [(mutant["number"], " ".join(mutant["new"].split())) for mutant in mutants]
    if is_statement(old):
        return "{ " + "".join(f"if (attest_active_mutant == {n}) {{ {new} }} else " for n, new in parts) + f"{{ {old} }} }}"
    return "(" + "".join(f"attest_active_mutant == {n} ? ({new}) : " for n, new in parts) + f"({old}))"


def span(source: str, path: str, mutant: dict) -> tuple[int, int]:
    """Where in the text of a file the mutant's old text lies."""
    old = mutant["old"].strip()
    at = mutant.get("at", old).strip()
    for what, text, inside, where in (("at" if "at" in mutant else "old", at, source, path), ("old", old, at, "its at")):
        if inside.count(text) != 1:
            raise StaleMutant(f"mutant '{mutant['name']}' is stale: its {what} text occurs {inside.count(text)} times in "
                              f"{where}, expected once:\n{text}")
    begin = source.index(at) + at.index(old)
    return begin, begin + len(old)


def mutate(source: str, path: str, mutants: list[dict]) -> str:
    """The text of a file with all its mutants in it. StaleMutant holds every problem of the file."""
    problems = []
    by_span: dict[tuple[int, int], list[dict]] = {}
    for mutant in mutants:
        try:
            by_span.setdefault(span(source, path, mutant), []).append(mutant)
        except StaleMutant as problem:
            problems.append(str(problem))
    result, at, previous = "", 0, ""
    for (begin, end), group in sorted(by_span.items(), key=lambda item: item[0]):
        if begin < at:
            problems.append(f"mutant '{group[0]['name']}' overlaps mutant '{previous}' in {path}")
            continue
        try:
            result += source[at:begin] + branch(source[begin:end], group)
        except StaleMutant as problem:
            problems.append(str(problem))
        at, previous = end, group[0]["name"]
    if problems:
        raise StaleMutant("\n".join(problems))
    # An .inc is included inside namespaces, where the declaration would name another variable: active_mutant.h has it.
    declaration = "" if path.endswith(".inc") else "extern int attest_active_mutant;\n"
    return f'{declaration}#line 1 "src/{path}"\n{result}{source[at:]}'


def sources(src: pathlib.Path, mutants: list[dict]) -> list[str]:
    """The .cc files that hold a mutant or include, directly or not, a header that does. Folders without a mutant keep to
    the clean headers: the mutant build must not pull in the layers above the attention library."""
    texts = {str(path.relative_to(src)): path.read_text(encoding="utf-8")
             for path in sorted(src.rglob("*")) if path.suffix in {".cc", ".h", ".inc"}}
    includes = {path: [name for name in INCLUDE.findall(text) if name in texts] for path, text in texts.items()}
    touched = {mutant["file"] for mutant in mutants}
    for mutant in mutants:
        if mutant["file"] not in texts:
            raise StaleMutant(f"mutant '{mutant['name']}': src/{mutant['file']} does not exist")
    grew = True
    while grew:
        more = {path for path, names in includes.items() if path not in touched and touched & set(names)}
        touched |= more
        grew = bool(more)
    folders = {mutant["file"].split("/")[0] for mutant in mutants}
    return [path for path in sorted(touched) if path.endswith(".cc") and path.split("/")[0] in folders]


def write(src: pathlib.Path, out: pathlib.Path, mutants: list[dict]) -> None:
    by_file: dict[str, list[dict]] = {}
    for mutant in mutants:
        by_file.setdefault(mutant["file"], []).append(mutant)
    texts, problems = {}, []
    for path, group in by_file.items():
        try:
            texts[path] = mutate((src / path).read_text(encoding="utf-8"), path, group)
        except StaleMutant as problem:
            problems.append(str(problem))
    if problems:
        raise StaleMutant("\n".join(problems))
    texts["mutant_names.inc"] = "".join(f'"{mutant["name"]}",\n' for mutant in mutants)
    for path, text in texts.items():
        target = out / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.write_text(text, encoding="utf-8")
    for old in [path for path in out.rglob("*") if path.is_file() and str(path.relative_to(out)) not in texts]:
        old.unlink()  # a copy left from an older list would hide the file of src/


def main() -> int:
    if len(sys.argv) not in (3, 5):
        print(__doc__, file=sys.stderr)
        return 2
    src = pathlib.Path(sys.argv[2])
    try:
        mutants = load()
        if sys.argv[1] == "list":
            print("\n".join(sources(src, mutants)))
            return 0
        configured, now = sys.argv[4].split(","), sources(src, mutants)
        if configured != now:
            raise StaleMutant(f"other files now hold mutants ({', '.join(sorted(set(configured) ^ set(now)))}): run cmake again")
        write(src, pathlib.Path(sys.argv[3]), mutants)
        return 0
    except StaleMutant as error:
        print(f"tests/mutants/mutants.toml: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
