#!/usr/bin/env bash
# Installs what weir's build and tests need on Debian 12, or says exactly what to install. Does nothing where all of it is there.
#
# Needed: a Rust toolchain (checked, never installed), a C and C++ compiler, make and git for RocksDB and jemalloc, libclang for RocksDB's
# bindings, and for the demo and the tests psql and a PostgreSQL server to compare with (the tests start their own, on no port). With `--tests` also
# an S3 server that the tests start; with `--flink` what Apache Flink needs, for `make bench-flink`.
set -euo pipefail
cd "$(dirname "$0")/.."

required_rust=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' Cargo.toml)

missing=()
need() { # package, test command
    local package=$1
    shift
    if ! "$@" >/dev/null 2>&1; then missing+=("$package"); fi
}

has_libclang() {
    [ -n "${LIBCLANG_PATH:-}" ] && return 0
    compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null || compgen -G '/usr/lib/*/libclang*.so*' >/dev/null ||
        { command -v llvm-config && compgen -G "$(llvm-config --libdir)/libclang*.so*"; } >/dev/null 2>&1
}
has_postgresql_server() {
    compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || [ -x "$(pg_config --bindir 2>/dev/null)/initdb" ]
}

need gcc cc --version
need g++ c++ --version
need make make --version
need git git --version
need clang clang --version
need libclang-dev has_libclang
need postgresql has_postgresql_server
need postgresql-client psql --version
need procps ps --version
need mount mount --version
if [ "${1:-}" = --flink ]; then
    need openjdk-17-jdk-headless javac -version
    need python3-pip python3 -m pip --version
fi

if [ ${#missing[@]} -gt 0 ]; then
    install=(apt-get install -y --no-install-recommends "${missing[@]}")
    as_root=()
    [ "$(id -u)" = 0 ] || as_root=(sudo -n)
    if command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }; then
        echo "setup: installing ${missing[*]}"
        export DEBIAN_FRONTEND=noninteractive
        "${as_root[@]}" apt-get update -q </dev/null
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive "${install[@]}" </dev/null
    else
        echo "setup: missing: ${missing[*]}" >&2
        echo "setup: install them as root and run this again:" >&2
        echo "    apt-get update && ${install[*]}" >&2
        exit 1
    fi
fi

if ! command -v cargo >/dev/null || ! command -v rustc >/dev/null; then
    echo "setup: no Rust toolchain: install Rust $required_rust or newer, for example with https://rustup.rs, and have cargo on the PATH" >&2
    exit 1
fi
found_rust=$(rustc --version | awk '{print $2}')
if [ "$(printf '%s\n%s\n' "$required_rust" "${found_rust%%-*}" | sort -V | head -n 1)" != "$required_rust" ]; then
    echo "setup: Rust $found_rust is too old: weir needs $required_rust or newer (rustup update stable)" >&2
    exit 1
fi
# An S3 server for the tests of object stores: built once, into the cache. They are skipped, and say so, where it can't be had.
if [ "${1:-}" = --tests ]; then
    s3_server=0.14.1
    tools="${WEIR_CACHE_DIR:-$HOME/.cache/weir}/tools"
    if [ "$("$tools/bin/s3s-fs" --version 2>/dev/null)" != "s3s-fs $s3_server" ]; then
        echo "setup: building the S3 server that the tests use (s3s-fs $s3_server), once, into $tools"
        # Away from this workspace, whose settings and built files are none of its business.
        if ! (cd / && CARGO_TARGET_DIR="$tools/target" cargo install s3s-fs --version "=$s3_server" --locked --features binary \
            --root "$tools" --force --quiet); then
            echo "setup: it could not be built: the tests of object stores will be skipped" >&2
        fi
        rm -rf "$tools/target"
    fi
fi

echo "setup: ready (Rust $found_rust, $(c++ --version | head -n 1), $(psql --version))"
