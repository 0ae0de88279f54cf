//! The installed program and the files beside it, by which one version takes another's place. Each step is one change of a name in one
//! directory, so that a complete program has the installed name at every moment:
//!
//! - `PROGRAM.new`: the new version until it takes its place.
//! - `PROGRAM.previous`: the version before, which stays.
//! - `PROGRAM.upgrade`: the journal (`trial`), from the moment before the new version takes its place until it works.
#![allow(
    clippy::disallowed_methods,
    reason = "blocking: before anything is started, or by a command that does nothing else"
)]

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use kelson_platform::files::sync_names;

/// Anyone may run it, its owner may replace it.
const MODE: u32 = 0o755;

/// A program's file, and the names beside it.
#[derive(Clone, Debug)]
pub struct Program {
    file: PathBuf,
}

impl Program {
    /// The program at a path, which is not a link.
    pub fn new(file: &Path) -> Self {
        Self { file: file.to_owned() }
    }

    /// The installed name.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The new version, until it has the installed name.
    pub fn staged(&self) -> PathBuf {
        self.beside("new")
    }

    /// The version before.
    pub fn previous(&self) -> PathBuf {
        self.beside("previous")
    }

    /// The journal of an upgrade.
    pub fn journal(&self) -> PathBuf {
        self.beside("upgrade")
    }

    /// A file with the program's name and an ending.
    pub fn beside(&self, ending: &str) -> PathBuf {
        let mut name = self.file.as_os_str().to_owned();
        name.push(".");
        name.push(ending);
        name.into()
    }

    /// Copies a new version beside the program, complete and on the disk.
    ///
    /// # Errors
    /// The system's.
    pub fn stage(&self, from: &Path) -> io::Result<()> {
        let staged = self.staged();
        remove(&staged)?;
        let mut to = File::options().write(true).create_new(true).open(&staged)?;
        io::copy(&mut File::open(from)?, &mut to)?;
        to.set_permissions(fs::Permissions::from_mode(MODE))?;
        to.sync_all()?;
        self.sync()
    }

    /// Keeps the installed version under the name of the previous one.
    ///
    /// # Errors
    /// The system's.
    pub fn keep(&self) -> io::Result<()> {
        let temporary = self.beside("keep");
        twin(&self.file, &temporary)?;
        rename(&temporary, &self.previous())?;
        self.sync()
    }

    /// Gives the staged version the installed name.
    ///
    /// # Errors
    /// The system's.
    pub fn swap(&self) -> io::Result<()> {
        rename(&self.staged(), &self.file)?;
        self.sync()
    }

    /// Gives the previous version the installed name again.
    ///
    /// # Errors
    /// The system's.
    pub fn put_back(&self) -> io::Result<()> {
        twin(&self.previous(), &self.staged())?;
        self.swap()
    }

    /// Whether the installed name has the previous version: nothing was replaced, or it was put back.
    pub fn is_previous(&self) -> bool {
        let identity = |path: &Path| fs::metadata(path).ok().map(|about| (about.dev(), about.ino()));
        identity(&self.file).is_some_and(|installed| identity(&self.previous()) == Some(installed))
    }

    /// Removes what was staged.
    ///
    /// # Errors
    /// The system's.
    pub fn discard(&self) -> io::Result<()> {
        remove(&self.staged())
    }

    /// Makes the names survive a power cut.
    ///
    /// # Errors
    /// The system's.
    pub fn sync(&self) -> io::Result<()> {
        sync_names(self.file.parent().unwrap_or(Path::new("/")))
    }
}

/// A second name for a file; a copy where the file system has no hard links.
fn twin(file: &Path, twin: &Path) -> io::Result<()> {
    remove(twin)?;
    if fs::hard_link(file, twin).is_ok() {
        return Ok(());
    }
    fs::copy(file, twin)?;
    File::open(twin)?.sync_all()
}

/// Gives a file another name, and takes the first one from it also where both are names of the same file: then the system does
/// nothing (`rename(2)`).
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    remove(from)
}

/// Removes a file that may not be there.
pub fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}
