#!/bin/bash
# Rust 1.95.0 (cargo, rustc, llvm-profdata): profile-guided optimization with `-C profile-generate` and `-C profile-use`.
# What one would guess: the counts of a profile belong to source code. As long as a crate does not change, they are used, or the compiler
# warns.
# What happens: a new version number of a dependency, whose code is the same, leaves the crate itself without counts, and nothing warns.
# Counts are stored by the mangled names of functions. Those contain a hash that cargo makes of package versions, features and all
# dependencies, so the counts of functions that nobody touched are for names that do not exist any more.
# Who is hit: releases that keep a profile, or cache it between builds: after `cargo update` they are plain builds.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
rustup -q toolchain install 1.95.0 --profile minimal --component llvm-tools --no-self-update > /dev/null 2>&1
rust=$(rustup run 1.95.0 rustc --print sysroot)
merge=$(echo "$rust"/lib/rustlib/*/bin/llvm-profdata)
mkdir -p app/src dep/src
cat > dep/Cargo.toml <<'TOML'
[package]
name = "dep"
version = "0.1.0"
edition = "2021"
TOML
echo 'pub const LIMIT: u64 = 1000;' > dep/src/lib.rs
cat > app/Cargo.toml <<'TOML'
[package]
name = "app"
version = "0.1.0"
edition = "2021"

[dependencies]
dep = { path = "../dep" }
TOML
cat > app/src/main.rs <<'RS'
#[inline(never)]
fn collatz(mut n: u64) -> u64 {
    let mut steps = 0;
    while n != 1 {
        n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
        steps += 1;
    }
    steps
}

fn main() {
    println!("{}", (1..dep::LIMIT).map(collatz).max().unwrap());
}
RS
cd app
unset CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_RUSTFLAGS RUSTC_WRAPPER
RUSTFLAGS="-Cprofile-generate=$dir/raw" cargo +1.95.0 -q run --release --offline --target-dir "$dir/counting" > /dev/null
"$merge" merge -o "$dir/counts" "$dir"/raw/*.profraw

build() { # NAME: prints whether the function has counts in LLVM's code, and the number of warnings
	RUSTFLAGS="-Cprofile-use=$dir/counts" cargo +1.95.0 rustc --release --offline --target-dir "$dir/$1" -- --emit=llvm-ir 2> "$dir/$1.log"
	code=$(grep -h '^define.*collatz' "$dir/$1"/release/deps/app-*.ll)
	case $code in *'!prof'*) counts="has counts" ;; *) counts="has no counts" ;; esac
	echo "dep $1: collatz $counts, $(grep -ci warning "$dir/$1.log" || true) warnings"
}

{
	build 0.1.0
	sed -i 's/0\.1\.0/0.1.1/' ../dep/Cargo.toml
	build 0.1.1
} > "$dir/seen"
cat "$dir/seen"
cat > "$dir/expected" <<'SEEN'
dep 0.1.0: collatz has counts, 0 warnings
dep 0.1.1: collatz has no counts, 0 warnings
SEEN
diff "$dir/expected" "$dir/seen" && echo "as expected"
