"""Rules of the house that no other tool holds; each check is a function over text, proven able to fail beside it."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "tasks" / "lastgood"

HEAVY = frozenset({"torch", "numpy", "boto3", "pandas", "sqlalchemy", "prefect"})

# Modules that open tensors. They are loaded by training code and by restored children, never by a supervisor.
TENSOR_ROOMS = ("lastgood.state", "lastgood.replica.trainer")

# Modules that index and show evidence: loaded by the commands and flows that do so, when they do.
INDEX_ROOMS = ("lastgood.ledger", "lastgood.report")

# Modules that speak to a bucket: loaded when a root is one.
BUCKET_ROOMS = ("lastgood.stores.s3",)

# Callbacks for another framework: loaded by its jobs, which have loaded all of it already.
PRODUCERS = ("lastgood.producers.lightning", "lastgood.producers.transformers")

# Everything that turns bytes of a stranger into running code, or may.
UNPICKLERS = frozenset(
    {
        "cloudpickle.load",
        "cloudpickle.loads",
        "dill.load",
        "dill.loads",
        "joblib.load",
        "marshal.load",
        "marshal.loads",
        "pandas.read_pickle",
        "pickle.Unpickler",
        "pickle.load",
        "pickle.loads",
        "shelve.open",
        "torch.distributed.checkpoint.FileSystemReader",
        "torch.jit.load",
        "torch.load",
    }
)

# Path below tasks/lastgood → why this one may unpickle. Empty, and meant to stay so: registered state holds no pickle.
MAY_UNPICKLE: dict[str, str] = {}

BUILT_IN_MARKERS = frozenset({"filterwarnings", "parametrize", "skip", "skipif", "timeout", "usefixtures", "xfail"})


def loaded_by(statement: str, names: frozenset[str]) -> set[str]:
    """Which of `names` a fresh interpreter holds in sys.modules after `statement`."""
    program = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return names & set(json.loads(done.stdout))


def module_names() -> list[str]:
    """Every module of the library that a supervisor may load, by its dotted name."""
    names = []
    for path in sorted(LIBRARY.rglob("*.py")):
        parts = path.relative_to(LIBRARY.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        rooms = (*TENSOR_ROOMS, *INDEX_ROOMS, *BUCKET_ROOMS, *PRODUCERS)
        if parts[-1] != "__main__" and not any(name == room or name.startswith(f"{room}.") for room in rooms):
            names.append(name)
    return names


def tracked_files() -> list[Path]:
    """Files that git tracks, without those that are deleted in the work tree."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git work tree: nothing says which files are tracked")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=60).stdout
    return [path for name in listed.split(b"\0") if name and (path := ROOT / os.fsdecode(name)).is_file()]


def names_machine(content: bytes, root: str, home: str) -> bool:
    """Whether the content names the directory `root`, as a whole component, or anything below `home`."""
    names_root = re.search(re.escape(root.encode()) + rb"(?![\w.-])", content) is not None
    return names_root or (home != "" and f"{home}/".encode() in content)


def unpicklers_in(source: str) -> list[tuple[int, str]]:
    """Line and dotted name of every reference to something in UNPICKLERS, whatever it was imported as."""
    tree = ast.parse(source)
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                aliases[name.asname or name.name.split(".")[0]] = name.name if name.asname else name.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module:
            aliases.update({name.asname or name.name: f"{node.module}.{name.name}" for name in node.names})
    references = [
        (node.lineno, dotted)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute | ast.Name) and (dotted := dotted_name(node, aliases)) in UNPICKLERS
    ]
    return sorted(set(references))


def dotted_name(node: ast.expr, aliases: dict[str, str]) -> str:
    """The dotted name that an expression refers to, with imports resolved; empty for anything else."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, "")
    if isinstance(node, ast.Attribute) and (owner := dotted_name(node.value, aliases)):
        return f"{owner}.{node.attr}"
    return ""


def silent_tests_in(source: str) -> list[str]:
    """Names of the test functions, methods included, that do not say what must hold."""
    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]


def markers_in(source: str) -> Iterator[str]:
    """Every NAME of a `pytest.mark.NAME` in the source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
            owner = node.value
            if owner.attr == "mark" and isinstance(owner.value, ast.Name) and owner.value.id == "pytest":
                yield node.attr


def unreasoned(lines: list[str]) -> list[str]:
    """Lines that hold a setting without a comment beside it."""
    return [line.strip() for line in lines if line.strip().startswith('"') and "#" not in line]


def test_importing_the_library_loads_nothing_heavy() -> None:
    """`import lastgood` stands in every training script and launcher, so it must cost none of the heavy libraries."""
    assert loaded_by("import lastgood", HEAVY | {"rich"}) == set()


def test_no_supervisor_module_loads_anything_heavy() -> None:
    """What judges a checkpoint must start fast and be unable to run code in it, so only the tensor rooms load torch."""
    assert loaded_by("\n".join(f"import {name}" for name in module_names()), HEAVY) == set()


def test_the_import_probe_sees_what_is_loaded() -> None:
    """A probe that always answered with nothing would let both tests above pass for ever."""
    assert loaded_by("import json.decoder", frozenset({"json.decoder", "torch"})) == {"json.decoder"}


def test_no_tracked_file_names_a_path_of_this_machine() -> None:
    """A path of the author's machine in a file works nowhere else, and tells strangers what they need not know."""
    home = os.environ.get("HOME", "").rstrip("/")
    offenders = [
        str(path.relative_to(ROOT)) for path in tracked_files() if names_machine(path.read_bytes(), str(ROOT), home)
    ]
    assert offenders == []


def test_a_path_of_this_machine_is_told_from_a_similar_one() -> None:
    """The check must see a path inside a longer one, and must not mistake a sibling for it."""
    assert names_machine(b"cd /srv/job/x", "/srv/job", "/home/ann")
    assert names_machine(b"ls '/srv/job'", "/srv/job", "/home/ann")
    assert names_machine(b"open /home/ann/.cache", "/srv/job", "/home/ann")
    assert not names_machine(b"cd /srv/job-2/x; HOME=/home/ann; ls /", "/srv/job", "/home/ann")
    assert not names_machine(b"ls /", "/srv/job", "")


@pytest.mark.parametrize("path", sorted(LIBRARY.rglob("*.py")), ids=lambda path: str(path.relative_to(LIBRARY)))
def test_the_library_unpickles_nothing(path: Path) -> None:
    """A checkpoint is a stranger's input: unpickling it hands its author this process."""
    found = unpicklers_in(path.read_text(encoding="utf-8"))
    assert found == [] or str(path.relative_to(LIBRARY)) in MAY_UNPICKLE


@pytest.mark.parametrize(
    "source",
    [
        "import pickle\npickle.load(f)",
        "import pickle as p\np.loads(b)",
        "from pickle import load as read\nread(f)",
        "import pickle\nclass Reader(pickle.Unpickler): ...",
        "import torch\nloader = torch.load",
        "from torch import load\nload(f, weights_only=True)",
        "import torch.distributed.checkpoint as dcp\ndcp.FileSystemReader('x')",
        "def later():\n    import torch\n    return torch.load('x')",
    ],
)
def test_every_way_to_unpickle_is_seen(source: str) -> None:
    """Renaming an import must not hide it, and a reference that is passed on is as good as a call."""
    assert len(unpicklers_in(source)) == 1


def test_names_that_only_look_like_unpickling_are_let_be() -> None:
    """`json.load` and a method called `load` are everywhere; a check that cries wolf gets switched off."""
    assert unpicklers_in("import json\njson.load(f)\nself.load(f)\nsafetensors.torch.load(b)") == []


def test_every_test_says_what_must_hold() -> None:
    """A failing test is read by someone who did not write it; its docstring is the first thing that they need."""
    silent = {
        str(path.relative_to(ROOT)): names
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if (names := silent_tests_in(path.read_text(encoding="utf-8")))
    }
    assert silent == {}


def test_a_silent_test_is_found() -> None:
    """Methods and coroutines count as tests too."""
    source = "def test_a(): ...\nclass TestB:\n    async def test_c(self): ...\n    def test_d(self):\n        'says'"
    assert sorted(silent_tests_in(source)) == ["test_a", "test_c"]


def test_every_marker_is_declared_with_its_reason() -> None:
    """A mistyped marker would leave a test out of every run, and an unexplained one out of every discussion."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]
    declared = dict(line.split(": ", 1) for line in settings["markers"])
    used = {name for path in (ROOT / "tests").rglob("*.py") for name in markers_in(path.read_text(encoding="utf-8"))}
    assert used - BUILT_IN_MARKERS <= set(declared)
    assert all(declared.values())


def test_markers_are_read_in_both_forms() -> None:
    """A marker stands bare, called, in a list or in `pytestmark`; each form must be seen."""
    assert set(markers_in("pytestmark = [pytest.mark.slow]\n@pytest.mark.gpu('x')\ndef f(): ...")) == {"slow", "gpu"}


def test_every_disabled_rule_has_its_reason() -> None:
    """A rule that is off without a reason can never be put on again."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    ignored = text.partition("\nignore = [\n")[2].partition("\n]\n")[0].splitlines()
    assert ignored
    assert unreasoned(ignored) == []
    assert unreasoned(['  "E501",']) == ['"E501",']


def test_every_decision_is_in_the_index() -> None:
    """A decision that the index does not list will not be found by whoever is about to undo it."""
    folder = ROOT / "docs" / "adr"
    index = (folder / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in sorted(folder.glob("[0-9]*.md")) if f"({page.name})" not in index] == []


def test_the_command_is_declared() -> None:
    """`lastgood` on the path is what launch scripts call; its entry point is a promise."""
    commands = importlib.metadata.entry_points(group="console_scripts", name="lastgood")
    assert [command.value for command in commands] == ["lastgood.cli:main"]
