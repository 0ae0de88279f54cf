//! The pages of the program's own file that this process has mapped, and giving them back.
//!
//! Tens of megabytes of code and constants run once, at the start or for a request that does not come again. The kernel leaves
//! each page of the file in the process that touched it, and counts it there, until memory is short. A process that gives them
//! back holds what it works with: the kernel keeps the file's pages in its cache for as long as it likes, and a page that is
//! needed again is mapped from there in a microsecond, sixteen at a time, without a disk.
#![allow(clippy::disallowed_methods, reason = "blocking: the kernel's memory, no disk")]
use std::io;

/// What this process has mapped of its program and never writes to: code and constants.
#[derive(Debug, Default)]
pub struct ProgramPages(Vec<Range>);

/// A mapping: where it begins and how long it is, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    start: usize,
    length: usize,
}

impl ProgramPages {
    /// Finds the mappings, which stay as they are for the life of the process.
    ///
    /// # Errors
    /// The system's, where it does not say what is mapped: Linux alone does.
    pub fn find() -> io::Result<Self> {
        let program = std::env::current_exe()?;
        let ranges = unwritten(&std::fs::read_to_string("/proc/self/smaps")?, &program.to_string_lossy());
        Ok(Self(ranges))
    }

    /// Gives the pages back. What runs meanwhile goes on: it maps anew the page on which it is.
    ///
    /// # Errors
    /// The system's.
    pub fn give_back(&self) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        for range in &self.0 {
            // SAFETY: the range is a private mapping of this program's file without write permission, in which no page
            // differed from the file when it was found. A page of it that is touched again is read from the file, so its
            // content is what it was, and no reference into it becomes invalid.
            #[allow(unsafe_code)]
            unsafe {
                rustix::mm::madvise(range.start as *mut _, range.length, rustix::mm::Advice::LinuxDontNeed)?;
            }
        }
        Ok(())
    }
}

/// The mappings of a program without write permission in which every page is as in the file. The loader writes to some constants
/// (relocations) before it takes the permission away: those have pages of their own, which would be lost.
fn unwritten(smaps: &str, program: &str) -> Vec<Range> {
    let mut ranges = Vec::new();
    let mut last = None;
    for line in smaps.lines() {
        if let Some(mapping) = mapping(line) {
            last = mapping.1.then_some(mapping.0).filter(|_| line.ends_with(program));
        } else if line.strip_prefix("Anonymous:").is_some_and(|of_its_own| of_its_own.trim() == "0 kB") {
            ranges.extend(last.take());
        }
    }
    ranges
}

/// A line that begins a mapping, as `55d0c0000000-55d0c1453000 r--p 00000000 fe:00 123  /usr/bin/kelson`: its range, and whether
/// it is private and cannot be written to.
fn mapping(line: &str) -> Option<(Range, bool)> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let [start, end] = [start, end].map(|address| usize::from_str_radix(address, 16).ok());
    let permissions = rest.split(' ').next()?;
    let range = Range { start: start?, length: end?.checked_sub(start?)? };
    Some((range, matches!(permissions, "r--p" | "r-xp" | "--xp")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_that_are_as_in_the_file_are_given_back() {
        let block =
            |head: &str, own: u32| format!("{head}\nSize: 4 kB\nRss: 4 kB\nAnonymous: {own:>14} kB\nVmFlags: rd mr\n");
        let smaps = [
            block("55d0c0000000-55d0c0002000 r--p 00000000 fe:00 123                        /usr/bin/kelson", 0),
            block("55d0c0002000-55d0c0003000 r-xp 00002000 fe:00 123                        /usr/bin/kelson", 0),
            block("55d0c0003000-55d0c0004000 r--p 00003000 fe:00 123                        /usr/bin/kelson", 4),
            block("55d0c0004000-55d0c0005000 rw-p 00004000 fe:00 123                        /usr/bin/kelson", 0),
            block("55d0c0005000-55d0c0006000 r--s 00004000 fe:00 123                        /usr/bin/kelson", 0),
            block("55d0c0006000-55d0c0007000 r--p 00000000 00:00 0 ", 0),
            block("7f00c0000000-7f00c0001000 r-xp 00000000 fe:00 124                        /usr/lib/libc.so.6", 0),
        ]
        .concat();
        let want =
            [Range { start: 0x55d0_c000_0000, length: 0x2000 }, Range { start: 0x55d0_c000_2000, length: 0x1000 }];
        assert_eq!(unwritten(&smaps, "/usr/bin/kelson"), want);
        assert_eq!(unwritten(&smaps, "/usr/bin/other"), []);
        assert_eq!(unwritten("no mapping\nAnonymous: 0 kB\n", "mapping"), []);
    }

    /// How much of the program's mappings is resident.
    #[cfg(target_os = "linux")]
    fn resident_kb(pages: &ProgramPages) -> usize {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        let mut sum = 0;
        for line in smaps.lines() {
            if let Some((range, _)) = mapping(line) {
                inside = pages.0.contains(&range);
            } else if let Some(kb) = line.strip_prefix("Rss:").filter(|_| inside) {
                sum += kb.trim().trim_end_matches(" kB").parse::<usize>().unwrap();
            }
        }
        sum
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_program_that_gave_its_pages_back_runs_on() {
        static WORDS: [&str; 3] = ["kept", "in", "constants"];
        let pages = ProgramPages::find().unwrap();
        assert!(pages.0.len() >= 2, "{pages:?}");
        let before = resident_kb(&pages);
        pages.give_back().unwrap();
        assert_eq!(WORDS.join(" "), "kept in constants");
        let after = resident_kb(&pages);
        assert!(after < before, "{after} of {before} kB");
        let other = std::thread::spawn(|| WORDS.len());
        assert_eq!(other.join().unwrap(), 3);
    }
}
