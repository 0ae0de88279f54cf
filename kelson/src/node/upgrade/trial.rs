//! The journal of an upgrade, and what a starting server or agent makes of it. From just before a new version takes the installed
//! name until it has shown that it works, the journal is beside the program. The command `kelson upgrade` holds its lock and decides.
//! When the command is killed, the program's own starts decide: a new version that did not get ready in [`STARTS_MAX`] starts is
//! replaced by the previous one, and one that gets ready removes the journal. So no moment leaves a version installed that never works.
#![allow(
    clippy::disallowed_methods,
    reason = "blocking: before anything is started, or by a command that does nothing else"
)]

use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};

use super::program::{Program, remove};

/// The number of starts that a new version may take without getting ready while no command watches it.
pub const STARTS_MAX: usize = 3;
/// The time that one start may take while no command watches it; the service manager begins the next start then. Enough for a large store that
/// is converted, and for image archives on a slow board.
pub const READY_MAX: Duration = Duration::from_secs(15 * 60);
/// The head of a journal, and the line that each start appends.
const HEAD: &str = "kelson upgrade in progress\n";
const START: &str = "start\n";

/// The journal of a command that runs. The lock ends with it, however that ends.
pub struct Journal {
    _lock: File,
}

impl Journal {
    /// Writes a new one, locked from its first byte on.
    ///
    /// # Errors
    /// Another upgrade of the program runs; the system's.
    pub fn begin(program: &Program) -> anyhow::Result<Self> {
        let journal = program.journal();
        if let Some(left) = open(&journal)?
            && !lock(&left)?
        {
            bail!("another kelson upgrade of {} is running", program.file().display());
        }
        let temporary = program.beside("upgrade.new");
        let written = || -> io::Result<File> {
            remove(&temporary)?;
            let mut file = File::options().append(true).create_new(true).open(&temporary)?;
            file.lock()?;
            file.write_all(HEAD.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&temporary, &journal)?;
            program.sync()?;
            Ok(file)
        };
        Ok(Self { _lock: written().with_context(|| format!("write {}", journal.display()))? })
    }

    /// The upgrade is over: the installed version works, or the previous one has the name again.
    ///
    /// # Errors
    /// The system's.
    pub fn end(self, program: &Program) -> io::Result<()> {
        remove(&program.journal())?;
        program.sync()
    }

    /// Leaves the decision to the program's starts.
    pub fn leave(self) {}
}

/// The decision at the start of a server or agent.
#[derive(Debug, PartialEq, Eq)]
pub enum Decision {
    /// The start continues.
    Continue,
    /// The previous version has the installed name again, and must be started instead.
    Returned,
}

/// Decides as a server or agent starts, before anything else: nothing to do but where an upgrade is in progress.
///
/// # Errors
/// The system's.
pub fn at_start(program: &Program) -> io::Result<Decision> {
    let Some(mut journal) = open(&program.journal())? else { return Ok(Decision::Continue) };
    if !lock(&journal)? {
        return Ok(Decision::Continue);
    }
    if program.is_previous() {
        remove(&program.journal())?;
        return Ok(Decision::Continue);
    }
    let mut text = String::new();
    journal.read_to_string(&mut text)?;
    if text.matches(START).count() >= STARTS_MAX {
        program.put_back()?;
        remove(&program.journal())?;
        return Ok(Decision::Returned);
    }
    journal.write_all(START.as_bytes())?;
    journal.sync_all()?;
    Ok(Decision::Continue)
}

/// A server or agent is ready: where no command watches, the upgrade is over.
///
/// # Errors
/// The system's.
pub fn at_ready(program: &Program) -> io::Result<()> {
    match open(&program.journal())? {
        Some(journal) if lock(&journal)? => remove(&program.journal()),
        _ => Ok(()),
    }
}

/// Whether a process that is not ready yet must end, so that the next start counts: an upgrade is in progress and no command watches it.
/// `None`: the upgrade is over.
///
/// # Errors
/// The system's.
pub fn is_abandoned(program: &Program) -> io::Result<Option<bool>> {
    open(&program.journal())?.map(|journal| lock(&journal)).transpose()
}

fn open(journal: &Path) -> io::Result<Option<File>> {
    match File::options().read(true).append(true).open(journal) {
        Ok(file) => Ok(Some(file)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Takes the lock; `false`: a command has it.
fn lock(journal: &File) -> io::Result<bool> {
    match journal.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A directory with an installed program and a new one elsewhere.
    fn installed(new: &str) -> (tempfile::TempDir, Program, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("bin")).unwrap();
        let (file, from) = (dir.path().join("bin/kelson"), dir.path().join("new"));
        fs::write(&file, "old works").unwrap();
        fs::write(&from, new).unwrap();
        (dir, Program::new(&file), from)
    }

    /// The steps of an upgrade until the service is restarted, cut off by kill -9 after `count` of them.
    fn killed_after(count: usize, program: &Program, from: &Path) {
        let mut journal = None;
        let steps: [&mut dyn FnMut(); 4] = [
            &mut || program.stage(from).unwrap(),
            &mut || program.keep().unwrap(),
            &mut || journal = Some(Journal::begin(program).unwrap()),
            &mut || program.swap().unwrap(),
        ];
        steps.into_iter().take(count).for_each(|step| step());
        drop(journal);
    }

    /// Starts the program until it works, like a service manager. Returns the working program and the number of failed starts.
    fn served(program: &Program) -> (String, usize) {
        for failed in 0..10 {
            // The program that starts looks first; it is exchanged for the previous one if that is decided.
            at_start(program).unwrap();
            let text = fs::read_to_string(program.file()).unwrap();
            if text.ends_with("works") {
                at_ready(program).unwrap();
                return (text, failed);
            }
        }
        panic!("no start has worked");
    }

    #[test]
    fn a_kill_between_any_two_steps_leaves_an_installation_that_works() {
        for count in 0..=4 {
            for (new, failures) in [("new works", 0), ("new fails", STARTS_MAX)] {
                let (_dir, program, from) = installed(new);
                killed_after(count, &program, &from);
                let wanted = match (count, new) {
                    (4, "new works") => ("new works".to_owned(), 0),
                    (4, _) => ("old works".to_owned(), failures),
                    _ => ("old works".to_owned(), 0),
                };
                assert_eq!(served(&program), wanted, "{new} after {count} steps");
                assert!(!program.journal().exists(), "{new} after {count} steps: the upgrade is over");
                // The next upgrade is not in the way of what is left.
                fs::write(&from, "next works").unwrap();
                killed_after(4, &program, &from);
                assert_eq!(served(&program), ("next works".to_owned(), 0));
            }
        }
    }

    #[test]
    fn a_kill_after_the_return_leaves_the_previous_version() {
        let (_dir, program, from) = installed("new fails");
        killed_after(4, &program, &from);
        program.put_back().unwrap();
        assert_eq!(served(&program), ("old works".to_owned(), 0));
        assert!(!program.journal().exists() && program.previous().exists());
        // Both names have one file now, and a second upgrade leaves nothing else beside them.
        program.keep().unwrap();
        program.put_back().unwrap();
        let entries = fs::read_dir(program.file().parent().unwrap()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["kelson", "kelson.previous"]);
    }

    #[test]
    fn the_command_decides_as_long_as_it_runs() {
        let (_dir, program, from) = installed("new fails");
        program.stage(&from).unwrap();
        program.keep().unwrap();
        let journal = Journal::begin(&program).unwrap();
        program.swap().unwrap();
        for _ in 0..=STARTS_MAX {
            assert_eq!(at_start(&program).unwrap(), Decision::Continue);
        }
        at_ready(&program).unwrap();
        assert!(program.journal().exists(), "it is not for the server to end it");
        let second = Journal::begin(&program).err().unwrap().to_string();
        assert!(second.contains("another kelson upgrade"), "{second}");
        journal.end(&program).unwrap();
        assert!(!program.journal().exists());
        assert_eq!(at_start(&program).unwrap(), Decision::Continue);
    }

    #[test]
    fn a_start_that_hangs_ends_only_where_nothing_else_decides() {
        let (_dir, program, from) = installed("new hangs");
        assert_eq!(is_abandoned(&program).unwrap(), None);
        program.stage(&from).unwrap();
        program.keep().unwrap();
        let journal = Journal::begin(&program).unwrap();
        program.swap().unwrap();
        at_start(&program).unwrap();
        assert_eq!(is_abandoned(&program).unwrap(), Some(false), "the command decides");
        journal.leave();
        for _ in 0..STARTS_MAX {
            assert_eq!(is_abandoned(&program).unwrap(), Some(true));
            assert_eq!(at_start(&program).unwrap(), Decision::Continue);
        }
        assert_eq!(at_start(&program).unwrap(), Decision::Returned);
        assert_eq!(is_abandoned(&program).unwrap(), None);
    }

    #[test]
    fn starts_of_a_day_long_after_are_not_counted() {
        let (_dir, program, from) = installed("new works");
        killed_after(4, &program, &from);
        served(&program);
        fs::write(program.file(), "new fails").unwrap();
        for _ in 0..=STARTS_MAX {
            assert_eq!(at_start(&program).unwrap(), Decision::Continue, "it once got ready");
        }
    }
}
