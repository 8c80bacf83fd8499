#!/usr/bin/env python3
"""Fails when a file of src/ includes a folder of its own layer (other than its own) or of a higher one, or when two
folders include each other. Usage: check_layers.py [SRC_DIR]. Prints one line per violation; exit status 1 if any."""
import pathlib
import re
import sys

LAYERS = [  # lowest first; folders of one line do not include each other
    ["base"],
    ["device"],
    ["tensor"],
    ["io", "kernels"],
    ["attention", "cache"],
    ["model"],
    ["engine", "text"],
    ["server", "eval", "conform"],
    ["cli", "bindings"],
]
LEVEL = {folder: level for level, folders in enumerate(LAYERS) for folder in folders}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)


def check(src: pathlib.Path) -> list[str]:
    problems = []
    for path in sorted(src.rglob("*")):
        if path.suffix not in {".h", ".cc", ".cu", ".cuh", ".hip", ".inc"}:
            continue
        own = path.relative_to(src).parts[0]
        if own not in LEVEL:
            problems.append(f"{path}: folder '{own}' has no layer; add it to {pathlib.Path(__file__).name}")
            continue
        for name in INCLUDE.findall(path.read_text(encoding="utf-8")):
            target = name.split("/")[0]
            if "/" not in name or target not in LEVEL:
                problems.append(f'{path}: includes "{name}"; write the path from src/, as in "tensor/view.h"')
            elif not (src / name).is_file():
                problems.append(f'{path}: includes "{name}", which does not exist')
            elif target == own:
                continue
            elif LEVEL[target] > LEVEL[own]:
                problems.append(f"{path}: {own} (L{LEVEL[own]}) includes {name} upward (L{LEVEL[target]})")
            elif LEVEL[target] == LEVEL[own]:
                problems.append(f"{path}: {own} includes {name} sideways (both L{LEVEL[own]})")
        if own == "kernels" and "reference" in path.parts:
            for name in INCLUDE.findall(path.read_text(encoding="utf-8")):
                if name.startswith("kernels/") and not name.startswith("kernels/reference/") \
                        and name != "kernels/attention_params.h":
                    problems.append(f"{path}: the oracle includes {name}, part of what it judges")
    return problems


def main() -> int:
    src = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent / "src"
    problems = check(src)
    for problem in problems:
        print(problem)
    print(f"layer check: {len(problems)} problem(s)")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
