#!/usr/bin/env bash
# weir and Apache Flink over the same files: see README.md. Options are those of bench.py.
# WEIR names the program (default: target/debug/weir of this repository), WEIR_BENCH_DIR the folder for data and results (default: ~/.cache/weir/bench).
# Ends with success and a printed reason where Java or Flink can't be had.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
version=2.3.0

skip() {
    echo "SKIPPED: $*" >&2
    exit 0
}

weir=${WEIR:-${CARGO_TARGET_DIR:-$root/target}/debug/weir}
[ -x "$weir" ] || {
    echo "bench: there is no $weir: make bench-flink builds it" >&2
    exit 1
}
for program in psql python3 split; do
    command -v "$program" >/dev/null || skip "needs $program"
done
if ! command -v javac >/dev/null || ! command -v java >/dev/null; then
    "$root/scripts/setup.sh" --flink >&2 || true
fi
command -v javac >/dev/null && command -v java >/dev/null || skip "needs Java 17 or newer with javac: apt-get install openjdk-17-jdk-headless"

# Flink comes from PyPI, once.
home=${FLINK_HOME_CACHE:-$HOME/.cache/flink-compare}
if [ ! -d "$home/$version" ]; then
    echo "bench: fetching Flink $version from PyPI into $home" >&2
    rm -rf "$home/download" "$home/$version.part"
    mkdir -p "$home/download"
    python3 -m pip download -q --no-deps -d "$home/download" "apache-flink-libraries==$version" >&2 ||
        skip "Flink $version could not be fetched from PyPI (python3 -m pip download apache-flink-libraries==$version)"
    python3 -m zipfile -e "$home/download/apache_flink_libraries-$version-py2.py3-none-any.whl" "$home/$version.part"
    mv "$home/$version.part" "$home/$version"
    rm -rf "$home/download"
fi
classpath=$(printf '%s:' "$home/$version"/pyflink/lib/*.jar)
work=${WEIR_BENCH_DIR:-${WEIR_CACHE_DIR:-$HOME/.cache/weir}/bench}
mkdir -p "$work/classes"
javac -d "$work/classes" -cp "$classpath" "$here/RunSql.java"
PYTHONDONTWRITEBYTECODE=1 exec python3 "$here/bench.py" --weir "$weir" --classpath "$classpath$work/classes" --work "$work" "$@"
