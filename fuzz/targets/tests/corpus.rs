//! The corpus of the fuzzer, replayed: every input as it is, and changed a little in the same ways each time. On a stack as small as
//! a worker's, so that nesting that would end the process ends the test.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::PathBuf;

use kelson_fuzz_targets::{TARGETS, run};

/// The stack size of the runtime's threads.
const STACK_BYTES: usize = 2 << 20;
/// Changed forms of each input.
const CHANGES: u64 = 48;

struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below.max(1) as u64) as usize
    }

    fn change(&mut self, input: &[u8]) -> Vec<u8> {
        let mut out = input.to_vec();
        for _ in 0..1 + self.roll(4) {
            let at = self.roll(out.len() + 1);
            match self.roll(5) {
                0 if at < out.len() => out[at] ^= 1 << self.roll(8),
                1 => out.truncate(at),
                2 if at < out.len() => drop(out.drain(at..(at + self.roll(16)).min(out.len()))),
                3 => {
                    let from = self.roll(input.len());
                    let part = input[from..(from + self.roll(32)).min(input.len())].to_vec();
                    out.splice(at..at, part);
                }
                _ => {
                    const ODD: &[&[u8]] = &[
                        b"\"",
                        b"\0",
                        b"[[[[",
                        b"}",
                        b"-",
                        b"9999999999999999999",
                        b"\xff\xff",
                        b"\xed\xa0\x80",
                        b"&a *a",
                    ];
                    out.splice(at..at, ODD[self.roll(ODD.len())].iter().copied());
                }
            }
        }
        out
    }
}

fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../corpus").join(target);
    let mut files: Vec<_> = std::fs::read_dir(&dir)
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap()))
        .collect();
    files.sort();
    files
}

#[test]
fn the_corpus_is_survived() {
    let threads = TARGETS.iter().map(|(name, _)| {
        let replay = move || {
            let corpus = corpus(name);
            assert!(!corpus.is_empty(), "{name} has no corpus");
            for (file, input) in corpus {
                println!("{name}/{file}");
                run(name, &input);
                for seed in 1..=CHANGES {
                    let changed = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).change(&input);
                    let result = std::panic::catch_unwind(|| run(name, &changed));
                    assert!(result.is_ok(), "{name}/{file} changed by {seed}: {:?}", String::from_utf8_lossy(&changed));
                }
            }
        };
        std::thread::Builder::new().name((*name).to_owned()).stack_size(STACK_BYTES).spawn(replay).unwrap()
    });
    let threads: Vec<_> = threads.collect();
    for thread in threads {
        let name = thread.thread().name().unwrap_or_default().to_owned();
        assert!(thread.join().is_ok(), "{name} failed");
    }
}
