"""IAM policies as far as ours go: rendering the templates, and deciding about a request.

The evaluator knows what the policies use and refuses to guess about anything else. Source: AWS IAM User Guide, "Policy
evaluation logic" and "IAM JSON policy elements": an explicit deny wins, then an allow, else denied; `*` crosses
slashes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

TERRAFORM = Path(__file__).resolve().parents[2] / "infra" / "terraform"
NAMES: Mapping[str, Any] = {
    "partition": "aws",
    "account": "123456789012",
    "bucket": "example-checkpoints",
    "prefix": "runs",
    "families": ["llm-7b", "llm 70b"],
    "queue": "arn:aws:sqs:eu-central-1:123456789012:lastgood-saves",
}
_LOOP = re.compile(r"\$\{jsonencode\((flatten\()?\[for family in families : (.*)\]\)?\)\}")


def render(name: str, **names: Any) -> dict[str, Any]:
    """A template as `templatefile` renders it: plain names, and one loop over the families."""
    known = {**NAMES, **names}

    def plain(text: str, **more: str) -> str:
        return re.sub(r"\$\{(\w+)\}", lambda found: {**known, **more}[found[1]], text)

    def loop(found: re.Match[str]) -> str:
        each = [json.loads(plain(found[2], family=family)) for family in known["families"]]
        return json.dumps([one for some in each for one in some] if found[1] else each)

    text = (TERRAFORM / "policies" / f"{name}.json.tftpl").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(plain(_LOOP.sub(loop, text)))
    return document


class Asked(NamedTuple):
    """One request, as IAM sees it."""

    action: str
    resource: str


def allows(
    policy: Mapping[str, Any], asked: Asked, *, context: Mapping[str, str] | None = None, principal: str = ""
) -> bool:
    """Whether a policy alone lets a request through."""
    effects = {
        statement["Effect"]
        for statement in policy["Statement"]
        if _matches(_listed(statement["Action"]), asked.action)
        and _matches(_listed(statement["Resource"]), asked.resource)
        and _is_for(statement.get("Principal"), principal)
        and all(_holds(how, tests, context or {}) for how, tests in statement.get("Condition", {}).items())
    }
    return effects == {"Allow"}


def denies(
    policy: Mapping[str, Any], asked: Asked, *, context: Mapping[str, str] | None = None, principal: str = ""
) -> bool:
    """Whether a policy forbids a request, whatever others allow."""
    turned = [dict(one, Effect="Allow") for one in policy["Statement"] if one["Effect"] == "Deny"]
    return allows({"Statement": turned}, asked, context=context, principal=principal)


def _listed(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value


def _matches(patterns: Sequence[str], value: str) -> bool:
    spelled = [re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".") for pattern in patterns]
    return any(re.fullmatch(one, value, re.DOTALL) for one in spelled)


def _is_for(wanted: Any, principal: str) -> bool:
    return wanted in (None, "*") or principal in wanted.values()


def _holds(how: str, tests: Mapping[str, str], context: Mapping[str, str]) -> bool:
    compare = {"StringEquals": str.__eq__, "ArnEquals": str.__eq__, "Bool": str.__eq__}
    if how == "ArnLike":
        return all(name in context and _matches([wanted], context[name]) for name, wanted in tests.items())
    return all(name in context and compare[how](context[name], wanted) for name, wanted in tests.items())
