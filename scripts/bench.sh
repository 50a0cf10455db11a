#!/usr/bin/env bash
# Runs every bench but RocksDB's own (`make bench-rocksdb`), with weir's crates optimised by the options given. Fails if one fails.
set -euo pipefail
cd "$(dirname "$0")/.."

failed=()
for file in benches/*.rs; do
    name=$(basename "$file" .rs)
    [ "$name" = rocksdb ] && continue
    echo "== $name"
    cargo bench --profile dev --bench "$name" "$@" || failed+=("$name")
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "bench: failed: ${failed[*]}" >&2
    exit 1
fi
