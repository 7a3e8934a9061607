"""Hints from an SQS queue: S3 → SQS, S3 → SNS → SQS, EventBridge → SQS.

Decides how long a message is held and what becomes of it; leaves bodies to `decoding`. Rules:

- A message that announces a commit is deleted once a run was acknowledged for it (`HintSource.acknowledge`). Until then
  it is held: its visibility is renewed, so it is not delivered again while we live and is when we die.
- One that announces nothing of ours is deleted at once.
- One that cannot be decoded goes the way the queue's owner chose: where the queue has a redrive policy, it is given
  back until the policy moves it to the dead-letter queue, whose depth is what people have alarms on; where there is
  none, it is deleted, for otherwise it would come back for days and nobody would be any wiser. Either way it is counted
  and logged, and the save that it may have announced is found by the slow listing.
- A bounded number of messages is held. What is not received waits in the queue, which is made for that.
- A queue that does not answer is asked again after a growing while; hints are late then, and nothing is lost.

Holding for minutes costs nothing after a crash: the next relay lists every family at its start, and the messages that
come back later announce what is judged already.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Protocol, cast
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError

from lastgood.errors import UsageError
from lastgood.identity import GenerationId
from lastgood.text import printable
from lastgood_prefect.hints import Hint
from lastgood_prefect.relay.decoding import UndecodableEvent
from lastgood_prefect.relay.reading import Reader

__all__ = ["Client", "SqsHints", "connect"]

VISIBILITY: Final = timedelta(minutes=5)
RETURN_SECONDS: Final = 2
"""After which a message that cannot be decoded is delivered again, until the queue's own policy moves it away."""
"""How long a message is ours at a time; renewed at half of it. Longer than any look at storage takes."""
BATCH: Final = 10
"""As many messages as SQS takes in one request."""
MAXIMUM_BATCHES: Final = 20
"""Received one after another while the queue is full, before what they announce is looked at."""
MAXIMUM_HELD: Final = 1000
LONGEST_SILENCE_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 15.0

_log = logging.getLogger("lastgood.watch")


class Client(Protocol):
    """What is used of boto3's SQS client, which has no annotations."""

    def get_queue_attributes(self, **arguments: object) -> Mapping[str, Any]: ...
    def receive_message(self, **arguments: object) -> Mapping[str, Any]: ...
    def delete_message_batch(self, **arguments: object) -> Mapping[str, Any]: ...
    def change_message_visibility_batch(self, **arguments: object) -> Mapping[str, Any]: ...


def connect(queue_url: str) -> Client:
    """A client for a queue, with credentials and endpoint from boto3's own chain.

    Raises:
        UsageError: boto3 is configured wrongly, or for no region.
    """
    # A queue's URL names its region; elsewhere (an emulator, an endpoint of one's own) boto3's configuration does.
    named = re.fullmatch(r"sqs\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?", urlsplit(queue_url).hostname or "")
    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=ANSWER_SECONDS,
        retries={"mode": "standard", "total_max_attempts": 2},
    )
    try:
        return cast(Client, boto3.client("sqs", region_name=named[1] if named else None, config=config))
    except NoRegionError:
        raise UsageError(f"no region for the queue {queue_url}", hint="set AWS_REGION or AWS_DEFAULT_REGION") from None
    except (BotoCoreError, ValueError) as error:
        raise UsageError(f"boto3 is configured wrongly: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """A message that is ours for a while.

    Args:
        receipt: Of its last delivery.
        hints: What it announced and what is not done yet.
        renew_at: When its visibility must be renewed, by our clock.
    """

    receipt: str
    hints: frozenset[Hint]
    renew_at: float


class SqsHints:
    """Receives messages, and says what they announce. A `HintSource`.

    Args:
        reader: Of the configured families.
        client: As `connect` makes one.
        queue_url: The queue.
        stop: Set by whoever wants `wait` to return soon.
        tick: About the longest that `wait` takes, in whole seconds, as SQS counts them.
        visibility: How long a message is ours at a time.
        clock: Monotonic seconds.

    Raises:
        UsageError: There is no such queue, or no credentials were found.
    """

    def __init__(
        self,
        reader: Reader,
        client: Client,
        queue_url: str,
        stop: threading.Event,
        *,
        tick: timedelta = timedelta(seconds=1),
        visibility: timedelta = VISIBILITY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._client = client
        self._queue = {"QueueUrl": queue_url}
        self._stop = stop
        self._tick_seconds = max(1, round(tick.total_seconds()))
        self._visibility_seconds = max(1, round(visibility.total_seconds()))
        self._clock = clock
        self._held: dict[str, _Held] = {}
        self._silence_seconds = self._ask_again_at = 0.0
        self._has_redrive = self._reads_redrive()

    @property
    def held(self) -> int:
        """How many messages are held."""
        return len(self._held)

    def wait(self) -> tuple[frozenset[str], frozenset[str]]:
        self._renew()
        if self._clock() < self._ask_again_at or len(self._held) >= MAXIMUM_HELD:
            self._stop.wait(self._tick_seconds)
            return frozenset(), frozenset()
        hinted: set[str] = set()
        wait_seconds = self._tick_seconds
        for _ in range(MAXIMUM_BATCHES):
            messages = self._receive(wait_seconds)
            hinted |= self._take(messages)
            if len(messages) < BATCH or len(self._held) >= MAXIMUM_HELD or self._stop.is_set():
                break
            wait_seconds = 0
        return frozenset(hinted), frozenset()

    def acknowledge(self, unasked: Mapping[str, frozenset[GenerationId]]) -> None:
        done = {}
        for name, held in self._held.items():
            left = frozenset(hint for hint in held.hints if not hint.is_done(unasked))
            # What is done stays done: another hint of the same message may have to wait for longer.
            self._held[name] = replace(held, hints=left)
            if not left:
                done[name] = held.receipt
        for name in self._delete(done):
            del self._held[name]

    def close(self) -> None:
        """What is held comes back when its visibility ends; the next relay lists before that."""

    def _take(self, messages: Iterable[Mapping[str, Any]]) -> set[str]:
        """Hold what announces something, and be rid of the rest; returns the families."""
        hinted, useless, undecodable = set(), {}, {}
        for message in messages:
            name, receipt = message["MessageId"], message["ReceiptHandle"]
            try:
                hints = self._reader.hints(self._reader.decode(message["Body"].encode(errors="replace")))
            except UndecodableEvent as error:
                if message.get("Attributes", {}).get("ApproximateReceiveCount", "1") == "1":
                    _log.warning("message %s: %s", printable(name), printable(error.message))
                undecodable[name] = receipt
                continue
            if hints:
                # Under its name: one that is delivered again is the same message under another receipt.
                renew_at = self._clock() + self._visibility_seconds / 2
                self._held[name] = _Held(receipt=receipt, hints=hints, renew_at=renew_at)
                hinted |= {hint.family for hint in hints}
            else:
                useless[name] = receipt
        if self._has_redrive:
            self._change_visibility(undecodable, seconds=RETURN_SECONDS)
        else:
            useless |= undecodable
        self._delete(useless)
        return hinted

    def _renew(self) -> None:
        now = self._clock()
        late = {name: held.receipt for name, held in self._held.items() if held.renew_at <= now}
        renewed = self._change_visibility(late, seconds=self._visibility_seconds)
        for name in late:
            if name in renewed:
                self._held[name] = replace(self._held[name], renew_at=now + self._visibility_seconds / 2)
            elif now > self._held[name].renew_at + self._visibility_seconds / 2:
                del self._held[name]  # no longer ours: it comes again, under another receipt

    def _receive(self, wait_seconds: int) -> Sequence[Mapping[str, Any]]:
        arguments = {
            **self._queue,
            "MaxNumberOfMessages": BATCH,
            "VisibilityTimeout": self._visibility_seconds,
            "WaitTimeSeconds": wait_seconds,
            "MessageSystemAttributeNames": ["ApproximateReceiveCount"],
        }
        messages: Sequence[Mapping[str, Any]] = self._answered(self._client.receive_message, arguments).get(
            "Messages", ()
        )
        return messages

    def _delete(self, receipts: Mapping[str, str]) -> list[str]:
        """Delete messages, name → receipt; returns the names of those that are gone, or not ours any more."""
        return self._in_batches(self._client.delete_message_batch, receipts)

    def _change_visibility(self, receipts: Mapping[str, str], *, seconds: int) -> list[str]:
        return self._in_batches(self._client.change_message_visibility_batch, receipts, VisibilityTimeout=seconds)

    def _in_batches(
        self, request: Callable[..., Mapping[str, Any]], receipts: Mapping[str, str], **each: object
    ) -> list[str]:
        """Make one request for all messages; returns the names of those for which it need not be made again."""
        settled: list[str] = []
        named = list(receipts.items())
        for begin in range(0, len(named), BATCH):
            batch = named[begin : begin + BATCH]
            if self._clock() < self._ask_again_at:
                break
            entries = [
                {"Id": str(number), "ReceiptHandle": receipt, **each} for number, (_, receipt) in enumerate(batch)
            ]
            answer = self._answered(request, {**self._queue, "Entries": entries})
            settled += [batch[int(one["Id"])][0] for one in answer.get("Successful", ())]
            # The sender's fault: this receipt will not be taken the next time either.
            settled += [batch[int(one["Id"])][0] for one in answer.get("Failed", ()) if one.get("SenderFault")]
        return settled

    def _answered(
        self, request: Callable[..., Mapping[str, Any]], arguments: Mapping[str, object]
    ) -> Mapping[str, Any]:
        """The answer; an empty one, and a pause, when there is none."""
        try:
            answer = request(**arguments)
        except (BotoCoreError, ClientError) as error:
            self._silence_seconds = min(max(1.0, 2 * self._silence_seconds), LONGEST_SILENCE_SECONDS)
            self._ask_again_at = self._clock() + self._silence_seconds
            _log.warning("no answer from the queue: %s; asking again in %.0f s", _said(error), self._silence_seconds)
            return {}
        if self._silence_seconds:
            _log.info("the queue answers again")
        self._silence_seconds = 0.0
        return answer

    def _reads_redrive(self) -> bool:
        """Whether the queue has a redrive policy; it is taken to have one where that cannot be told."""
        try:
            answer = self._client.get_queue_attributes(**self._queue, AttributeNames=["RedrivePolicy"])
        except NoCredentialsError:
            raise UsageError(
                "no credentials for the queue",
                hint="boto3 looks in the environment, in ~/.aws and at the machine's role",
            ) from None
        except ClientError as error:
            if "NonExistentQueue" in _code(error) or "QueueDoesNotExist" in _code(error):
                raise UsageError(f"no such queue: {self._queue['QueueUrl']}") from None
            _log.warning("cannot tell whether the queue has a redrive policy: %s", _said(error))
            return True
        except BotoCoreError as error:
            _log.warning("cannot tell whether the queue has a redrive policy: %s", _said(error))
            return True
        has_redrive = "RedrivePolicy" in answer.get("Attributes", {})
        if not has_redrive:
            _log.warning("the queue has no redrive policy: messages that cannot be decoded are deleted")
        return has_redrive


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _said(error: BotoCoreError | ClientError) -> str:
    return printable(str(error).splitlines()[0])[:300]
