//! Releases the memory pages of the program's own file.
//!
//! Tens of megabytes of code and constants run only once, at startup or for a rare request. The kernel keeps each
//! touched page of the file mapped in the process, and counts it as resident until memory is short. A process that
//! releases these pages keeps only its working set. The pages stay in the kernel's page cache, so a page that is
//! needed again is mapped in a microsecond, sixteen at a time, without disk access.
#![allow(clippy::disallowed_methods, reason = "blocking: the kernel's memory, no disk")]
use std::io;

/// The mappings of the program's file that the process never writes to: code and constants.
#[derive(Debug, Default)]
pub struct ProgramPages(Vec<Range>);

/// The start address and the length of a mapping in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    start: usize,
    length: usize,
}

impl ProgramPages {
    /// Finds the mappings, which do not change during the life of the process.
    ///
    /// # Errors
    /// Returns the error of the operating system. Only Linux reports mappings.
    pub fn find() -> io::Result<Self> {
        let program = std::env::current_exe()?;
        let ranges = unwritten(&std::fs::read_to_string("/proc/self/smaps")?, &program.to_string_lossy());
        Ok(Self(ranges))
    }

    /// Releases the pages. Running code continues: the kernel maps the current page again.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn give_back(&self) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        for range in &self.0 {
            // SAFETY: the range is a private mapping of this program's file without write permission, in which no page
            // differed from the file. A released page is read from the file again, so its content does not change and
            // references into it stay valid.
            #[allow(unsafe_code)]
            unsafe {
                rustix::mm::madvise(range.start as *mut _, range.length, rustix::mm::Advice::LinuxDontNeed)?;
            }
        }
        Ok(())
    }
}

/// Returns the mappings of a program without write permission whose pages all equal the file. The loader writes to
/// some constants (relocations) before it removes write permission. Those pages exist only in memory and would be
/// lost.
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

/// Parses a line that begins a mapping, such as `55d0c0000000-55d0c1453000 r--p 00000000 fe:00 123  /usr/bin/kelson`.
/// Returns the range, and whether the mapping is private and read-only.
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

    /// Returns the resident size of the program's mappings in kilobytes.
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
