# Every target is a line or two; `./x TARGET` first installs what the target needs.

CARGO    ?= cargo
TARGET   := $(or $(CARGO_TARGET_DIR),target)
TOLLGATE  = $(TARGET)/release/tollgate
HOST      = $(shell rustc -vV | sed -n 's/^host: //p')
STATIC    = $(TARGET)/$(HOST)/release/tollgate
# What is installed and packed, and where packages go.
PROGRAM   = $(TOLLGATE)
DIST      = $(TARGET)/dist
install uninstall: export PREFIX := $(or $(PREFIX),/usr/local)
install uninstall: export DESTDIR := $(DESTDIR)
# It loads libraries, so that it is never static.
PLUGIN_HOST = $(TARGET)/$(HOST)/release/tollgate-plugin-host
image dist: export PLUGIN_HOST := $(PLUGIN_HOST)
# Programs name files of their source where they panic: the same names from every folder. The last prefix that fits counts.
# A build id would be made of the debug symbols as well, in which C libraries name their folders; packages have no symbols.
REMAP = -C link-arg=-Wl,--build-id=none $(foreach pair,$(CURDIR)=. $(abspath $(TARGET))=target $(or $(CARGO_HOME),$(HOME)/.cargo)=cargo,--remap-path-prefix=$(pair))
# A test program that hangs fails after so many seconds, and the others run. Cargo knows no limit.
LIMIT     = 600
LIMITED   = timeout --foreground --kill-after=10
RUNNER    = CARGO_TARGET_$(shell uname -m | tr a-z A-Z)_UNKNOWN_LINUX_GNU_RUNNER

# Tests write here what they skip. After them the list is printed and compared with tests/skips.txt; what that does not
# allow fails the target if STRICT_SKIPS is set.
SKIPS     = $(abspath $(TARGET))/skips.txt
COMPARE   = $(CARGO) run --quiet --locked --package xtask -- skips $(SKIPS) || test -z '$(STRICT_SKIPS)'

# The end-to-end tests drive the program that users get; the crates' own tests are built for
# debugging, where integer overflow and broken assertions stop a test.
test test-unit test-slow: export TOLLGATE_SKIPS = $(SKIPS)
test test-all test-slow test-chaos test-guest test-cluster test-kernels test-engines bless isolation guard-peers soak debian-kernels: export TOLLGATE_BIN = $(abspath $(TOLLGATE))
test test-unit test-slow test-chaos test-guest test-cluster test-kernels test-engines test-recorded test-re2: \
    export $(RUNNER) = $(LIMITED) $(LIMIT)
test-all test-slow test-chaos test-guest: LIMIT = 3600
test-all test-slow test-guest test-cluster: export TOLLGATE_TEST_SLOW = 1
test test-all test-slow test-cluster cluster arm64 test-arm64: export TOLLGATE_CACHE := $(or $(TOLLGATE_CACHE),$(HOME)/.cache/tollgate)
test-all test-slow: export TOLLGATE_STATIC_BIN = $(abspath $(STATIC))
# For what test-all calls, too. The tests of the embedded runtime skip where the program lacks it.
test-all test-slow: FEATURES = embedded-runtime
bless: export BLESS = 1
bless: export INSTA_UPDATE = always

.PHONY: help build demo test test-unit test-all test-slow test-chaos test-guest test-cluster test-kernels test-engines test-recorded test-re2 test-versions test-fuzz test-reproducible fuzz check bless bench-smoke cluster \
    isolation guard-peers soak debian-kernels static arm64 test-arm64 install uninstall deb rpm image dist sign
# What `tollgate version` says of a release build. Builds of cargo alone do not know it.
build static arm64: export TOLLGATE_COMMIT = $(or $(COMMIT),$(shell git describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null))
.DEFAULT_GOAL := help

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

build: ## build target/release/tollgate, and tollgate-plugin-host and tollgate-operator beside it
	$(CARGO) build --release --locked --package cli --package plugin_host --package operator $(FEATURES:%=--features cli/%)

demo: build ## show live alerts from real programs
	$(TOLLGATE) demo

test: build ## run every test but the slow ones
	rm -f $(SKIPS)
	$(CARGO) test --workspace --locked --no-fail-fast; status=$$?; $(COMPARE) && exit $$status

test-unit: ## run the crates' own unit tests: no root, no release build
	rm -f $(SKIPS)
	$(CARGO) test --workspace --exclude e2e --lib --bins --locked --no-fail-fast; status=$$?; $(COMPARE) && exit $$status

# The other build is made of the commit alone, with a target folder of its own that stays for the next time.
OTHER = $(abspath $(TARGET))/previous
test-versions: ## run containers of this build and of the build of PREVIOUS=COMMIT at once, replacing one by the other
	@test -n '$(PREVIOUS)' || { echo 'cannot build the other version: PREVIOUS is not set' >&2; \
	    echo 'help: make $@ PREVIOUS=COMMIT' >&2; exit 2; }
	rm -rf $(OTHER)/source && git worktree prune && git worktree add --force --detach $(OTHER)/source $(PREVIOUS)
	cd $(OTHER)/source && CARGO_TARGET_DIR=$(OTHER) CARGO_PROFILE_DEV_DEBUG=0 $(CARGO) build --locked --package cli; \
	    status=$$?; cd $(CURDIR) && git worktree remove --force $(OTHER)/source; exit $$status
	$(CARGO) build --locked --package cli
	TOLLGATE_TEST_SLOW=1 TOLLGATE_BIN=$(abspath $(TARGET))/debug/tollgate TOLLGATE_PREVIOUS_BIN=$(OTHER)/debug/tollgate \
	    $(CARGO) test --locked --package e2e --test runtime_versions

test-re2: ## compare regular expressions of rules with the real RE2: 60,000 patterns
	python3 -m venv $(TARGET)/re2 && $(TARGET)/re2/bin/pip install --quiet google-re2
	$(TARGET)/re2/bin/python tests/re2/corpus.py 60000 $${SEED:-1} > $(TARGET)/re2/corpus.jsonl
	TOLLGATE_RE2_CORPUS=$(abspath $(TARGET))/re2/corpus.jsonl $(CARGO) test --locked --package rules --lib re2

fuzz: ## fuzz every parser of hostile input, MINUTES=10 for each, with the stable toolchain
	fuzz/run $(or $(MINUTES),10)

test-fuzz: ## fuzz every parser of hostile input for a minute
	fuzz/run 1

# Each is made, whatever comes of the others. A test that hangs is killed with what it started; see xtask/src/limit.rs.
TIERS     = build static test-reproducible test-kernels test-engines test-recorded test-re2 test-fuzz test-chaos test-slow
test-all: ## run every test, tier by tier, and print a table; TIERS='test-fuzz test-slow' runs some
	$(CARGO) run --quiet --locked --package xtask -- tiers LIMIT=$(LIMIT) FEATURES=$(FEATURES) $(TIERS)

test-chaos: build ## kill, stop and starve agent and keeper at random moments, ROUNDS=2000 of each kind
	TOLLGATE_CHAOS=$(or $(ROUNDS),2000) $(CARGO) test --locked --package e2e --test chaos -- --show-output

test-slow: build static ## run the usual tests and the slow ones: real package managers, another kernel, the embedded runtime
	rm -f $(SKIPS)
	$(CARGO) test --workspace --locked --no-fail-fast $(FEATURES:%=--features cli/%); status=$$?; \
	    $(COMPARE) && exit $$status

cluster: ## build Kubernetes, containerd and critest for the tests that need them, into a cache outside the tree
	tests/cluster/build
	$(CARGO) build --release --locked --package operator
	tests/critest/build

test-guest: build ## run the tests that need another kernel, in an emulated machine
	$(CARGO) test --locked --package e2e --test guest --test lsm

test-cluster: build ## run the tests on a whole Kubernetes cluster, with a real kubelet; `make cluster` builds it once
	$(CARGO) test --locked --package e2e --test kubelet -- --show-output

test-kernels: build ## fire every stock rule as on older kernels
	failed=0; for version in 5.5 5.10 5.19 6.6; do echo "as on Linux $$version"; TOLLGATE_TEST_KERNEL=$$version \
	    $(CARGO) test --locked --package e2e --test stock_rules || failed=1; done; exit $$failed

# Runs tests under an engine, and others under the next, whatever comes of the first.
UNDER = $(CARGO) test --locked --package e2e --no-fail-fast
test-engines: build ## run the tests of events, attacks, transparency and rules under the engines ptrace and ebpf
	failed=0; \
	TOLLGATE_TEST_ENGINE=every-call $(UNDER) --test oracle --test adversary || failed=1; \
	TOLLGATE_TEST_ENGINE=ptrace $(UNDER) --test oracle --test transparency --test stock_rules --test adversary --test verify \
	    || failed=1; \
	TOLLGATE_TEST_ENGINE=ebpf $(UNDER) --test containers --test oracle --test stock_rules --test default_rules \
	    --test adversary || failed=1; exit $$failed

test-recorded: build ## record every run of the tests of events, replay it and compare the alerts, under each engine
	failed=0; for engine in notify ptrace ebpf; do echo "engine $$engine"; TOLLGATE_TEST_RECORD=1 \
	    TOLLGATE_TEST_ENGINE=$$engine $(UNDER) --test oracle --test stock_rules --test default_rules || failed=1; \
	    done; exit $$failed

check: ## formatting, lints, API docs, and what xtask checks
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- --deny warnings
	$(CARGO) clippy --package cli --no-default-features --locked -- --deny warnings
	RUSTDOCFLAGS='--deny warnings' $(CARGO) doc --workspace --no-deps --locked
	$(CARGO) run --quiet --locked --package xtask -- check

bless: build ## rewrite the expected outputs; review the difference
	$(CARGO) test --workspace --locked --no-fail-fast

bench-smoke: build ## run every benchmark once, to see that it still runs
	$(CARGO) bench --workspace --locked --bench '*' -- --test
	$(TOLLGATE) bench quick --rounds 1 --out "$$(mktemp -d)/smoke"

isolation: build ## measure how runc, gVisor and machines isolate (15 min); OUT=FOLDER, TOLLGATE_TEST_RUNSC=FILE
	@test -n '$(OUT)' || { echo 'cannot measure: OUT is not set' >&2; echo 'help: make $@ OUT=FOLDER' >&2; exit 2; }
	TOLLGATE_ISOLATION=$(abspath $(OUT)) $(CARGO) test --locked --package e2e --test isolation -- --nocapture

guard-peers: build ## measure guard beside bubblewrap, sandbox-runtime and sandlock (15 min); OUT=FOLDER
	@test -n '$(OUT)' || { echo 'cannot measure: OUT is not set' >&2; echo 'help: make $@ OUT=FOLDER' >&2; exit 2; }
	TOLLGATE_GUARD_PEERS=$(abspath $(OUT)) $(CARGO) test --locked --package e2e --test guard_peers -- --nocapture

# The folder of the results; HOURS=N or MINUTES=N is how long.
OUT_SOAK  = $(abspath $(or $(OUT),$(TARGET)/soak))
soak: build ## watch, run, runtime and serve side by side under a mixed load, HOURS=N or MINUTES=N; OUT=FOLDER for samples
	@test -n '$(HOURS)$(MINUTES)' || { echo 'cannot run: HOURS is not set' >&2; echo 'help: make $@ HOURS=2' >&2; exit 2; }
	TOLLGATE_SOAK=$(OUT_SOAK) TOLLGATE_SOAK_MINUTES=$(or $(MINUTES),$$(($(HOURS) * 60))) \
	    $(CARGO) test --locked --package e2e --test soak -- --nocapture

debian-kernels: build ## boot Debian's kernels from 5.10 to the newest: doctor, and the stable rules by each engine; OUT=FOLDER
	@test -n '$(OUT)' || { echo 'cannot try kernels: OUT is not set' >&2; echo 'help: make $@ OUT=FOLDER' >&2; exit 2; }
	TOLLGATE_TEST_SLOW=1 TOLLGATE_KERNELS=$(abspath $(OUT)) $(CARGO) test --locked --package e2e --test kernels -- --nocapture

static: ## build programs that need no libraries, for the machine at hand, and tollgate-plugin-host, which needs some
	RUSTFLAGS='-C target-feature=+crt-static $(REMAP)' $(CARGO) build --release --locked --package cli --package operator --target $(HOST)
	RUSTFLAGS='$(REMAP)' $(CARGO) build --release --locked --package plugin_host --target $(HOST)
	@echo built $(STATIC) and $(PLUGIN_HOST)

# The other folder has a copy of the commit, and a target folder of its own.
test-reproducible: static ## build the static program again in another folder, and compare
	test -z "$$(git status --porcelain)" || { echo 'cannot compare: the tree has changes that no commit has' >&2; exit 2; }
	folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && git clone --quiet . $$folder/another && \
	    $(MAKE) --directory $$folder/another TARGET=$$folder/built CARGO_TARGET_DIR=$$folder/built static && \
	    for name in tollgate tollgate-operator tollgate-plugin-host; do \
	        strip -o $$folder/$$name.1 $(dir $(STATIC))$$name && \
	        strip -o $$folder/$$name.2 $$folder/built/$(HOST)/release/$$name && \
	        cmp $$folder/$$name.1 $$folder/$$name.2 && sha256sum $$folder/$$name.1 || exit; \
	    done && echo 'the programs of both folders are the same, without their symbols'

arm64: ## cross-build the static program for arm64, for debugging: target/aarch64-unknown-linux-gnu/debug/tollgate
	packaging/arm64.sh cargo build --locked --package cli $(FEATURES:%=--features %)

test-arm64: arm64 ## try engines and enforcers of that program on two arm64 kernels in emulated machines; OUT=FOLDER for tables
	TOLLGATE_TEST_SLOW=1 TOLLGATE_ARM64_BIN=$(abspath $(TARGET))/aarch64-unknown-linux-gnu/debug/tollgate \
	    $(if $(OUT),TOLLGATE_KERNELS_ARM64=$(abspath $(OUT))) \
	    $(CARGO) test --locked --package e2e --test kernels arm64 -- --nocapture

install: ## install to PREFIX (/usr/local) below DESTDIR: program, man pages, completions, unit, configuration
	packaging/install.sh install $(PROGRAM)

uninstall: ## remove what `make install` installed; changed files of /etc stay
	packaging/install.sh uninstall $(PROGRAM)

deb: build ## pack target/dist/tollgate_VERSION_ARCHITECTURE.deb
	rm -f $(DIST)/tollgate_*.deb
	packaging/deb.sh $(PROGRAM) $(DIST)

rpm: build ## pack target/dist/tollgate-VERSION-1.ARCHITECTURE.rpm
	rm -f $(DIST)/tollgate-*.rpm
	packaging/rpm.sh $(PROGRAM) $(DIST)

image: static ## make target/dist/tollgate-VERSION-image.tar, an OCI image of the static program
	packaging/image.sh $(STATIC) $(DIST)

dist: static ## pack a release into target/dist: packages, archive, image, bills of materials, licences, checksums
	packaging/dist.sh $(STATIC) $(DIST)

sign: ## sign target/dist/SHA256SUMS with minisign; KEY=FILE
	@test -n '$(KEY)' || { echo 'cannot sign: KEY is not set' >&2; echo 'help: make $@ KEY=FILE' >&2; exit 2; }
	packaging/sign.sh $(KEY) $(DIST)
