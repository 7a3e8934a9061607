"""Reading a bucket: what tier 1 costs the machine that verifies, against the least that any client can do.

1 GiB in 64 objects, and in one, from SeaweedFS on this machine. Each contender runs in a process of its own and says
what CPU it took from its first request to its last digest; imports and what the server spends are left out. Peers: a
loop of boto3's `get_object` that hashes what it reads, and what a shell would do, `download_file` and `sha256sum`,
whose CPU is counted with it. Memory is what is anonymous, sampled while the bytes go through.
"""

from __future__ import annotations

import hashlib
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.harness import Benchmark, Row, Setting, compare, in_turn
from lastgood.digest import Algorithm, HashRequest, StreamHasher
from lastgood.stores import Store, open_store
from lastgood.testing.seaweedfs import SeaweedFS

OBJECTS = 64
OBJECT_BYTES = 16 * 2**20
BUCKET = "bench"
CHUNK_BYTES = 2**20
LOOP_AT_MOST = 1.25
SHELL_AT_MOST: Mapping[Algorithm, float] = {Algorithm.SHA256: 0.15, Algorithm.BLAKE3: 0.08}
MEMORY_AT_MOST_MIB = 200
SAMPLE_SECONDS = 0.01
TIMEOUT_SECONDS = 600


def bucket(setting: Setting) -> tuple[Row, ...]:
    sha256sum = peers.program("sha256sum")
    with SeaweedFS(setting.workspace / "seaweedfs") as server:
        environment = {**os.environ, **server.environ}
        fill(server.environ)
        rows: list[Row] = []
        for algorithm in (Algorithm.BLAKE3, Algorithm.SHA256):
            rows += judge(algorithm, environment, setting.rounds, str(sha256sum))
        for name in ("many", "one"):
            _, mebibytes = run_apart("ours", name, Algorithm.BLAKE3, environment)
            objects = f"{OBJECTS} objects" if name == "many" else "one object"
            what = f"verify 1 GiB in {objects} from a bucket, peak anonymous memory"
            rows.append(Row(what=what, against="itself", measured=mebibytes, at_most=MEMORY_AT_MOST_MIB, unit="MiB"))
    return tuple(rows)


def judge(algorithm: Algorithm, environment: Mapping[str, str], rounds: int, sha256sum: str) -> tuple[Row, ...]:
    def contender(name: str) -> Callable[[], float]:
        return lambda: run_apart(name, "many", algorithm, {**environment, "SHA256SUM": sha256sum})[0]

    taken = in_turn({name: contender(name) for name in ("ours", "loop", "shell")}, rounds)
    what = f"verify {OBJECTS} × 16 MiB from a bucket, {algorithm}, CPU of the client"
    return (
        compare(what, taken["ours"], taken["loop"], against="`get_object` loop, same hash", at_most=LOOP_AT_MOST),
        compare(
            what,
            taken["ours"],
            taken["shell"],
            against="`download_file` and `sha256sum`",
            at_most=SHELL_AT_MOST[algorithm],
        ),
    )


def run_apart(contender: str, name: str, algorithm: str, environment: Mapping[str, str]) -> tuple[float, float]:
    """CPU seconds and peak MiB of anonymous memory of one contender in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench_bucket", contender, name, algorithm],
        cwd=Path(__file__).resolve().parent.parent,
        env=dict(environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{contender} failed with {done.returncode}: {done.stderr.strip()[-500:]}")
    cpu_seconds, mebibytes = map(float, done.stdout.split())
    return cpu_seconds, mebibytes


def fill(environment: Mapping[str, str]) -> None:
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL_S3"],
        region_name=environment["AWS_REGION"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
    )
    client.create_bucket(Bucket=BUCKET)
    block = os.urandom(OBJECT_BYTES)
    for number in range(OBJECTS):
        client.put_object(Bucket=BUCKET, Key=f"many/object-{number:02d}", Body=block)
    with tempfile.TemporaryFile() as file:
        for _ in range(OBJECTS):
            file.write(block)
        file.seek(0)
        client.upload_fileobj(file, BUCKET, "one/object")


# In the contender's process.


Objects = Sequence[tuple[str, int]]


def ours(store: Store, objects: Objects, algorithm: Algorithm) -> None:
    prefix = objects[0][0].partition("/")[0]
    named = [(key.removeprefix(f"{prefix}/"), length) for key, length in objects]
    requests = [HashRequest(path=path, algorithms=(algorithm,), size_bytes=length) for path, length in named]
    for hashed in store.hash(prefix, requests):
        assert hashed.trouble is None, hashed


def loop(client: Any, objects: Objects, algorithm: Algorithm) -> None:
    for key, _ in objects:
        hasher: Any = hashlib.sha256() if algorithm is Algorithm.SHA256 else StreamHasher((algorithm,))
        body = client.get_object(Bucket=BUCKET, Key=key)["Body"]
        while chunk := body.read(CHUNK_BYTES):
            hasher.update(chunk)


def shell(client: Any, objects: Objects) -> None:
    with tempfile.TemporaryDirectory() as directory:
        files = []
        for key, _ in objects:
            files.append(os.path.join(directory, key.replace("/", "-")))
            client.download_file(BUCKET, key, files[-1])
        subprocess.run([os.environ["SHA256SUM"], *files], check=True, stdout=subprocess.DEVNULL)


def peak(stopped: threading.Event, found: list[int]) -> None:
    """Sample the anonymous memory of this process, in KiB: at least once, however short the work."""
    while True:
        text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        found.append(next(int(line.split()[1]) for line in text.splitlines() if line.startswith("RssAnon")))
        if stopped.wait(SAMPLE_SECONDS):
            return


def main() -> None:
    """Run one contender, and print its CPU seconds and its peak of anonymous memory in MiB."""
    import boto3

    contender, name, chosen = sys.argv[1:]
    client, store, algorithm = boto3.client("s3"), open_store(f"s3://{BUCKET}"), Algorithm(chosen)
    # What is imported late is imported now, by every contender.
    store.is_root()
    listed = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{name}/")["Contents"]
    objects = [(item["Key"], item["Size"]) for item in listed]
    work: Mapping[str, Callable[[], None]] = {
        "ours": lambda: ours(store, objects, algorithm),
        "loop": lambda: loop(client, objects, algorithm),
        "shell": lambda: shell(client, objects),
    }
    stopped, samples = threading.Event(), [0]
    sampler = threading.Thread(target=peak, args=(stopped, samples))
    if contender == "ours" and os.environ.get("SHA256SUM") is None:
        sampler.start()
    begun = cpu()
    work[contender]()
    taken = cpu() - begun
    stopped.set()
    if sampler.is_alive():
        sampler.join()
    print(taken, max(samples) / 1024)


def cpu() -> float:
    """CPU seconds of this process and of the children that it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


BENCHMARKS = (Benchmark(name="bucket", run=bucket),)

if __name__ == "__main__":
    main()
