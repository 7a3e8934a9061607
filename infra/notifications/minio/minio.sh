#!/bin/sh
# Let a MinIO bucket announce commits to `lastgood relay`. Needs mc with an alias for the server, and the server started
# with the target `lastgood` (a restart makes it read this):
#
#   MINIO_NOTIFY_WEBHOOK_ENABLE_lastgood=on
#   MINIO_NOTIFY_WEBHOOK_ENDPOINT_lastgood=http://127.0.0.1:8787/events
#   MINIO_NOTIFY_WEBHOOK_AUTH_TOKEN_lastgood="$LASTGOOD_RELAY_SECRET"
#   MINIO_NOTIFY_WEBHOOK_QUEUE_DIR_lastgood=/var/lib/minio/lastgood   # without it, what cannot be delivered is dropped
#
# and, on the machine that the endpoint names, with LASTGOOD_RELAY_SECRET in the environment:
#
#   lastgood relay --source webhook --host 127.0.0.1 --port 8787
#
# usage: ALIAS=minio BUCKET=checkpoints PREFIX=runs FAMILIES="llm-7b llm-70b" sh minio.sh
set -eu

for family in ${FAMILIES:?names of the families in lastgood.toml}; do
  # Only what announces a save: a shard is no reason to send an event.
  mc event add "${ALIAS:?alias of mc}/${BUCKET:?bucket}" arn:minio:sqs::lastgood:webhook \
    --event put --prefix "${PREFIX:?prefix of the root}/$family/.lastgood/commits/"
done
mc event list "$ALIAS/$BUCKET"
