"""The publish, fence and resume protocol, as generators that decide and leave every request to their caller.

Each rule of the protocol lives here once: `claims` (starting a life of the run, rolling back), `commits` (the marker,
its fence, burning a slot), `survey` (what may be offered, in the order that makes it safe to ask), `evidence` (records,
refusals, releases, passes, caches). A step yields one `requests.Request` and is sent the store's reply;
`requests.perform` drives it over a store, the model test (tests/protocol) drives the same code over memory with every
prefix a crash and every interleaving. Source: docs/protocol.md, ADR 0002.
"""

from __future__ import annotations

from lastgood.protocol.claims import Decision, claim, decide, rollback
from lastgood.protocol.commits import CommitOutcome, abandon, burn, commit
from lastgood.protocol.evidence import conclude, prove, record, refresh_caches, refuse, release
from lastgood.protocol.requests import Create, Created, Get, Inspect, List, Replace, Request, Steps, Swap, perform
from lastgood.protocol.survey import Choice, Policy, Skipped, Survey, choose, take_survey

__all__ = [
    "Choice",
    "CommitOutcome",
    "Create",
    "Created",
    "Decision",
    "Get",
    "Inspect",
    "List",
    "Policy",
    "Replace",
    "Request",
    "Skipped",
    "Steps",
    "Survey",
    "Swap",
    "abandon",
    "burn",
    "choose",
    "claim",
    "commit",
    "conclude",
    "decide",
    "perform",
    "prove",
    "record",
    "refresh_caches",
    "refuse",
    "release",
    "rollback",
    "take_survey",
]
