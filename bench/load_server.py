#!/usr/bin/env python3
"""What the server does under load and faults: thousands of streams, slow and vanishing clients, drains and kills.

    python3 bench/load_server.py [SCENARIO ...] [--binary build/release/attest] [--idle 5000 --active 500 ...] [--quick]

Without names every scenario runs that needs neither root nor attest_mutated; each asserts, and prints one JSON line with its figures. --quick takes small counts, as
the tests do. Standard library only; Linux. The model is random and tiny (bench/tiny_model.py): it is the server that is
measured. docs/operations.md says how each figure is taken.
"""
import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import re
import resource
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from tiny_model import write_tiny_model  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
SANITIZER = re.compile(r"WARNING: ThreadSanitizer|ERROR: (Address|Leak)Sanitizer|: runtime error: ")


class Server:
    """attest serve on a tiny model, with its log in a file."""

    def __init__(self, options, *flags, port=0, descriptors=None, environment=None):
        self.log = tempfile.NamedTemporaryFile("w+", prefix="attest-log-")

        def limit():
            if descriptors:
                resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

        self.process = subprocess.Popen(
            [options.binary, "serve", str(options.model), "--port", str(port), "--threads", str(options.threads),
             "--served-model-name", "tiny",
             *([] if "--verify-attention" in flags else ["--verify-attention", str(options.verify)]), *flags],
            stdout=subprocess.PIPE, stderr=self.log, text=True, preexec_fn=limit, env={**os.environ, **(environment or {})})
        for line in self.process.stdout:
            if found := re.search(r"listening on http://([^:]+):(\d+)", line):
                self.host, self.port = found[1], int(found[2])
                break
        else:
            raise RuntimeError(f"attest serve ended with {self.process.wait()}: {self.read_log()}")
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)  # two that are pending at once are one
            self.process.send_signal(signal.SIGTERM)
        status, log = self.ended(60), self.read_log()
        self.log.close()
        if kind is not None:
            sys.stderr.write(log[-4000:])
        elif status not in (0, -signal.SIGKILL):
            raise AssertionError(f"the server ended with {status}:\n{log[-4000:]}")
        elif found := SANITIZER.search(log):  # also of one that was killed
            raise AssertionError(f"a sanitizer spoke:\n{log[found.start():][:8000]}")

    def ended(self, timeout):
        try:
            return self.process.wait(timeout)
        finally:
            self.process.kill()

    def read_log(self):
        return pathlib.Path(self.log.name).read_text(encoding="utf-8", errors="replace")

    def connect(self, receive_buffer=0):
        client = socket.socket()
        if receive_buffer:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client.settimeout(120)
        client.connect(("127.0.0.1", self.port))
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client

    def get(self, path):
        with self.connect() as client:
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n".encode())
            return read_reply(client)

    def ask(self, **fields):
        with self.connect() as client:
            client.sendall(completion(**fields))
            return read_reply(client)

    def metrics(self):
        return self.get("/metrics").body.decode()

    def metric(self, name, labels=""):
        """The sum over the series whose labels contain `labels`."""
        return sum(float(line.rsplit(" ", 1)[1]) for line in self.metrics().splitlines()
                   if line.startswith(f"attest:{name}{{") and labels in line)

    def histogram(self, name):
        """{upper bound: cumulative count}."""
        found = re.findall(rf'^attest:{name}_bucket\{{.*le="([^"]+)"\}} (\d+)', self.metrics(), re.M)
        return {float(bound): int(count) for bound, count in found}

    def wait_for(self, what, seconds=120):
        deadline = time.monotonic() + seconds
        while not what():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {seconds} s in vain; the log ends:\n{self.read_log()[-2000:]}")
            time.sleep(0.02)

    def resident(self):
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.search(r"VmRSS:\s+(\d+)", text)[1])


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    def events(self):
        """The data of each event of a stream but the last, which must be [DONE]."""
        lines = [line[6:] for line in self.body.decode().split("\n") if line.startswith("data: ")]
        assert lines and lines[-1] == "[DONE]", f"a stream without [DONE]: {self.body[-300:]!r}"
        return [json.loads(line) for line in lines[:-1]]

    def text(self):
        if b"data: " in self.body:
            return "".join(choice["text"] for event in self.events() for choice in event["choices"])
        return self.json()["choices"][0]["text"]


def read_reply(client, rest=None):
    """One reply. `rest`: a bytearray with what was received beyond the last one."""
    data = rest if rest is not None else bytearray()

    def fill():
        part = client.recv(1 << 16)
        data.extend(part)
        return bool(part)

    while (end := data.find(b"\r\n\r\n")) < 0:
        if not fill():
            raise ConnectionError(f"closed before an answer: {bytes(data)!r}")
    lines = data[:end].decode().split("\r\n")
    del data[:end + 4]
    headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines[1:])}
    status, body = int(lines[0].split(" ")[1]), b""
    if status == 100:
        return Reply(status, headers, body)
    if "content-length" in headers:
        size = int(headers["content-length"])
        while len(data) < size:
            if not fill():
                raise ConnectionError("closed inside an answer")
        body = bytes(data[:size])
        del data[:size]
    elif headers.get("transfer-encoding") == "chunked":
        while True:
            while (end := data.find(b"\r\n")) < 0:
                if not fill():
                    raise ConnectionError("closed inside a stream")
            size = int(data[:end], 16)
            while len(data) < end + size + 4:
                if not fill():
                    raise ConnectionError("closed inside a stream")
            body += data[end + 2:end + 2 + size]
            del data[:end + size + 4]
            if size == 0:
                break
    return Reply(status, headers, body)


def completion(request_id="", **fields):
    body = json.dumps({"model": "tiny", "prompt": "hi", "temperature": 0, "ignore_eos": True, **fields}).encode()
    extra = f"X-Request-Id: {request_id}\r\n" if request_id else ""
    return (f"POST /v1/completions HTTP/1.1\r\nHost: t\r\n{extra}Content-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n").encode() + body


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))] if values else float("nan")


def histogram_quantile(before, after, q):
    """An upper bound: the bucket's upper end."""
    counts = {bound: after[bound] - before.get(bound, 0) for bound in after}
    total = counts[float("inf")]
    return next(bound for bound in sorted(counts) if counts[bound] >= q * total) if total else float("nan")


class Streams:
    """Many streams on non-blocking sockets: when bytes came, and how many events."""

    def __init__(self, server):
        self.server = server
        self.selector = selectors.EpollSelector()
        self.times, self.ended, self.tails = {}, set(), {}

    def open(self, count, **fields):
        opened = []
        for _ in range(count):
            client = self.server.connect()
            client.sendall(completion(stream=True, **fields))
            client.setblocking(False)
            self.selector.register(client, selectors.EVENT_READ)
            self.times[client], self.tails[client] = [], b""
            opened.append(client)
        return opened

    def read(self, seconds, until=lambda: False):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not until():
            for key, _ in self.selector.select(0.05):
                client = key.fileobj
                try:
                    part = client.recv(1 << 16)
                except BlockingIOError:
                    continue
                except ConnectionError:
                    part = b""
                now = time.monotonic()
                self.times[client].append((now, part.count(b"data: ")))
                self.tails[client] = (self.tails[client] + part)[-64:]
                if not part or b"data: [DONE]" in self.tails[client]:
                    self.ended.add(client)
                    self.selector.unregister(client)

    def close(self, clients, reset=False):
        for client in clients:
            if reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with contextlib.suppress(KeyError, ValueError):
                self.selector.unregister(client)
            client.close()


def streams(options):
    """5,000 idle streams and 500 active ones: what the front end adds to the gap between two events."""
    idle, active, seconds = options.idle, options.active, options.seconds
    per_seat = 1 + options.tokens // 16 + 1
    with Server(options, "--max-num-seqs", str(active), "--max-queued-requests", str(idle + active + 1), "--max-model-len",
                str(options.tokens + 100), "--disable-log-requests", "--kv-cache-gib", str(options.kv_gib)) as server:
        server.ask(max_tokens=4)
        empty = server.resident()
        load = Streams(server)
        runners = load.open(active, max_tokens=options.tokens)
        server.wait_for(lambda: load.read(0.2) or server.metric("num_requests_running") == active)
        running = server.resident()
        # They wait for a seat: open, answered with a head, and silent but for a comment every 15 s.
        waiters = load.open(idle, max_tokens=16)
        server.wait_for(lambda: load.read(0.2) or server.metric("http_streams") == active + idle)
        full = server.resident()
        before = server.histogram("inter_token_latency_seconds"), server.histogram("token_delivery_seconds")
        for times in load.times.values():
            times.clear()
        ticks = cpu_seconds(server.process.pid), time.monotonic()
        load.read(seconds)
        ticks = cpu_seconds(server.process.pid) - ticks[0], time.monotonic() - ticks[1]
        after = server.histogram("inter_token_latency_seconds"), server.histogram("token_delivery_seconds")
        gaps, events = [], 0
        for client in runners:
            times = [(at, count) for at, count in load.times[client] if count]
            events += sum(count for _, count in times)
            gaps += [b[0] - a[0] for a, b in zip(times, times[1:])]
        assert not load.ended & set(runners), "an active stream ended too early: take more --tokens"
        assert server.metric("num_requests_running") == active and server.metric("num_requests_waiting") == idle
        assert server.metric("http_slow_readers_closed_total") == 0
        load.close(waiters)
        load.close(runners)
        server.wait_for(lambda: server.metric("num_requests_running") + server.metric("num_requests_waiting") == 0)
        server.wait_for(lambda: server.metric("http_streams") == 0)
        blocks = server.metric("kv_cache_usage_perc")
        assert blocks == 0, f"{blocks} of the blocks did not come back"
        engine_p99 = histogram_quantile(before[0], after[0], 0.99)
        delivery_p99 = histogram_quantile(before[1], after[1], 0.99)
        assert events >= active, f"only {events} events came in {seconds} s"
        assert delivery_p99 <= options.max_added, f"p99 from engine to sockets is {delivery_p99} s"
        # The same from outside: what a client waits beyond the steps of the engine.
        assert quantile(gaps, 0.99) <= engine_p99 + options.max_added, (quantile(gaps, 0.99), engine_p99)
        return {"idle": idle, "active": active, "events_per_s": round(events / seconds), "client_gap_ms_p50":
                1e3 * quantile(gaps, 0.5), "client_gap_ms_p99": 1e3 * quantile(gaps, 0.99), "engine_gap_ms_p99_at_most":
                1e3 * engine_p99, "delivery_ms_p50_at_most": 1e3 * histogram_quantile(before[1], after[1], 0.5),
                "delivery_ms_p99_at_most": 1e3 * delivery_p99, "kib_per_idle_stream": (full - running) / idle / 1024,
                "kib_per_active_stream": (running - empty) / active / 1024, "cpu_share": ticks[0] / ticks[1] / 2,
                "blocks_per_seat": per_seat}


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def keep_alive(options):
    """Short requests over a few connections: no memory is lost."""
    with Server(options, "--disable-log-requests", "--max-num-seqs", "32") as server:
        clients = [server.connect() for _ in range(16)]
        rests = [bytearray() for _ in clients]
        bodies = [completion(max_tokens=1), completion(max_tokens=2, stream=True), completion(max_tokens=1, n=2),
                  completion(max_tokens=0), b"GET /v1/models HTTP/1.1\r\nHost: t\r\n\r\n"]
        statuses = [200, 200, 200, 400, 200]

        def run(count):
            for begin in range(0, count, len(clients)):
                for i, client in enumerate(clients):
                    client.sendall(bodies[(begin + i) % len(bodies)])
                for i, client in enumerate(clients):
                    reply = read_reply(client, rests[i])
                    assert reply.status == statuses[(begin + i) % len(bodies)], reply.body
                if begin // len(clients) % 20 == 0:  # some vanish in the middle of an answer
                    with server.connect() as gone:
                        gone.sendall(completion(max_tokens=1000, stream=True))
                        gone.recv(100)

        run(max(options.requests // 5, 400))
        time.sleep(0.5)
        warm = server.resident()
        begin = time.monotonic()
        run(options.requests)
        took = time.monotonic() - begin
        time.sleep(0.5)
        growth = server.resident() / warm - 1
        assert server.metric("kv_cache_usage_perc") == 0
        assert growth < 0.02 or options.sanitized, f"resident memory grew by {100 * growth:.1f} %"
        return {"requests": options.requests, "per_s": round(options.requests / took), "resident_mib": warm / 2**20,
                "growth_percent": 100 * growth}


def growth(options):
    """Bug case C33. Requests of one token, one choice or two, some of whose clients do not wait: after the first tenth of them
    memory stands still."""
    with Server(options, "--disable-log-requests", "--no-enable-prefix-caching", "--max-num-seqs", "32") as server:
        clients = [server.connect() for _ in range(16)]
        rests = [bytearray() for _ in clients]
        gone = 0

        def run(begin, end):
            nonlocal gone
            for first in range(begin, end, len(clients)):
                for i, client in enumerate(clients[1:], 1):
                    client.sendall(completion(prompt=f"number {first + i}", max_tokens=1, n=1 + i % 2, stream=i % 4 == 3))
                with server.connect() as leaving:
                    leaving.sendall(completion(prompt=f"number {first}", max_tokens=1, n=1 + first // len(clients) % 2))
                    leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    gone += 1
                for i, client in enumerate(clients[1:], 1):
                    reply = read_reply(client, rests[i])
                    assert reply.status == 200, reply.body
            server.wait_for(lambda: server.metric("num_requests_running") + server.metric("num_requests_waiting") == 0)

        run(0, options.growth // 10)
        warm = server.resident()
        run(options.growth // 10, options.growth)
        grown = server.resident() - warm
        assert server.metric("kv_cache_usage_perc") == 0 and server.metric("http_streams") == 0
        assert grown < 20_000_000 or options.sanitized, f"resident memory grew by {grown} bytes"
        return {"requests": options.growth, "clients_gone": gone, "resident_mib": warm / 2**20, "grown_mib": grown / 2**20,
                "bytes_per_request": grown / (0.9 * options.growth)}


def ahead(options):
    """Requests sent ahead of their answers, and bodies that wait for 100 Continue, all beside each other: each is answered, in
    order, by its own id."""
    kinds = [(completion, {"max_tokens": 1}, 200), (completion, {"max_tokens": 3, "stream": True}, 200),
             (completion, {"max_tokens": 2, "n": 2}, 200), (completion, {"max_tokens": -1}, 400), (None, "/v1/models", 200),
             (None, "/engine", 200), (None, "/no/such/path", 404)]
    errors = []

    def request(name, kind):
        make, fields, status = kinds[kind % len(kinds)]
        message = (make(name, **fields) if make else
                   f"GET {fields} HTTP/1.1\r\nHost: t\r\nX-Request-Id: {name}\r\n\r\n".encode())
        return message, status

    def sends_ahead(server, number):
        with server.connect() as client:
            sent = [request(f"ahead-{number}-{k}", k + k // 7) for k in range(options.ahead)]
            # All at once: more than the server reads ahead. So the sender must not be who reads.
            sender = threading.Thread(target=client.sendall, args=(b"".join(message for message, _ in sent),))
            sender.start()
            rest = bytearray()
            for k, (_, status) in enumerate(sent):
                reply = read_reply(client, rest)
                assert (reply.status, reply.headers["x-request-id"]) == (status, f"ahead-{number}-{k}"), reply.headers
            sender.join()

    def awaits_continue(server, number):
        client, rest = server.connect(), bytearray()
        for k in range(options.ahead // 4):
            message, status = request(f"continue-{number}-{k}", k % 4)
            head, body = message.split(b"\r\n\r\n", 1)
            client.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
            assert read_reply(client, rest).status == 100
            for at in range(0, len(body), 40):
                client.sendall(body[at:at + 40])
            reply = read_reply(client, rest)
            assert (reply.status, reply.headers["x-request-id"]) == (status, f"continue-{number}-{k}"), reply.headers
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 99999999\r\n\r\n")
        assert read_reply(client, rest).status == 413  # at once, and no 100 before it
        client.close()

    def guarded(what, *arguments):
        try:
            what(*arguments)
        except Exception as error:  # noqa: BLE001: whatever it is, it is a failure
            errors.append(repr(error))

    with Server(options, "--disable-log-requests", "--max-num-seqs", "32") as server:
        threads = [threading.Thread(target=guarded, args=(what, server, i)) for what in (sends_ahead, awaits_continue)
                   for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors[:3]
        server.wait_for(lambda: server.metric("http_connections") == 1)
        assert server.metric("kv_cache_usage_perc") == 0
        return {"sent_ahead": 8 * options.ahead, "continued": 8 * (options.ahead // 4)}


def storm(options):
    """Clients that vanish all at once: every block comes back."""
    count = options.storm
    with Server(options, "--max-num-seqs", str(count), "--disable-log-requests", "--max-queued-requests", str(count + 1),
                "--kv-cache-gib", str(options.kv_gib)) as server:
        load = Streams(server)
        clients = load.open(count, max_tokens=1900)
        server.wait_for(lambda: load.read(0.2) or server.metric("num_requests_running") == count)
        load.read(0.5)
        before = server.metric("engine_steps_total")
        begin = time.monotonic()
        load.close(clients, reset=True)
        closed = time.monotonic()
        meanwhile = server.metric("engine_steps_total")
        server.wait_for(lambda: server.metric("num_requests_running") == 0)
        took = time.monotonic() - begin
        steps = server.metric("engine_steps_total") - before
        # The step under way; one more may begin before the last reset is read.
        assert server.metric("engine_steps_total") - meanwhile <= options.max_steps, (before, meanwhile, steps)
        assert server.metric("kv_cache_usage_perc") == 0 and server.metric("http_streams") == 0
        assert server.metric("request_success_total", 'finished_reason="abort"') == count
        assert server.ask(max_tokens=3).status == 200
        return {"clients": count, "closing_ms": 1e3 * (closed - begin), "all_back_ms": 1e3 * took, "steps": steps}


def exhaustion(options):
    """Long generations in a cache that holds a few of them: all are preempted and all end, with the same texts."""
    prompts = [f"request number {i} " * 3 for i in range(options.long)]

    def run(*flags):
        # In f32, so that no text hangs on whether a token was computed by prefill or by decode.
        with Server(options, "--no-enable-prefix-caching", "--max-num-seqs", "32", "--max-model-len", "1024", "--compute",
                    "f32", *flags) as server:
            texts = [None] * len(prompts)

            def ask(i):
                reply = server.ask(prompt=prompts[i], max_tokens=options.long_tokens, stream=i % 2 == 0)
                assert reply.status == 200, reply.body
                texts[i] = reply.text()

            threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
            begin = time.monotonic()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert None not in texts, "a request had no answer"
            assert server.metric("kv_cache_usage_perc") == 0 and server.metric("num_requests_waiting") == 0
            return texts, server.metric("num_preemptions_total"), time.monotonic() - begin

    bytes_per_token = options.layers * 2 * max(1, options.hidden // 64) * 32 * 4
    small, preemptions, took = run("--kv-cache-gib", str(2.5 * 1024 * bytes_per_token / 2**30))  # room for two and a half
    large, none, _ = run()
    assert preemptions > 0 and none == 0, (preemptions, none)
    same = sum(a == b for a, b in zip(small, large))
    assert same == len(prompts), f"only {same} of {len(prompts)} texts are those of a large cache"
    return {"requests": len(prompts), "tokens_each": options.long_tokens, "preemptions": preemptions, "seconds": took}


def hostile(options):
    """Slow readers, drips, garbage and resets beside streams whose texts must not change."""
    with Server(options, "--max-num-seqs", "64", "--max-model-len", "2048", "--compute", "f32") as server:
        prompts = [f"good {i}" for i in range(8)]
        expected = [server.ask(prompt=p, max_tokens=options.good_tokens).text() for p in prompts]
        stop, errors, wrong, served = threading.Event(), [], [], [0] * len(prompts)

        def good(i):
            while not stop.is_set():
                try:
                    text = server.ask(prompt=prompts[i], max_tokens=options.good_tokens, stream=i % 2 == 0).text()
                    served[i] += 1
                    if text != expected[i]:
                        wrong.append(i)
                except Exception as error:  # noqa: BLE001: whatever it is, it is a failure
                    errors.append(repr(error))

        threads = [threading.Thread(target=good, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        deaf = []
        for _ in range(options.hostile):
            client = server.connect(receive_buffer=4096)
            client.sendall(completion(stream=True, n=16, max_tokens=1900, logprobs=5))
            deaf.append(client)
        drips = [server.connect() for _ in range(options.hostile)]
        begin, rounds = time.monotonic(), 0
        while time.monotonic() - begin < options.hostile_seconds:
            for i, client in enumerate(drips):
                with contextlib.suppress(OSError):
                    client.sendall(b"GET /health HTTP/1.1\r\nX"[rounds % 20:][:1] or b"x" if i % 2 == 0 else
                                   b"POST /v1/completions HTTP/1.1\r\nContent-Length: 9999\r\n\r\n" if rounds == 0 else b"{")
            for reset in (False, True):
                client = server.connect()
                client.sendall(completion(stream=True, max_tokens=1900))
                if reset:
                    client.recv(10)
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.close()
            with server.connect() as client:
                client.sendall(os.urandom(200) + b"\r\n\r\n")
                with contextlib.suppress(OSError):
                    client.recv(1000)
            rounds += 1
            time.sleep(0.1)
        slow = server.metric("http_slow_readers_closed_total")
        refused = {code: server.metric("http_refused_total", f'code="{code}"') for code in (400, 408)}
        stop.set()
        for thread in threads:
            thread.join()
        assert not errors and not wrong, (errors[:3], wrong[:3])
        assert min(served) >= max(served) / 4 > 0, f"some starve: {served}"
        assert refused[400] >= rounds / 2, refused
        if options.hostile_seconds > 12:
            assert refused[408] >= options.hostile / 2, f"dripping headers were not cut: {refused}"
        if options.hostile_seconds > 35:
            assert refused[408] >= options.hostile, f"dripping bodies were not cut: {refused}"
        assert slow >= options.hostile or options.hostile_seconds < 35, f"{slow} slow readers closed"
        for client in deaf + drips:
            client.close()
        server.wait_for(lambda: server.metric("num_requests_running") + server.metric("num_requests_waiting") == 0)
        assert server.metric("kv_cache_usage_perc") == 0
        return {"slow_readers": options.hostile, "drips": options.hostile, "rounds": rounds, "closed_slow": slow,
                "refused": refused, "served_each": served}


def drain(options):
    """SIGTERM under load: what runs ends whole, what comes gets 503. A second one ends it at once."""
    with Server(options, "--max-num-seqs", "64") as server:
        kept, rest = server.connect(), bytearray()
        clients = [server.connect() for _ in range(options.draining)]
        for i, client in enumerate(clients):
            client.sendall(completion(prompt=f"run {i}", max_tokens=1500, stream=i % 2 == 0))
        server.wait_for(lambda: server.metric("num_requests_running") + server.metric("num_requests_waiting") == len(clients))
        begin = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        server.wait_for(lambda: server.get("/ready").status == 503)
        assert server.get("/health").status == 200
        kept.sendall(completion(max_tokens=1))
        refused = read_reply(kept, rest)
        assert refused.status == 503 and refused.headers["retry-after"] == "1", refused.body
        for client in clients:
            reply = read_reply(client)
            assert reply.status == 200, reply.body
            reasons = ([c["finish_reason"] for e in reply.events() for c in e["choices"] if c["finish_reason"]]
                       if b"data: " in reply.body else [reply.json()["choices"][0]["finish_reason"]])
            assert reasons == ["length"], reasons
        assert server.ended(30) == 0
        drained = time.monotonic() - begin
    with Server(options, "--max-num-seqs", "64") as server:
        clients = [server.connect() for _ in range(options.draining)]
        for client in clients:
            client.sendall(completion(max_tokens=2000, stream=True))
        server.wait_for(lambda: server.metric("num_requests_running") == min(64, len(clients)))
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        begin = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.ended(30) == 0
        return {"answers": options.draining, "drained_s": drained, "second_signal_s": time.monotonic() - begin}


def kill(options):
    """SIGKILL under load, and the same port at once."""
    with Server(options) as server:
        port, clients = server.port, [server.connect() for _ in range(32)]
        for client in clients:
            client.sendall(completion(max_tokens=2000, stream=True))
            client.recv(10)
        server.process.kill()
        server.process.wait()
        begin = time.monotonic()
        with Server(options, port=port) as again:
            up = time.monotonic() - begin
            assert again.port == port and again.ask(max_tokens=3).status == 200
        return {"serving_again_s": up}


def crowd(options):
    """More connections than allowed, and than descriptors."""
    with Server(options, "--max-connections", "40") as server:
        held = [server.connect() for _ in range(40)]
        server.wait_for(lambda: server.metric("http_connections") == 41)
        reply = server.ask(max_tokens=1)
        assert reply.status == 503 and reply.headers["retry-after"] == "1" and "40" in reply.json()["error"]["message"]
        assert server.get("/health").status == 200 and server.get("/ready").status == 200
        held[0].sendall(completion(max_tokens=1))
        assert read_reply(held[0]).status == 200
        for client in held:
            client.close()
        server.wait_for(lambda: server.metric("http_connections") == 1)
        assert server.ask(max_tokens=1).status == 200
        assert server.metric("http_refused_total", 'code="503"') == 1
    with contextlib.suppress(RuntimeError):
        Server(options, "--max-connections", "100", descriptors=200)
        raise AssertionError("100 connections cannot be had with 200 descriptors")
    with Server(options, descriptors=200) as server:  # 72 are allowed
        held = [server.connect() for _ in range(72)]
        server.wait_for(lambda: server.metric("http_connections") == 73)
        assert server.ask(max_tokens=1).status == 503
        for client in held:
            client.close()
        server.wait_for(lambda: server.metric("http_connections") == 1)
    with Server(options) as server:  # the limit falls under what is open: nobody planned for that
        open_now = len(os.listdir(f"/proc/{server.process.pid}/fd"))
        # Once before: to look at the type of an object it has not seen, the undefined-behaviour sanitizer opens a pipe.
        assert server.get("/health").status == 200 and server.ask(max_tokens=1).status == 200
        server.wait_for(lambda: len(os.listdir(f"/proc/{server.process.pid}/fd")) == open_now)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (open_now + 3, open_now + 100))
        held = [server.connect() for _ in range(3)]
        held[0].sendall(b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n")
        assert read_reply(held[0]).status == 200
        turned_away = [server.connect() for _ in range(5)]
        for client in turned_away:
            reply = read_reply(client)
            assert reply.status == 503 and "descriptor" in reply.json()["error"]["message"] and "retry-after" in reply.headers
        for client in held + turned_away:
            client.close()
        server.wait_for(lambda: server.get("/health").status == 200)
        assert server.ask(max_tokens=1).status == 200
        assert server.metric("http_refused_total", 'code="503"') >= 5
    return {"limit": 40, "with_200_descriptors": 72, "turned_away": 5}


def binds(options):
    """Loopback only, unless told."""
    def listening(port):
        rows = [line.split() for name in ("tcp", "tcp6") for line in pathlib.Path(f"/proc/net/{name}").read_text().split("\n")[1:-1]]
        return [row[1].rsplit(":", 1)[0] for row in rows if row[3] == "0A" and int(row[1].rsplit(":", 1)[1], 16) == port]

    with Server(options) as server:
        assert listening(server.port) == ["0100007F"], listening(server.port)
    with Server(options, "--host", "0.0.0.0") as server:
        assert listening(server.port) == ["00000000"]
    return {"default": "127.0.0.1"}


def half_open(options):
    """Clients whose network is cut, without a word: a stream, a silent wait for an answer, an idle connection. Root only."""
    names = [f"attest-{side}-{os.getpid()}" for side in "ab"]
    links = [f"at{side}{os.getpid()}" for side in "ab"]

    def run(*command):
        subprocess.run(command, check=True)

    def in_space(name, *command):
        return ["ip", "netns", "exec", name, *command]

    client = """
import socket, sys, time
bodies = sys.stdin.buffer.read().split(b"|")
held = []
for body in bodies:
    s = socket.create_connection(("10.77.0.1", int(sys.argv[1])))
    s.sendall(body)
    held.append(s)
held[0].recv(10)
print("ready", flush=True)
time.sleep(300)
"""
    try:
        for name in names:
            run("ip", "netns", "add", name)
        run("ip", "link", "add", links[0], "netns", names[0], "type", "veth", "peer", "name", links[1], "netns", names[1])
        for i, (name, link) in enumerate(zip(names, links)):
            run(*in_space(name, "ip", "address", "add", f"10.77.0.{i + 1}/24", "dev", link))
            run(*in_space(name, "ip", "link", "set", link, "up"))
            run(*in_space(name, "ip", "link", "set", "lo", "up"))
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/run/netns/{names[0]}") as space:  # this process, so that it can ask the server
            assert libc.setns(space.fileno(), 0) == 0
        model = write_tiny_model(pathlib.Path(options.model).parent / "long", max_positions=400_000)
        with Server(argparse.Namespace(**{**vars(options), "model": model}), "--host", "0.0.0.0", "--max-model-len", "400000",
                    "--kv-cache-gib", "0.5") as server:
            bodies = [completion(stream=True, max_tokens=390_000), completion(max_tokens=390_000),
                      b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n"]
            peer = subprocess.Popen(in_space(names[1], sys.executable, "-c", client, str(server.port)),
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            peer.stdin.write(b"|".join(bodies))
            peer.stdin.close()
            assert peer.stdout.readline() == b"ready\n"
            server.wait_for(lambda: server.metric("num_requests_running") == 2)
            run(*in_space(names[1], "ip", "link", "set", links[1], "down"))
            begin, took = time.monotonic(), {}
            while time.monotonic() - begin < 150 and len(took) < 3:
                gone = {"stream_s": server.metric("http_streams") == 0, "waiting_s": server.metric("num_requests_running") == 0,
                        "idle_s": server.metric("http_connections") == 1}
                for name, is_gone in gone.items():
                    if is_gone:
                        took.setdefault(name, time.monotonic() - begin)
                time.sleep(0.2)
            peer.kill()
            assert len(took) == 3, took
            assert server.metric("kv_cache_usage_perc") == 0
            return took
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def full_disk(options):
    """Case files on a disk that is full: one line in the log, and serving goes on. Root only, and attest_mutated."""
    folder = tempfile.mkdtemp()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=True)
    try:
        pathlib.Path(folder, "filler").write_bytes(b"x" * 60_000)
        mutated, environment = broken_binary(options)
        with Server(mutated, "--verify-attention", "1", "--attention-cases", folder, environment=environment) as server:
            for i in range(20):
                reply = server.ask(prompt=f"a prompt that is longer than a block of tokens {i}" * 3, max_tokens=20)
                assert reply.status == 200, reply.body
            failed = server.metric("attention_cases_total", 'result="failed"')
            lines = server.read_log().count("attention case not written")
            assert failed >= 1 and lines == 1, (failed, lines)
            assert not list(pathlib.Path(folder).glob("case-*")), "half a case was left"
            return {"mismatches": server.metric("attention_mismatches_total"), "cases_failed": failed, "log_lines": lines}
    finally:
        subprocess.run(["umount", folder], check=False)
        os.rmdir(folder)


def broken_binary(options):
    """The program with a kernel that computes wrong rows: its options."""
    binary = pathlib.Path(options.binary).parent / "tests/mutants/attest_mutated"
    return argparse.Namespace(**{**vars(options), "binary": str(binary)}), {"ATTEST_MUTANT": options.mutant}


def mismatch(options):
    """A kernel that is wrong, found while streams run and others look on: it is put out of use, and every text is the right
    one. attest_mutated."""
    prompts = [f"a prompt that is longer than a block of tokens, {i} " * (1 + i % 3) for i in range(options.long)]
    flags = ("--compute", "f32", "--verify-attention", "1", "--max-num-seqs", "16")
    mutated, environment = broken_binary(options)

    def run(binary, environment):
        with tempfile.TemporaryDirectory() as cases, Server(binary, *flags, "--attention-cases", cases,
                                                            environment=environment) as server:
            texts, stop = [None] * len(prompts), threading.Event()

            def ask(first):
                for i in range(first, len(prompts), 8):
                    texts[i] = server.ask(prompt=prompts[i], max_tokens=40, stream=False).text()

            def look():
                while not stop.is_set():
                    for path in ("/health", "/engine", "/metrics", "/load"):
                        assert server.get(path).status == 200

            threads = [threading.Thread(target=ask, args=(first,)) for first in range(8)] + [threading.Thread(target=look)]
            for thread in threads:
                thread.start()
            for thread in threads[:-1]:
                thread.join()
            stop.set()
            threads[-1].join()
            assert server.metric("kv_cache_usage_perc") == 0
            return texts, server.metric("attention_mismatches_total"), server.get("/health").body

    right, none, _ = run(options, None)
    texts, found, health = run(mutated, environment)
    assert found > 0 and none == 0, (found, none)
    assert b'"degraded"' in health, health
    same = sum(a == b for a, b in zip(texts, right))
    assert None not in right and same == len(prompts), f"only {same} of {len(prompts)} texts are right"
    return {"requests": len(prompts), "mismatches": found, "quarantined": json.loads(health)["attention"]["quarantined"]}


EVERYWHERE = (binds, crowd, kill, drain, exhaustion, storm, hostile, ahead, keep_alive, growth, streams)
SCENARIOS = {f.__name__: f for f in (*EVERYWHERE, mismatch, half_open, full_disk)}
QUICK = {"idle": 200, "active": 50, "tokens": 12_000, "seconds": 2.0, "requests": 1000, "growth": 2000, "ahead": 100, "storm": 64, "long": 12, "hostile": 4,
         "hostile_seconds": 2.0, "draining": 16}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument("--binary", default=str(ROOT / "build/release/attest"))
    parser.add_argument("--threads", type=int, default=2, help="compute threads of the server")
    parser.add_argument("--idle", type=int, default=5000)
    parser.add_argument("--active", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--tokens", type=int, default=6000, help="of each active stream; they must last")
    parser.add_argument("--max-added", type=float, default=0.05, help="seconds, p99, from the engine to the sockets")
    parser.add_argument("--max-steps", type=float, default=2, help="storm: steps after the last client left")
    parser.add_argument("--kv-gib", type=float, default=1.0)
    parser.add_argument("--hidden", type=int, default=64, help="size of the model: a larger one makes longer steps")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--requests", type=int, default=20000)
    parser.add_argument("--growth", type=int, default=50000, help="requests of growth, a tenth of them before it looks")
    parser.add_argument("--ahead", type=int, default=2000, help="requests that each client of ahead sends at once")
    parser.add_argument("--storm", type=int, default=1000)
    parser.add_argument("--long", type=int, default=48)
    parser.add_argument("--long-tokens", type=int, default=900)
    parser.add_argument("--hostile", type=int, default=50)
    parser.add_argument("--hostile-seconds", type=float, default=45)
    parser.add_argument("--good-tokens", type=int, default=40)
    parser.add_argument("--draining", type=int, default=64)
    parser.add_argument("--mutant", default="zero_trip_loop", help="mismatch, full_disk: how attest_mutated is broken")
    parser.add_argument("--verify", type=float, default=0, help="share of the attention rows that the sentinel checks")
    parser.add_argument("--sanitized", action="store_true", help="a sanitizer's build: it may be slow, and its memory may grow")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        for name, value in QUICK.items():
            if getattr(options, name) == parser.get_default(name):
                setattr(options, name, value)
    if options.sanitized:
        options.max_added = options.max_steps = float("inf")
    unknown = [name for name in options.scenarios if name not in SCENARIOS]
    if unknown:
        parser.error(f"no such scenario: {unknown[0]}; there are {', '.join(SCENARIOS)}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder:
        options.model = write_tiny_model(pathlib.Path(folder) / "tiny", hidden=options.hidden, layers=options.layers)
        for name in options.scenarios or [f.__name__ for f in EVERYWHERE]:
            begin = time.monotonic()
            figures = SCENARIOS[name](options)
            print(json.dumps({"scenario": name, **{k: round(v, 3) if isinstance(v, float) else v for k, v in figures.items()},
                              "took_s": round(time.monotonic() - begin, 1)}), flush=True)


if __name__ == "__main__":
    main()
