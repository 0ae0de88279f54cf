//! Standard output of commands. A command whose reader has gone, as in `kelson image import … | head -1`, finishes its work and ends
//! without a message; `println!` would panic. Any other failure, such as a full disk, makes the command fail at its end.
use std::fmt;
use std::io::{self, Write};
use std::sync::OnceLock;

/// The first failure; nothing is written after it.
static FAILURE: OnceLock<io::Error> = OnceLock::new();

/// Prints to standard output; takes what `print!` takes.
macro_rules! out {
    ($($args:tt)*) => { $crate::output::write(format_args!($($args)*)) };
}

/// Prints a line to standard output; takes what `println!` takes.
macro_rules! outln {
    ($($args:tt)*) => { $crate::output::write(format_args!("{}\n", format_args!($($args)*))) };
}

/// Writes to standard output, unless an earlier write failed.
pub fn write(text: fmt::Arguments<'_>) {
    write_to(&mut io::stdout().lock(), text, &FAILURE);
}

fn write_to(out: &mut impl Write, text: fmt::Arguments<'_>, failure: &OnceLock<io::Error>) {
    if failure.get().is_none()
        && let Err(e) = out.write_fmt(text).and_then(|()| out.flush())
    {
        let _ = failure.set(e);
    }
}

/// Returns why not all output was written; `None` if it was, or if its reader wanted no more.
pub fn failure() -> Option<&'static io::Error> {
    FAILURE.get().filter(|e| is_failure(e))
}

fn is_failure(e: &io::Error) -> bool {
    e.kind() != io::ErrorKind::BrokenPipe
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes this many writes and fails then.
    struct ClosingReader(usize, io::ErrorKind);

    impl Write for ClosingReader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(1).ok_or(self.1)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_closed_reader_is_not_a_failure_and_a_full_disk_is_one() {
        for (kind, is_fatal) in [(io::ErrorKind::BrokenPipe, false), (io::ErrorKind::StorageFull, true)] {
            let (failure, mut reader) = (OnceLock::new(), ClosingReader(1, kind));
            write_to(&mut reader, format_args!("a"), &failure);
            assert!(failure.get().is_none());
            write_to(&mut reader, format_args!("b"), &failure);
            assert_eq!(failure.get().map(is_failure), Some(is_fatal));
            // The reader would take it, but a part of the text is missing already.
            reader.0 = 1;
            write_to(&mut reader, format_args!("c"), &failure);
            assert_eq!(reader.0, 1);
        }
    }
}
