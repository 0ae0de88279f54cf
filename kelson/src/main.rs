//! The binary: parse, wire, run, exit code. No logic.
fn main() {}
