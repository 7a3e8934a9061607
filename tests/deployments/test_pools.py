"""Job templates: each rendered by Prefect's own code, each lawful as the schema that the server holds it to."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
from prefect.workers.base import BaseJobConfiguration
from prefect.workers.process import ProcessJobConfiguration

from lastgood.errors import UsageError
from lastgood_prefect.pools import POOLS, Pool, PoolType, job_template

IMAGE = "registry.example/lastgood:1"
PLACEHOLDER = re.compile(r"{{\s*([\w.]+)\s*}}")
EVERY = [pytest.param(pool, kind, id=f"{kind}-{pool.name}") for kind in PoolType for pool in POOLS]


class Rendered(BaseJobConfiguration):
    """What a worker of any type would be given, without the package of that worker."""

    model_config = {"extra": "allow"}


def template_of(pool: Pool, kind: PoolType) -> dict[str, Any]:
    return job_template(pool, kind, IMAGE if kind.needs_image else None)


def pool(name: str) -> Pool:
    return next(one for one in POOLS if one.name == name)


def render(template: Mapping[str, Any], **values: Any) -> dict[str, Any]:
    """The job that a worker would start, as its configuration's fields."""
    made = asyncio.run(Rendered.from_template_and_values(dict(template), values, client=object()))  # type: ignore[arg-type]
    return made.model_dump()


def texts(value: Any) -> list[str]:
    """Every string in a document."""
    if isinstance(value, str):
        return [value]
    children = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return [text for child in children for text in texts(child)]


@pytest.mark.parametrize(("pool", "kind"), EVERY)
def test_a_template_is_lawful_and_declares_what_it_uses(pool: Pool, kind: PoolType) -> None:
    """A placeholder without a variable would make every run of the pool fail, long after somebody deployed it."""
    template = template_of(pool, kind)
    jsonschema.Draft202012Validator.check_schema(template["variables"])
    used = {name for text in texts(template["job_configuration"]) for name in PLACEHOLDER.findall(text)}
    assert used <= set(template["variables"]["properties"])
    variables = template["variables"]["properties"]
    assert all(variable["description"] for variable in variables.values())
    defaults = {name: variable["default"] for name, variable in variables.items() if "default" in variable}
    jsonschema.validate(defaults, {**template["variables"], "required": []})


@pytest.mark.parametrize(("pool", "kind"), EVERY)
def test_a_template_keeps_all_that_prefects_own_offers(pool: Pool, kind: PoolType) -> None:
    """People know the variables of a pool's type; a template of ours adds to them and takes none away."""
    # What an offline server itself shows of the types of pools.
    bundled = files("prefect.server.api") / "collections_data" / "views" / "aggregate-worker-metadata.json"
    types = {name: one for workers in json.loads(bundled.read_text()).values() for name, one in workers.items()}
    template, theirs = template_of(pool, kind), types[kind.value]["default_base_job_configuration"]
    missing = set(theirs["variables"]["properties"]) - set(template["variables"]["properties"])
    assert missing <= {"container_wait_timeout"}  # newer than the releases of prefect-docker that this was made from
    assert set(theirs["job_configuration"]) - set(template["job_configuration"]) <= missing


@pytest.mark.parametrize(("pool", "kind"), EVERY)
def test_a_run_is_told_its_configuration_and_what_its_deployment_sets(pool: Pool, kind: PoolType) -> None:
    """LASTGOOD_CONFIG comes from the pool beside, not instead of, the environment that a deployment asks for."""
    template = template_of(pool, kind)
    told = render(template, lastgood_config="/srv/lastgood.toml", env={"MINE": "1"})["env"]
    assert told["LASTGOOD_CONFIG"] == "/srv/lastgood.toml"
    assert told["MINE"] == "1"
    if not kind.needs_image:
        assert "LASTGOOD_CONFIG" not in render(template)["env"], "a blank one leaves the worker's own in force"


def test_only_the_pool_whose_runs_start_nothing_names_its_command() -> None:
    """With a command of its own a worker cannot end a run's process group: cancelling would orphan the ranks."""
    commands = {one.name: render(template_of(one, PoolType.PROCESS))["command"] for one in POOLS}
    assert commands == {"verify": "python -m lastgood_prefect.warm", "restore-gpu": None, "drill-gpu": None}


def test_a_process_may_be_given_devices() -> None:
    """CUDA_VISIBLE_DEVICES stands beside the environment that a deployment sets; a blank one is not set at all."""
    template = template_of(pool("restore-gpu"), PoolType.PROCESS)
    made = asyncio.run(
        ProcessJobConfiguration.from_template_and_values(
            template,
            {"cuda_visible_devices": "0,1", "env": {"MINE": "1"}},
            client=object(),  # type: ignore[arg-type]
        )
    )
    assert made.env == {"CUDA_VISIBLE_DEVICES": "0,1", "MINE": "1"}
    assert "CUDA_VISIBLE_DEVICES" not in render(template)["env"]
    assert "cuda_visible_devices" not in template_of(pool("verify"), PoolType.PROCESS)["variables"]["properties"]


def test_a_container_asks_for_its_gpus() -> None:
    """Docker gives devices by request only, in the form that docker-py's `create` takes."""
    job = render(template_of(pool("drill-gpu"), PoolType.DOCKER), gpu_count=2)
    assert job["image"] == IMAGE
    assert job["container_create_kwargs"] == {
        "device_requests": [{"driver": "nvidia", "count": 2, "capabilities": [["gpu"]]}],
        "shm_size": "8g",
    }
    assert "gpu" not in str(render(template_of(pool("verify"), PoolType.DOCKER)))


def test_a_pod_asks_for_its_gpus_where_they_are() -> None:
    """A limit of nvidia.com/gpu, a selector, the taint that GPU nodes carry, and shared memory for the ranks."""
    job = render(
        template_of(pool("drill-gpu"), PoolType.KUBERNETES),
        gpu_count=8,
        node_selector={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
        priority_class_name="below-training",
    )
    pod = job["job_manifest"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert container["image"] == IMAGE
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert pod["priorityClassName"] == "below-training"
    assert pod["volumes"] == [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}]
    assert container["volumeMounts"] == [{"name": "shm", "mountPath": "/dev/shm"}]
    assert job["job_manifest"]["spec"]["backoffLimit"] == 0, (
        "a gate that failed is asked for again by storage, not by the cluster"
    )


def test_unset_places_of_a_pod_are_left_out() -> None:
    """A placeholder that nobody filled must vanish: Kubernetes refuses an empty name of a priority class."""
    pod = render(template_of(pool("restore-gpu"), PoolType.KUBERNETES))["job_manifest"]["spec"]["template"]["spec"]
    assert "nodeSelector" not in pod
    assert "priorityClassName" not in pod
    assert not [text for text in texts(pod) if PLACEHOLDER.search(text) and "env" not in text]


def test_an_image_is_demanded_where_there_is_one_and_refused_elsewhere() -> None:
    """Prefect's default image holds no lastgood; a process has no image at all."""
    with pytest.raises(UsageError, match="no image for a pool of type kubernetes: verify"):
        job_template(pool("verify"), PoolType.KUBERNETES)
    with pytest.raises(UsageError, match="an image means nothing to a pool of type process"):
        job_template(pool("verify"), PoolType.PROCESS, IMAGE)
