# The commands of this repository. `make demo` and `make test` need only a Debian machine with a Rust toolchain and root or sudo.

# Dependencies are built optimised in the dev profile; this also optimises weir's own crates, without building the dependencies again.
MEMBERS = weir weir-sql weir-catalog
OPTIMISED = $(foreach member,$(MEMBERS),$(foreach setting,opt-level=3 debug-assertions=false overflow-checks=false,\
	--config profile.dev.package.$(member).$(setting)))

# Faults can be planted in what is tested, which changes nothing as long as none is. One build serves both, and the lint builds without.
TESTS = --workspace --locked --features weir/planted-faults
# The number that all tests draw from; `make test-long` draws one of its own.
SEED = 20260131

.PHONY: demo serve test test-named build-tests test-long lint bench bench-rocksdb bench-flink setup setup-tests

demo: setup
	cargo build --bin weir
	scripts/demo.sh

serve: setup
	cargo run --bin weir -- serve --data-dir weir-data --listen 127.0.0.1:5480

# Doc tests have a summary of their own, and come first: the last line is the summary of the tests of the whole.
test: setup-tests
	cargo test $(TESTS) --doc
	PROPTEST_RNG_SEED=$${WEIR_TEST_SEED:-$(SEED)} WEIR_TEST_SEED=$${WEIR_TEST_SEED:-$(SEED)} \
		cargo test $(TESTS) --lib --bins --tests --no-fail-fast

# Some tests, by their whole names, one after another.
test-named: setup-tests
	PROPTEST_RNG_SEED=$${WEIR_TEST_SEED:-$(SEED)} WEIR_TEST_SEED=$${WEIR_TEST_SEED:-$(SEED)} \
		cargo test $(TESTS) --lib --bins --tests --no-fail-fast -- --exact --test-threads 1 $(NAMES)

build-tests: setup-tests
	cargo test $(TESTS) --no-run

# Fresh seeds and many more rounds. WEIR_TEST_SEED=N repeats a run.
test-long: setup-tests
	WEIR_TEST_LONG=1 cargo test $(TESTS) --lib --bins --tests --no-fail-fast

lint:
	scripts/lint.sh

bench: setup
	scripts/bench.sh $(OPTIMISED)

bench-rocksdb: setup
	cargo bench --profile dev --bench rocksdb $(OPTIMISED)

# Beside Apache Flink, over the same files: bench/nexmark-flink/README.md. FLINK='--runs 1 --queries q0' and the like make it shorter.
bench-flink: setup
	cargo build --workspace --locked --bin weir $(OPTIMISED)
	bench/nexmark-flink/run.sh $(FLINK)

setup:
	@scripts/setup.sh

setup-tests:
	@scripts/setup.sh --tests
