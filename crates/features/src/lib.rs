//! One set of features of third-party crates for every command: `cargo test -p X` builds them as
//! `cargo build --workspace --all-targets` does, so that neither has to build again what the other has built.
//!
//! There is no code here. Every crate takes this one as a dev-dependency, and nothing that ships depends on it: the released binary
//! has the features that its own crates ask for, without tokio's `test-util`.
