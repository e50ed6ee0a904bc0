#! /usr/bin/env bash
# What a node starts, in a container or as a process: everything is checked once more, then served.
set -euo pipefail
root="${CLOUDEDGE_ROOT:-}"
export PORT="${PORT:-$CLOUDEDGE_PORT}" HOST=127.0.0.1
[ -n "$root" ] || HOST=0.0.0.0 # in a container, loopback is the container's own
exec python3 "$root/home/work/script/entry.py" -- bash -c '
  exec python3 -m cloudedge serve "$CLOUDEDGE_BUNDLE" --hub "$CLOUDEDGE_HUB" --service yolov3 \
    --ops "$CLOUDEDGE_MODEL/web_service.py:service" --host "$HOST" --open --port "$PORT" --admin-port 0 --workers 1'
