# The commands of this repository. `make demo` and `make test` need only a Debian machine with a Rust toolchain and root or sudo.

# Dependencies are built optimised in the dev profile; this also optimises weir's own crates, without building the dependencies again.
MEMBERS = weir weir-sql weir-catalog
OPTIMISED = $(foreach member,$(MEMBERS),$(foreach setting,opt-level=3 debug-assertions=false overflow-checks=false,\
	--config profile.dev.package.$(member).$(setting)))

.PHONY: demo serve test test-long lint bench bench-rocksdb setup

demo: setup
	cargo build --bin weir
	scripts/demo.sh

serve: setup
	cargo run --bin weir -- serve --data-dir weir-data --listen 127.0.0.1:5480

test: setup
	cargo test --workspace --no-fail-fast

# Fresh seeds and many more rounds. WEIR_TEST_SEED=N repeats a run.
test-long: setup
	WEIR_TEST_LONG=1 cargo test --workspace --no-fail-fast

lint:
	scripts/lint.sh

bench: setup
	scripts/bench.sh $(OPTIMISED)

bench-rocksdb: setup
	cargo bench --profile dev --bench rocksdb $(OPTIMISED)

setup:
	@scripts/setup.sh
