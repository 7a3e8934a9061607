"""A process that reads every hostile file under a limit of memory, and says what became of each, as JSON lines.

python hostile_reader.py FOLDER MEMORY_BYTES
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from lastgood.errors import FormatError, StoreError
from lastgood.formats.containers.dcpmetadata import read_dcp_metadata
from lastgood.formats.containers.pickles import read_pickle
from lastgood.formats.containers.reading import Problem
from lastgood.formats.containers.tensors import read_shard_index, read_tensor_header
from lastgood.formats.containers.torchfile import read_torch_file
from lastgood.stores.local import LocalStore
from lastgood.stores.port import ObjectReader
from lastgood.testing.hostile import HOSTILE, Form


def described(form: Form, reader: ObjectReader, name: str) -> tuple[tuple[str, ...], tuple[Problem, ...]]:
    """Unknown names and problems, after everything in the file was looked at."""
    if form in (Form.TORCH, Form.NO_FILE):
        file = read_torch_file(reader, name)
        if file.archive is not None:
            assert all(not checked.message for checked in file.archive.check_crcs())
        return file.pickled.unknown_globals, file.problems
    if form is Form.SAFETENSORS:
        read_tensor_header(reader, name)
        return (), ()
    data = reader.read_at(0, reader.size_bytes)
    if form is Form.PICKLE:
        return read_pickle(data, name).unknown_globals, ()
    if form is Form.DCP_METADATA:
        metadata = read_dcp_metadata(data, name)
        return metadata.unknown_globals, metadata.problems
    return (), read_shard_index(data, name).problems


def answer(store: LocalStore, name: str) -> dict[str, object]:
    """What became of one file."""
    begun = time.process_time()
    try:
        with store.open("files", name) as reader:
            names, problems = described(HOSTILE[name].form, reader, name)
        said, text = "nothing", ""
        if names:
            said, text = "global_named", " ".join(names)
        elif problems:
            said, text = "problem_named", " ".join(problem.message for problem in problems)
    except (FormatError, StoreError) as error:
        said, text = "refused", error.message
    return {
        "name": name,
        "said": said,
        "text": text,
        "seconds": time.process_time() - begun,
        "peak_bytes": peak_bytes(),
    }


def peak_bytes() -> int:
    """The most memory that this program held; `ru_maxrss` would also count what its parent held when it forked."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024


def main() -> None:
    folder, memory_bytes = Path(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    store = LocalStore(folder)
    for name in HOSTILE:
        print(json.dumps(answer(store, name)), flush=True)
    print(json.dumps({"name": "", "modules": sorted(sys.modules)}))


if __name__ == "__main__":
    main()
