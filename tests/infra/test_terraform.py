"""Terraform and its policies, without Terraform: parsed, tied together, and asked about every request of each role."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hcl2
import pytest
from moto.iam.policy_validation import IAMPolicyDocumentValidator

from lastgood.cli import run as command_line
from lastgood.family import Family
from lastgood.identity import FamilyKeys
from lastgood.location import locate
from lastgood.replica.tracing import RunTrace
from lastgood.run import Run, SoloGroup
from lastgood.stores.s3.client import S3Client
from tests.buckets.conftest import bucket, s3_environ, seaweedfs
from tests.buckets.servers import SeaweedFS
from tests.buckets.test_run import save
from tests.infra.policies import NAMES, TERRAFORM, Asked, allows, denies, render

__all__ = ["bucket", "s3_environ", "seaweedfs"]  # fixtures are found by their names here

TEXT = "\n".join(path.read_text(encoding="utf-8") for path in sorted(TERRAFORM.glob("*.tf")))
ROLES = ("trainer", "gate", "relay")
ARN = "arn:aws:s3:::example-checkpoints"
GENERATION = f"{ARN}/runs/llm-7b/00000001-0000000000000010"
OURS = f"{ARN}/runs/llm-7b/.lastgood"
QUEUE = NAMES["queue"]

# An operation of boto3 → what IAM calls it, and whether it is about an object or about the bucket.
ACTIONS = {
    "head_bucket": ("s3:ListBucket", False),
    "list_objects_v2": ("s3:ListBucket", False),
    "list_multipart_uploads": ("s3:ListBucketMultipartUploads", False),
    "get_object": ("s3:GetObject", True),
    "head_object": ("s3:GetObject", True),
    "put_object": ("s3:PutObject", True),
    "create_multipart_upload": ("s3:PutObject", True),
    "upload_part": ("s3:PutObject", True),
    "complete_multipart_upload": ("s3:PutObject", True),
    "abort_multipart_upload": ("s3:AbortMultipartUpload", True),
    "delete_object": ("s3:DeleteObject", True),
    "delete_objects": ("s3:DeleteObject", True),
}


def blocks(kind: str) -> list[dict[str, Any]]:
    """Every block of a kind in all files."""
    parsed = [hcl2.loads(path.read_text(encoding="utf-8")) for path in sorted(TERRAFORM.glob("*.tf"))]
    return [one for document in parsed for one in document.get(kind, ())]


def named(kind: str) -> set[str]:
    return {name.strip('"') for block in blocks(kind) for name in block}


def resources() -> set[str]:
    return {
        f"{kind.strip(chr(34))}.{name.strip(chr(34))}"
        for block in blocks("resource")
        for kind, inner in block.items()
        for name in inner
    }


def test_every_name_that_is_referred_to_exists_and_every_variable_is_used() -> None:
    """Terraform would say so at the first plan; nobody here makes one."""
    assert set(re.findall(r"\bvar\.(\w+)", TEXT)) == named("variable")
    held = {name for block in blocks("locals") for name in block if name != "__is_block__"}
    assert set(re.findall(r"\blocal\.(\w+)", TEXT)) <= held
    assert set(re.findall(r"\b(aws_\w+\.\w+)\b", re.sub(r"data\.\w+\.\w+", "", TEXT))) <= resources()
    assert len(resources()) > 10


def test_every_template_exists_and_is_given_what_it_asks_for() -> None:
    """A template that names something else fails at the plan, one that nobody renders is a policy that nobody has."""
    rendered = set(re.findall(r"templatefile\(\"\$\{path\.module\}/(policies/[\w.]+)\", local\.names\)", TEXT))
    files = {str(path.relative_to(TERRAFORM)) for path in TERRAFORM.glob("policies/*")}
    assert rendered == files
    (given,) = (block["names"] for block in blocks("locals") if "names" in block)
    assert set(given) == set(NAMES)
    for path in files:
        asked = re.findall(r"\$\{(\w+)\}", (TERRAFORM / path).read_text(encoding="utf-8"))
        assert set(asked) <= {*NAMES, "family"}


def test_the_bucket_keeps_what_was_saved_and_drops_unfinished_uploads() -> None:
    """No rule expires a current version, for a generation without one object is lost; parts of dead uploads go."""
    (lifecycle,) = (
        body
        for block in blocks("resource")
        for body in block.get('"aws_s3_bucket_lifecycle_configuration"', {}).values()
    )
    aborted = [one for rule in lifecycle["rule"] for one in rule.get("abort_incomplete_multipart_upload", ())]
    assert [one["days_after_initiation"] for one in aborted] == [7]
    for rule in lifecycle["rule"]:
        for expiry in rule.get("expiration", ()):
            assert set(expiry) <= {"expired_object_delete_marker", "__is_block__"}


def test_commits_of_every_family_are_announced_and_nothing_else() -> None:
    """The prefix that is filtered by is the one under which commits lie."""
    (held,) = (block["commits"] for block in blocks("locals") if "commits" in block)
    (spelled,) = re.findall(r'"(\$\{var\.prefix\}[^"]*)"', held.replace('\\"', '"'))
    prefix = spelled.replace("${var.prefix}", "runs").replace("${family}", "llm-7b")
    assert prefix == f"runs/{FamilyKeys('llm-7b').commits}/"
    assert "filter_prefix = queue.value" in TEXT
    assert "for commits in local.commits : { prefix = commits }" in TEXT


@pytest.mark.parametrize("role", ROLES)
def test_a_policy_is_lawful_by_the_grammar_of_iam(role: str) -> None:
    """AWS refuses a policy with a misspelled element when it is made, which is late."""
    document = render(role)
    IAMPolicyDocumentValidator(json.dumps(document)).validate()
    assert all("Condition" not in one and "Principal" not in one for one in document["Statement"])
    assert len(json.dumps(document, separators=(",", ":"))) < 6144, "the most that a managed policy may hold"


@contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Asked]]:
    """What is asked of the bucket meanwhile, as requests to the bucket of the policies."""
    asked: set[Asked] = set()
    call: Callable[..., dict[str, Any]] = S3Client.call

    def noted(self: S3Client, operation: str, doing: str, **parameters: Any) -> dict[str, Any]:
        action, is_object = ACTIONS[operation]
        keys = [parameters.get("Key"), *(one["Key"] for one in parameters.get("Delete", {}).get("Objects", ()))]
        asked.update(Asked(action, f"{ARN}/{key}" if is_object else ARN) for key in keys if key or not is_object)
        return call(self, operation, doing, **parameters)

    with monkeypatch.context() as patched:
        patched.setattr(S3Client, "call", noted)
        yield asked


@pytest.mark.usefixtures("s3_environ")
def test_every_request_of_a_role_is_allowed_to_it(
    bucket: str, seaweedfs: SeaweedFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Least privilege that lacks one is found at three in the morning, in the middle of a publish or of a verdict."""
    uri = f"s3://{bucket}/runs/llm-7b"
    configuration = tmp_path / "lastgood.toml"
    configuration.write_text(
        f'[families.llm-7b]\nroot = "s3://{bucket}/runs"\n'
        f'[families.llm-7b.replica]\ncommand = ["true"]\ndirectory = "{tmp_path}"\nworld_size = 1\n'
    )
    config = ("--config", str(configuration))
    assert command_line(["doctor", f"s3://{bucket}/runs"]) == 0  # by whoever made the bucket, once
    seen = dict[str, set[Asked]]()
    with recorded(monkeypatch) as seen["trainer"]:
        run = Run.start(uri, SoloGroup(), allow_fresh=True)
        with RunTrace.of(run) as trace:
            trace.step(1, 0.5)
            save(run, 10)
            trace.saved(Family(run.location).survey().candidates[0])
            save(run, 20, b"x" * (9 * 2**20))
            taken = "runs/llm-7b/00000001-0000000000000030/state/model.bin"
            seaweedfs.client().put_object(Bucket=bucket, Key=taken, Body=b"another's")
            with pytest.raises(Exception, match="not stored as sent"):
                save(run, 30)
        run.close()
        resumed = Run.start(uri, SoloGroup())
        resumed.close()
    with recorded(monkeypatch) as seen["gate"]:
        for arguments in (
            ("verify", uri),
            ("status", "llm-7b", *config),
            ("latest", uri),
            ("inspect", uri),
            ("reconcile", "llm-7b", *config),
            ("restore", uri, *config),
            ("quarantine", uri, "--reason", "tried"),
            ("release", uri, "--reason", "tried"),
            ("rollback", f"{uri}/00000001-0000000000000010", "--reason", "tried"),
            ("verify", uri, "--repair"),
        ):
            assert command_line([*arguments]) in (0, 1), arguments
    with recorded(monkeypatch) as seen["relay"]:
        family = Family(locate(uri))
        assert family.survey().candidates
        family.unjudged()
    queue = ("ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility", "GetQueueAttributes")
    seen["relay"] |= {Asked(f"sqs:{name}", QUEUE) for name in queue}
    for role, asked in seen.items():
        assert [one for one in sorted(asked) if not allows(render(role), one)] == [], role
    wrote = {role: {one.action for one in asked if "Put" in one.action} for role, asked in seen.items()}
    assert wrote == {"trainer": {"s3:PutObject"}, "gate": {"s3:PutObject"}, "relay": set()}
    assert Asked("s3:DeleteObject", f"{ARN}/x")[0] in {one.action for one in seen["trainer"]}


EVERYBODY = [
    ("s3:DeleteBucket", ARN),
    ("s3:PutBucketPolicy", ARN),
    ("s3:PutLifecycleConfiguration", ARN),
    ("s3:DeleteObjectVersion", f"{GENERATION}/state/model.bin"),
    ("s3:PutObjectAcl", f"{GENERATION}/state/model.bin"),
    ("s3:GetObject", f"{ARN}-of-others/runs/llm-7b/.lastgood/commits/x"),
    ("s3:GetObject", f"{ARN}/runs/of-others/.lastgood/commits/x"),
    ("s3:PutObject", f"{ARN}/runs/of-others/.lastgood/records/x"),
    ("s3:PutObject", f"{ARN}/runs/llm-7b-too/.lastgood/records/x"),
    ("sqs:SendMessage", QUEUE),
    ("sqs:PurgeQueue", QUEUE),
    ("sqs:ReceiveMessage", QUEUE + "-undecodable"),
    ("iam:PassRole", "*"),
]
FORBIDDEN = {
    "trainer": [
        *((f"s3:{verb}Object", f"{OURS}/{of}/x") for verb in ("Put", "Delete") for of in ("records", "refusals")),
        *((f"s3:{verb}Object", f"{OURS}/{of}/x") for verb in ("Put", "Delete") for of in ("releases", "proven")),
        ("s3:PutObject", f"{OURS}/LAST_GOOD"),
        ("s3:DeleteObject", f"{OURS}/commits/x"),
        ("s3:DeleteObject", f"{OURS}/manifests/x"),
        ("s3:DeleteObject", f"{OURS}/incarnations/x"),
        ("sqs:ReceiveMessage", QUEUE),
    ],
    "gate": [
        ("s3:PutObject", f"{GENERATION}/state/model.bin"),
        ("s3:DeleteObject", f"{GENERATION}/state/model.bin"),
        ("s3:AbortMultipartUpload", f"{GENERATION}/state/model.bin"),
        ("s3:DeleteObject", f"{OURS}/records/x"),
        ("s3:DeleteObject", f"{OURS}/refusals/x"),
        ("s3:DeleteObject", f"{OURS}/commits/x"),
        ("sqs:ReceiveMessage", QUEUE),
    ],
    "relay": [
        ("s3:GetObject", f"{GENERATION}/state/model.bin"),
        ("s3:PutObject", f"{OURS}/records/x"),
        ("s3:DeleteObject", f"{OURS}/records/x"),
        ("s3:PutObject", f"{GENERATION}/state/model.bin"),
    ],
}


@pytest.mark.parametrize("role", ROLES)
def test_what_a_role_must_not_do_is_denied(role: str) -> None:
    """A trainer that writes evidence judges itself; a gate that writes generations may damage what it judges."""
    asked = [Asked(*one) for one in (*EVERYBODY, *FORBIDDEN[role])]
    assert [one for one in asked if allows(render(role), one)] == []


def test_the_queue_takes_announcements_of_its_bucket_alone() -> None:
    """Whoever can send may keep the relay busy; an event decides nothing, but it costs a look."""
    policy = render("queue")
    ours = {"aws:SourceArn": ARN, "aws:SourceAccount": "123456789012"}
    rule = {**ours, "aws:SourceArn": "arn:aws:events:eu-central-1:123456789012:rule/lastgood-commits"}
    send = Asked("sqs:SendMessage", QUEUE)
    assert allows(policy, send, context=ours, principal="s3.amazonaws.com")
    assert allows(policy, send, context=rule, principal="events.amazonaws.com")
    assert not allows(policy, send, context={**ours, "aws:SourceAccount": "999999999999"}, principal="s3.amazonaws.com")
    assert not allows(policy, send, context={**ours, "aws:SourceArn": f"{ARN}-2"}, principal="s3.amazonaws.com")
    assert not allows(policy, send, context=ours, principal="events.amazonaws.com")
    assert not allows(policy, send, principal="s3.amazonaws.com")
    assert not allows(policy, Asked("sqs:ReceiveMessage", QUEUE), context=ours, principal="s3.amazonaws.com")


def test_the_bucket_speaks_over_encrypted_transport_alone() -> None:
    """Bytes and signatures of a checkpoint would cross the network readable."""
    policy, read = render("bucket"), Asked("s3:GetObject", f"{GENERATION}/x")
    assert denies(policy, read, context={"aws:SecureTransport": "false"}, principal="anybody")
    assert not denies(policy, read, context={"aws:SecureTransport": "true"}, principal="anybody")
    assert not allows(policy, read, context={"aws:SecureTransport": "true"}, principal="anybody"), "it grants nothing"


def test_the_evaluator_can_say_both() -> None:
    """One that denied all, or allowed all, would pass half of the tests above."""
    statement = {"Effect": "Allow", "Action": "s3:Get*", "Resource": ["a/????/*"]}
    denial = {"Effect": "Deny", "Action": ["s3:*"], "Resource": "a/2345/secret"}
    policy = {"Statement": [statement, denial]}
    assert allows(policy, Asked("s3:GetObject", "a/1234/b/c"))
    assert not allows(policy, Asked("s3:GetObject", "a/12345/b"))
    assert not allows(policy, Asked("s3:PutObject", "a/1234/b"))
    assert not allows(policy, Asked("s3:GetObject", "a/2345/secret"))
