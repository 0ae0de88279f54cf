//! See `rules` in the targets.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kelson_fuzz_targets::run("rules", data));
