#!/usr/bin/env bash
# Shows weir at work: continuous queries over a million events, their results, checkpoints, and a recovery after kill -9.
# Takes under a minute, once built. Leaves nothing behind.
set -euo pipefail
cd "$(dirname "$0")/.."

weir="${CARGO_TARGET_DIR:-target}/debug/weir"
[ -x "$weir" ] || { echo "demo: build first: cargo build" >&2; exit 1; }
folder=$(mktemp -d)
server=''

stop() {
    if [ -n "$server" ]; then kill -9 "$server" 2>/dev/null || true; fi
    rm -rf "$folder"
}
trap stop EXIT

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

start() {
    : >"$folder/ready"
    "$weir" serve --data-dir "$folder/data" --listen 127.0.0.1:0 >"$folder/ready" 2>>"$folder/log" &
    server=$!
    disown "$server" # so that the shell does not report its end
    for _ in $(seq 600); do
        port=$(sed -n 's/^weir listening on .*:\([0-9]*\)$/\1/p' "$folder/ready")
        if [ -n "$port" ]; then return 0; fi
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    echo "demo: the server did not start:" >&2
    tail -n 20 "$folder/log" >&2
    exit 1
}

psql() { command psql -X -q -v ON_ERROR_STOP=1 -P pager=off -h 127.0.0.1 -p "$port" -U weir weir "$@"; }
value() { psql -A -t -c "$1"; }

began=$SECONDS
start
say "1. A stream and a table (demo/tables.sql)"
cat demo/tables.sql
psql -f demo/tables.sql

say "2. Continuous queries (demo/views.sql)"
cat demo/views.sql
psql -f demo/views.sql

say "3. Results are exact at every moment, also while a million events come in"
# 46 of 50 events are bids.
until [ "$(value 'SELECT coalesce(bids, 0) FROM total')" = 920000 ]; do
    value "SELECT coalesce(bids, 0) || ' bids so far, on ' || auctions || ' auctions' FROM total"
    [ $((SECONDS - began)) -lt 300 ] || { echo "demo: the events do not come to an end" >&2; exit 1; }
    sleep 0.5
done
psql -c 'FLUSH'
psql -f demo/results.sql

say "4. The jobs"
psql -c 'SHOW JOBS'

say "5. A checkpoint, and a row that is acknowledged after it"
psql -c 'CHECKPOINT'
psql -c 'SHOW CHECKPOINTS' | sed -n 1,12p
psql -c "INSERT INTO watched VALUES (1050, 'just before the crash')"
psql -c 'FLUSH'
psql -A -f demo/results.sql >"$folder/before"

say "6. kill -9, and a new start on the same folder"
kill -9 "$server"
while kill -0 "$server" 2>/dev/null; do sleep 0.05; done
start
psql -A -f demo/results.sql >"$folder/after"
psql -f demo/results.sql

if diff "$folder/before" "$folder/after" && grep -q 'just before the crash' "$folder/after"; then
    say "The results are the same after kill -9. ($((SECONDS - began)) s)"
else
    echo "demo: the results differ after the restart" >&2
    exit 1
fi
