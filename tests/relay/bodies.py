"""Notifications as each sender writes them, after what was measured and what AWS documents."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

Body = Callable[[str, str], bytes]


def s3_record(source: str, bucket: str, key: str, **changes: object) -> dict[str, Any]:
    """One record; the key as it is written into it."""
    return {
        "eventVersion": "2.1",
        "eventSource": source,
        "awsRegion": "us-east-1",
        "eventTime": "2026-11-29T12:00:00.000Z",
        "eventName": "ObjectCreated:Put",
        "userIdentity": {"principalId": "AWS:EXAMPLE"},
        "requestParameters": {"sourceIPAddress": "127.0.0.1"},
        "responseElements": {"x-amz-request-id": "C3D13FE58DE4C810"},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "lastgood",
            "bucket": {"name": bucket, "ownerIdentity": {"principalId": "A"}, "arn": f"arn:aws:s3:::{bucket}"},
            "object": {"key": key, "size": 312, "eTag": "d41d8cd98f00b204e9800998ecf8427e", "sequencer": "0055AED6DC"},
        },
        **changes,
    }


def dumped(document: object) -> bytes:
    return json.dumps(document).encode()


def aws(bucket: str, key: str) -> bytes:
    """S3 → SQS: `+` for a space, slashes as they are."""
    return dumped({"Records": [s3_record("aws:s3", bucket, quote_plus(key, safe="/"))]})


def moto(bucket: str, key: str) -> bytes:
    """As AWS, with slashes encoded and without a sequencer."""
    record = s3_record("aws:s3", bucket, quote_plus(key, safe=""))
    del record["s3"]["object"]["sequencer"]
    return dumped({"Records": [record]})


def sns(bucket: str, key: str) -> bytes:
    """S3 → SNS → SQS, without raw message delivery."""
    return dumped(
        {
            "Type": "Notification",
            "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
            "TopicArn": "arn:aws:sns:us-east-1:123456789012:saves",
            "Subject": "Amazon S3 Notification",
            "Message": aws(bucket, key).decode(),
            "Timestamp": "2026-11-29T12:00:00.000Z",
            "SignatureVersion": "1",
            "Signature": "EXAMPLE",
            "SigningCertURL": "https://sns.invalid/cert.pem",
            "UnsubscribeURL": "https://sns.invalid/?Action=Unsubscribe",
        }
    )


def eventbridge(bucket: str, key: str) -> bytes:
    """S3 → EventBridge → SQS: the key as it is."""
    return dumped(
        {
            "version": "0",
            "id": "17793124-05d4-b198-2fde-7ededc63b103",
            "detail-type": "Object Created",
            "source": "aws.s3",
            "account": "123456789012",
            "time": "2026-11-29T12:00:00Z",
            "region": "us-east-1",
            "resources": [f"arn:aws:s3:::{bucket}"],
            "detail": {
                "version": "0",
                "bucket": {"name": bucket},
                "object": {
                    "key": key,
                    "size": 312,
                    "etag": "b1946ac92492d2347c6235b4d2611184",
                    "sequencer": "00617F08",
                },
                "request-id": "N4N7GDK58NMKJ12R",
                "reason": "PutObject",
            },
        }
    )


def minio(bucket: str, key: str) -> bytes:
    """MinIO's webhook: a raw key on top, an encoded one in the record, `s3:` before the event's name."""
    record = s3_record("minio:s3", bucket, quote_plus(key, safe=""), eventName="s3:ObjectCreated:Put")
    return dumped({"EventName": "s3:ObjectCreated:Put", "Key": f"{bucket}/{key}", "Records": [record]})


def ceph(bucket: str, key: str, opaque: str = "") -> bytes:
    """A Ceph topic that pushes over HTTP: the key as it is, the topic's opaque data beside it."""
    record = s3_record(
        "ceph:s3", bucket, key, eventVersion="2.2", eventName="ObjectCreated:Put", eventId="1.2.3", opaqueData=opaque
    )
    record["s3"]["object"] |= {"sequencer": "AC5E0C6BEAD3C826", "metadata": [], "tags": []}
    return dumped({"Records": [record]})


def seaweedfs(bucket: str, key: str) -> bytes:
    """The filer's webhook: a path of the filer."""
    return dumped(
        {
            "event_type": "create",
            "key": f"/buckets/{bucket}/{key}",
            "message": {
                "old_entry": None,
                "new_entry": {"name": key, "attributes": {"md5": "1B2M2Y8AsgTpgAmY7PhCfg=="}},
            },
        }
    )


SHAPES: Mapping[str, Body] = {one.__name__: one for one in (aws, moto, sns, eventbridge, minio, ceph, seaweedfs)}


def percent_encoded(bucket: str, key: str) -> bytes:
    """AWS' other lawful spelling of a space, as some SDKs' fakes write it."""
    return dumped({"Records": [s3_record("aws:s3", bucket, quote(key))]})
