//! One source of randomness per thread, so that a seed determines everything that happens on it.
//!
//! Names, UIDs, jitter and the order of every `HashMap` come, through different crates, from one C function:
//! `getrandom`. This crate defines that function for the programs it is linked into, which are tests. On a thread with
//! a seed it returns the seed's numbers, on all others the kernel's. Components need not know that they are simulated,
//! and no use of random numbers can be overlooked.
#![allow(clippy::disallowed_methods, reason = "blocking: of tests, which wait for nothing else")]

use std::cell::Cell;
use std::fs::File;
use std::io::Read as _;

thread_local! {
    static STATE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Returns the next eight bytes of a stream (SplitMix64, by Steele, Lea and Flood).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn fill(buffer: &mut [u8]) -> std::io::Result<()> {
    let Some(mut state) = STATE.get() else { return File::open("/dev/urandom")?.read_exact(buffer) };
    for part in buffer.chunks_mut(8) {
        part.copy_from_slice(&next(&mut state).to_le_bytes()[..part.len()]);
    }
    STATE.set(Some(state));
    Ok(())
}

/// `getrandom(2)` of the C library, for the whole program.
///
/// # Safety
/// `buffer` points to `length` writable bytes, as the C function requires.
#[expect(unsafe_code, reason = "the C function's signature: a pointer and a length")]
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut u8, length: usize, _flags: u32) -> isize {
    if length == 0 {
        return 0;
    }
    // SAFETY: the caller promises that the buffer is that long and may be written.
    let buffer = unsafe { std::slice::from_raw_parts_mut(buffer, length) };
    // For a caller of the C function a negative result is a failure.
    fill(buffer).map_or(-1, |()| isize::try_from(length).unwrap_or(isize::MAX))
}

/// Runs a future on a new thread whose clock is paused and whose every random number is derived from `seed`. Blocking
/// work through `kelson_tasks` runs in order on the same thread.
pub fn run_seeded<T, F>(seed: u64, work: impl FnOnce() -> F + Send + 'static) -> T
where
    F: Future<Output = T>,
    T: Send + 'static,
{
    let run = move || {
        STATE.set(Some(seed));
        kelson_tasks::block_inline_on_this_thread();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.expect("a runtime").block_on(work())
    };
    match std::thread::Builder::new().stack_size(16 << 20).spawn(run).expect("a thread").join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::time::Duration;

    use super::*;

    fn draw(seed: u64) -> String {
        run_seeded(seed, || async {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            let order: Vec<u8> = HashMap::<u8, ()>::from_iter((0..32).map(|n| (n, ()))).into_keys().collect();
            format!(
                "{order:?} {} {:x}",
                rand::random::<u64>(),
                kelson_tasks::FILES.run(rand::random::<u32>).await.unwrap()
            )
        })
    }

    #[test]
    fn a_seed_decides_numbers_and_the_order_of_maps() {
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn a_thread_without_a_seed_has_the_kernels_numbers() {
        let (mut a, mut b) = ([0; 16], [0; 16]);
        fill(&mut a).unwrap();
        fill(&mut b).unwrap();
        assert_ne!(a, b);
    }
}
