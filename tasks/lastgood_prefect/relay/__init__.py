"""The relay: what buckets say of themselves, made into hints for the watcher (`lastgood relay`).

    decoding   the body of a notification → the objects that it names, per kind of sender
    reading    an object's bucket and key → a commit of a configured family, or nothing; and what was counted
    sqs        hints from an SQS queue
    webhook    hints from HTTP requests, kept in a `spool` until they are done with
    listing    hints from listing the names of commits
    serving    a source by its settings, and the watcher that it wakes
    command    `lastgood relay`; its other front is the flow `relay` (`lastgood_prefect.relaying`)

A source is a `hints.HintSource` of the watcher, which lists storage and asks for runs as it does without any event. So
an event decides one thing: that a family is looked at sooner. Lost, doubled, late, reordered and forged events end in
the same verdicts.

Rule: nothing that an event says is opened, fetched or written as a path or a URL; it is compared with what is
configured.
"""
