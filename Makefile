# Everything a user or a contributor runs. `make run` gives a working single-node cluster, `make test` checks the tree.
SHELL := /bin/bash
DATA_DIR ?= /var/lib/kelson
PORT ?= 6443
ARGS ?=
# Virtual machines' tests that run side by side.
VM_WORKERS ?= 2
# What `make portable` checks for.
SYSTEMS ?= x86_64-apple-darwin aarch64-apple-darwin x86_64-pc-windows-gnu x86_64-pc-windows-msvc
# The release of Kubernetes whose definitions `make definitions` takes, and their modules.
RELEASE ?= 1.36.2
DEFINITIONS := api apiextensions-apiserver apimachinery apiserver client-go component-base controller-manager kube-aggregator metrics
# `make test-clients` alone needs it, for Helm and a controller of controller-runtime.
GO ?= $(shell command -v go || echo /usr/local/go/bin/go)
# Debian's Rust, where scripts/deps took that for want of rustup.
export PATH := $(if $(shell command -v rustup),,$(CURDIR)/.cache/rust/bin:)$(PATH)
export KELSON_COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null)
# The date of the commit, not of the build: the same tree gives the same binary.
export KELSON_BUILD_DATE ?= $(shell TZ=UTC git log -1 --format=%cd --date=format-local:%Y-%m-%dT%H:%M:%SZ 2>/dev/null)
# Tests that read published definitions beside the repository fail without them, except with `KELSON_SHARED=none`; a clone has none.
export KELSON_SHARED ?= $(if $(wildcard ../shared/reference),$(abspath ../shared),none)

.PHONY: help run build static pgo release envtest test workspace lint unit blackbox lint-steps unit-steps blackbox-steps size clients test-clients test-install test-vm portable fuzz torture torture-ha torture-streams bench definitions images release-images deps deps-build deps-run deps-test clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

run: ## a single-node cluster in the foreground (root); DATA_DIR, PORT and ARGS may be set
	@scripts/step "1/3 install what is missing" "2 minutes the first time" $(MAKE) --no-print-directory deps-run
	@scripts/step "2/3 compile the release binary" "about 15 minutes the first time on two cores" $(MAKE) --no-print-directory build
	@echo "== 3/3 start the cluster (half a minute; Ctrl-C ends the server)" >&2
	@command -v kubectl >/dev/null || echo "== kubectl for the other terminal: export PATH=\$$PATH:$(CURDIR)/.cache/bin" >&2
	@exec target/release/kelson server --data-dir $(DATA_DIR) --secure-port $(PORT) $(ARGS)

build: deps-build ## the release binary, target/release/kelson
	scripts/compile kelson

size: build ## check that the release binary is not larger than its limit in xtask/ratchets.txt
	cargo xtask size target/release/kelson

pgo: deps-test release-images ## renews trained/, the counts that `make build` compiles with, in half an hour; with a node's as root
	scripts/pgo

# A program that loads no library, where its target and a C compiler for it are there (Debian: musl-tools).
STATIC_TARGET := $(shell uname -m)-unknown-linux-musl
STATIC ?= $(if $(and $(shell command -v musl-gcc),$(shell rustup target list --installed 2>/dev/null | grep -x $(STATIC_TARGET))),1)
static: deps-build ## the release binary without dynamic libraries, target/TARGET/release/kelson (wants rustup target add $(STATIC_TARGET), musl-tools)
	scripts/compile --target $(STATIC_TARGET) kelson

RELEASED = $(or $(BINARY),$(if $(STATIC),target/$(STATIC_TARGET)/release/kelson,target/release/kelson))
release: $(if $(BINARY),,$(if $(STATIC),static,build)) ## archive, .deb, list of crates and checksums in target/dist, of a static binary where the target is installed; BINARY= takes another, IMAGES_DIR= and RUNTIME_DIR= make an air-gap archive
	scripts/release $(RELEASED) target/dist

envtest: build ## assets for test environments in target/envtest/bin, their archive and index beside it; URL says where that will be served
	scripts/envtest assets target/release/kelson target/envtest/bin
	scripts/envtest archive target/envtest/bin target/envtest $(URL)
	@echo "export KUBEBUILDER_ASSETS=$(CURDIR)/target/envtest/bin"

# Without incremental compilation: it only helps the next build of the same tree.
test: export CARGO_INCREMENTAL = 0
test: deps-test ## everything the gate runs: lints, unit and component tests, the black-box suite
	@scripts/deps list
	@for step in lint unit blackbox; do $(MAKE) --no-print-directory $$step || exit 1; done

# The one build of lint, unit and blackbox: libraries, tests and the debug binary with one set of features, each compiled once.
# clippy-driver is the compiler with clippy's lints in it, so the lints take no pass of their own: on kelson-cel it used 11.2 s of a
# processor where the compiler alone used 9.3 s and a pass of `cargo clippy` 43.6 s more. It leaves out what the compiler checks of
# raw pointers at run time and optimizes no MIR, in workspace crates alone: none of them reads or writes through a raw pointer.
lint unit blackbox lint-steps unit-steps blackbox-steps images workspace test-clients test-install test-vm: export RUSTC_WORKSPACE_WRAPPER = clippy-driver
lint unit blackbox lint-steps unit-steps blackbox-steps images workspace test-clients test-install test-vm: export CLIPPY_ARGS = --deny__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__
workspace: deps-build
	cargo build --locked --workspace --all-targets

lint: ## format, compiler's and clippy's warnings, licences and versions of dependencies
	@scripts/step lint "most of it is the one build" $(MAKE) --no-print-directory lint-steps

unit: ## pure and component tests of every crate
	@scripts/step unit "pure and component tests, the simulation" $(MAKE) --no-print-directory unit-steps

blackbox: ## the black-box suite against clusters it starts (SUBJECT=kelson), with real kubectl and containerd
	@scripts/step blackbox "the slowest tests are listed at its end" $(MAKE) --no-print-directory blackbox-steps

lint-steps: workspace
	cargo fmt --all --check
	cargo fmt --manifest-path tests/kube/Cargo.toml --check
	target/debug/xtask lint
	target/debug/xtask units

unit-steps: deps-test workspace
	cargo test --locked --workspace --exclude kelson-blackbox

blackbox-steps: deps-test images
	cargo test --locked --package kelson-blackbox

test-clients: deps-test clients images ## Helm, and controllers on controller-runtime and kube, against a cluster it starts (wants Go 1.26)
	KELSON_CLIENTS=1 cargo test --locked --package kelson-blackbox -- helm:: clients::

test-install: deps-test images ## the script and a .deb on a fresh Debian (wants debootstrap, root; the Debian is kept in .cache): install, serve, upgrade, uninstall
	KELSON_INSTALLATIONS=1 cargo test --locked --package kelson-blackbox -- releases::

# A release binary: a debug one takes minutes to start where the CPU is emulated. Two tests side by side: a guest waits for timers for half of the
# time. VM_WORKERS=1 is for a busy machine.
test-vm: deps-test release-images ## a node in virtual machines with Debian 13, systemd and cgroup v2 (wants root, x86-64; the image is kept in .cache/vm); CASES=oom,service runs a part
	@scripts/deps vm
	scripts/vm image
	@mkdir -p .cache/vm/images
	BUSYBOX=.cache/vm/busybox target/release/kelson-bench image kelson.local/test/busybox:1 .cache/vm/images/busybox.tar
	KELSON_VM=1 KELSON_VM_CASES=$(CASES) KELSON_WORKERS=$(VM_WORKERS) KELSON_BIN=$(CURDIR)/target/release/kelson cargo test --locked --package kelson-blackbox -- vm::

clients: # what the above runs, from other people's modules
	cargo build --locked --manifest-path tests/kube/Cargo.toml --target-dir target/kube
	cd tests/go && $(GO) build -buildvcs=false -trimpath -ldflags="-s -w" -o ../../target/clients/ ./controller helm.sh/helm/v4/cmd/helm

portable: ## check that the control plane compiles for macOS and Windows: those of SYSTEMS whose target is installed (CONTRIBUTING)
	@for system in $(SYSTEMS); do \
	  if rustup target list --installed | grep -qx $$system; then \
	    echo "$$system"; cargo check --locked --target $$system --package kelson --package kelson-testing || exit 1; \
	  else echo "$$system: left out, rustup target add $$system"; fi; \
	done

fuzz: deps-build ## each fuzz target for TIME (60s), or those in TARGETS
	TIME=$(or $(TIME),60s) scripts/fuzz $(TARGETS)

.PHONY: examples bench-page
examples: workspace ## the programs in examples/ against a debug build (wants Go 1.26, Java 17 and Maven)
	GO=$(GO) scripts/examples target/debug/kelson

torture: deps-build ## N (1000) kill -9 and as many power cuts of the store under load, each history checked; N flipped bits in each file of store and etcd
	KELSON_KILLS=$(or $(N),1000) KELSON_CUTS=$(or $(N),1000) KELSON_DAMAGES=$(or $(N),1000) cargo test --locked --package kelson-store --test suite -- kills:: power:: damaged_files:: --nocapture
	KELSON_DAMAGES=$(or $(N),1000) cargo test --locked --package kelson-etcd --lib -- one_fault --nocapture

torture-ha: deps-test ## ROUNDS (500) of faults of three servers on etcd (ETCD=managed: members of theirs), for at most SECONDS (3600), from SEED (1) on; each history checked; needs root
	KELSON_HA_ROUNDS=$(or $(ROUNDS),500) KELSON_HA_SECONDS=$(or $(SECONDS),3600) KELSON_HA_SEED=$(or $(SEED),1) KELSON_HA_ETCD=$(ETCD) \
		cargo test --locked --package kelson-blackbox -- availability::

torture-streams: deps-test release-images ## SIZE_MB (1024) through exec, cp and port-forward, ROUNDS (50) times, while connections are reset; needs root
	bench/streams

bench: deps-test release-images ## start, rest, create, get, list, schedule, pull credentials, admit, authorize; PEER_URL and PEER_TOKEN add a peer to the run
	bench/run
	bench/scale
	bench/admission
	bench/overload
	bench/envtest
	@if [ $$(id -u) -eq 0 ]; then bench/node && bench/kubelet && bench/proxy && target/release/kelson-bench network policies && \
		target/release/kelson-bench network services; \
		else echo "bench/node, bench/kubelet, bench/proxy, network: left out, they need root"; fi
	@for program in rbac decoders credentials admission clusters dns; do echo "== $$program"; target/release/kelson-bench $$program || exit 1; done

bench-page: deps-test release-images ## a page with tables and plots (SVG) of `make bench`, in target/bench-page; OUTPUT takes the output of an earlier run, PEER names the peer
	@mkdir -p target/bench-page
	$(if $(OUTPUT),cp $(OUTPUT) target/bench-page/output.txt,set -o pipefail; $(MAKE) --no-print-directory bench | tee target/bench-page/output.txt)
	target/release/kelson-bench page target/bench-page/output.txt target/bench-page

definitions: ## generated tables of RELEASE (1.36.2) of Kubernetes, from its published modules and the tables in facts/
	$(GO) mod download $(DEFINITIONS:%=k8s.io/%@v$(RELEASE:1.%=0.%))
	cargo xtask definitions --sources $$($(GO) env GOMODCACHE) --release $(RELEASE)

BUSYBOX_IMAGE = image kelson.local/test/busybox:1 .cache/images/busybox.tar
images: deps-test workspace ## the test images as tars under .cache/images
	@mkdir -p .cache/images
	target/debug/kelson-bench $(BUSYBOX_IMAGE)

# The same, and the release binary, from one build of both.
release-images: deps-test
	scripts/compile kelson kelson-bench
	@mkdir -p .cache/images
	target/release/kelson-bench $(BUSYBOX_IMAGE)

deps: deps-build deps-run deps-test ## install what building, running and testing need (Debian, root)

deps-build:
	@scripts/deps build
deps-run: deps-build
	@scripts/deps run
deps-test: deps-run
	@scripts/deps test

clean: ## what the build made
	cargo clean
