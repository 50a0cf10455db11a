#!/usr/bin/env bash
# Formatting, and clippy with warnings as errors.
#
# `cargo clippy` would check every dependency once more, which takes minutes and shares nothing with a build. Clippy is a compiler that says
# more, and cargo runs it on the workspace's own crates alone when it is given as their wrapper: so the dependencies that the build and the
# tests have built are used as they are.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo fmt --all --check
RUSTC_WORKSPACE_WRAPPER="$(rustc --print sysroot)/bin/clippy-driver" CLIPPY_ARGS='-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__' \
    cargo build --workspace --all-targets
