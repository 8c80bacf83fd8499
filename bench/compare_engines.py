#!/usr/bin/env python3
"""Several engines of ours on the same cases, taking turns: other flags, another build, an older commit.

    python3 bench/compare_engines.py MODEL NAME=COMMAND [NAME=COMMAND ...]

    B=build/release/bench/bench_engine
    python3 bench/compare_engines.py MODEL "bf16=$B" "int8=$B --kv-cache-dtype int8" "same bits=$B --deterministic"

COMMAND is bench_engine with its flags. Each round starts all of them afresh; in every turn each runs the case once, in
a drawn order, and is compared with the first of that turn. Printed per case: the median seconds of each and the
median of its ratios to the first. Give one of them twice to see what no difference looks like.
"""
import argparse
import json
import random
import shlex
import statistics
import subprocess
import sys

CASES = ("prefill 400", "prefill 1200", "decode 128 40", "decode 1200 40", "decode 2000 40", "streams 8 128 32")


class Engine:
    def __init__(self, command: str, model: str) -> None:
        self.process = subprocess.Popen([*shlex.split(command), model, "--threads", "2", "--max-model-len", "4096"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            if line.strip() == "ready":
                return
        sys.exit(f"'{command}' did not start")

    def run(self, case: str) -> float:
        self.process.stdin.write(case + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            sys.exit(f"bench_engine: {answer['error']}")
        return answer["seconds"]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("engines", nargs="+", metavar="NAME=COMMAND")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--turns", type=int, default=3, help="of each case in a round")
    parser.add_argument("--cases", nargs="+", default=list(CASES))
    arguments = parser.parse_args()
    commands = dict(engine.split("=", 1) for engine in arguments.engines)
    first = next(iter(commands))

    seconds = {(case, name): [] for case in arguments.cases for name in commands}
    for _ in range(arguments.rounds):
        engines = {name: Engine(command, arguments.model) for name, command in commands.items()}
        for engine in engines.values():
            engine.run("prefill 512")
            engine.run("decode 128 20")
        for case in arguments.cases:
            for _ in range(arguments.turns):
                for name in random.sample(list(engines), len(engines)):
                    seconds[case, name].append(engines[name].run(case))
        for engine in engines.values():
            engine.close()

    for case in arguments.cases:
        for name in commands:
            ratios = [mine / its for mine, its in zip(seconds[case, name], seconds[case, first])]
            print(f"{case:18} {name:16} {statistics.median(seconds[case, name]):8.4f} s  {statistics.median(ratios):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
