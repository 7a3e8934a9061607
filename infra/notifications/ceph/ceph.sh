#!/bin/sh
# Let a bucket of Ceph's radosgw announce commits to `lastgood relay`. Needs the aws command line with credentials of the
# bucket's owner, and on the machine that push-endpoint names, with LASTGOOD_RELAY_SECRET in the environment:
#
#   lastgood relay --source webhook --host 127.0.0.1 --port 8787
#
# topic.json: persistent=true lets the gateway keep and repeat what it cannot deliver; without it, a write succeeds and its
# event is lost. OpaqueData comes with each event and is the relay's secret: whoever may read the topic reads it.
#
# usage: ENDPOINT=http://127.0.0.1:8000 BUCKET=checkpoints LASTGOOD_RELAY_SECRET=… sh ceph.sh
set -eu
here=$(dirname "$0")

# The secret goes from the environment into a file that only we can read, and not onto a command line that `ps` shows.
umask 077
topic=$(mktemp)
trap 'rm -f "$topic"' EXIT
python3 -c 'import json, os, sys
topic = json.load(open(sys.argv[1]))
topic["OpaqueData"] = os.environ["LASTGOOD_RELAY_SECRET"]
json.dump(topic, sys.stdout)' "$here/topic.json" > "$topic"

aws --endpoint-url "${ENDPOINT:?endpoint of the gateway}" sns create-topic --name lastgood --attributes "file://$topic"
# One configuration for each family: notification.json holds one, of runs/llm-7b.
aws --endpoint-url "$ENDPOINT" s3api put-bucket-notification-configuration --bucket "${BUCKET:?bucket}" \
  --notification-configuration "file://$here/notification.json"
