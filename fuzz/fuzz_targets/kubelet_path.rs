//! See `kubelet_path` in the targets.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kelson_fuzz_targets::run("kubelet_path", data));
