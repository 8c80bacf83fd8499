#!/usr/bin/env python3
"""What the sentinel costs, by throughput: pairs of runs with and without it, alternated on one machine.

    python3 bench/compare_sentinel.py build/release/bench/bench_engine MODEL [--rate 0.0001] [--seconds 200]

Each round starts three engines afresh: two without the sentinel and one with it. They take turns, in another order
each time, on the same cases; a turn of the three gives the ratio of the one with it to the mean of the two without, and
the ratio of those two to each other, which is what the method makes of no difference at all. Printed per case: the
median of the ratios of times, with a 95 % interval by bootstrap over rounds (engines differ from start to start by
more than turns do), and the time spent in checks as the engine counts it. One JSON line per case ends the output.
"""
import argparse
import json
import random
import statistics
import subprocess
import sys
import time

CASES = ("decode 128 60", "decode 2000 40", "prefill 2000")


class Engine:
    def __init__(self, binary: str, model: str, threads: int, rate: float) -> None:
        command = [binary, model, "--threads", str(threads), "--max-model-len", "4096"]
        if rate > 0:
            command += ["--verify-attention", str(rate)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline().strip() != "ready":
            sys.exit("bench_engine did not start")

    def run(self, case: str) -> dict:
        self.process.stdin.write(case + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            sys.exit(f"bench_engine: {answer['error']}")
        return answer

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def interval(rounds: list[list[float]], draws: random.Random) -> tuple[float, float, float]:
    """Median of all ratios, and the 2.5 % and 97.5 % points of medians of rounds drawn with replacement."""
    medians = []
    for _ in range(2000):
        drawn = [ratio for _ in rounds for ratio in draws.choice(rounds)]
        medians.append(statistics.median(drawn))
    medians.sort()
    return statistics.median([r for one in rounds for r in one]), medians[50], medians[-50]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--turns", type=int, default=5, help="of each case in a round")
    parser.add_argument("--cases", nargs="+", default=list(CASES))
    arguments = parser.parse_args()

    draws = random.Random(1)
    cost = {case: [] for case in arguments.cases}
    noise = {case: [] for case in arguments.cases}
    checks = {case: [0.0, 0.0, 0] for case in arguments.cases}  # seconds in checks, seconds, rows
    until = time.monotonic() + arguments.seconds
    rounds, longest = 0, 0.0
    while rounds < 2 or time.monotonic() + longest < until:
        began = time.monotonic()
        engines = [Engine(arguments.binary, arguments.model, arguments.threads, rate) for rate in (0, 0, arguments.rate)]
        order = draws.sample(range(3), 3)
        for engine in engines:  # pages are touched and the first, shortest windows passed
            engine.run("prefill 512")
            engine.run("decode 128 30")
        for case in arguments.cases:
            costs, noises = [], []
            for turn in range(arguments.turns):
                seconds = [0.0, 0.0, 0.0]
                for i in order[turn % 3:] + order[:turn % 3]:
                    started = time.monotonic()
                    answer = engines[i].run(case)
                    seconds[i] = answer["seconds"]
                    if i == 2:  # what is checked in a prompt is counted, so its time is, too
                        checks[case][0] += answer.get("check_seconds", 0.0)
                        checks[case][1] += time.monotonic() - started
                        checks[case][2] += answer.get("checked", 0)
                costs.append(2 * seconds[2] / (seconds[0] + seconds[1]))
                noises.append(seconds[1] / seconds[0])
            cost[case].append(costs)
            noise[case].append(noises)
        for engine in engines:
            engine.close()
        rounds += 1
        longest = max(longest, time.monotonic() - began)

    lines = []
    for case in arguments.cases:
        with_it, none = interval(cost[case], draws), interval(noise[case], draws)
        seconds, total, rows = checks[case]
        pairs = sum(len(one) for one in cost[case])
        print(f"{case:16} rate {arguments.rate:g} takes {100 * (with_it[0] - 1):+.2f} % "
              f"[{100 * (with_it[1] - 1):+.2f}, {100 * (with_it[2] - 1):+.2f}] of the time, no difference measures "
              f"{100 * (none[0] - 1):+.2f} % [{100 * (none[1] - 1):+.2f}, {100 * (none[2] - 1):+.2f}]; "
              f"in checks {100 * seconds / total:.3f} %, {1e6 * seconds / max(rows, 1):.0f} us each ({pairs} pairs, {rounds} rounds)")
        lines.append({"case": case, "rate": arguments.rate, "pairs": pairs, "rounds": rounds, "ratio": with_it[0],
                      "low": with_it[1], "high": with_it[2], "control": none[0], "control_low": none[1],
                      "control_high": none[2], "in_checks": seconds / total, "rows": rows})
    for line in lines:
        print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
