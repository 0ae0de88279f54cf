//! A machine's disk: a file system in a file, which can be slow, stuck, full or lost.
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::machine::sh;

/// The size of the file system in MiB.
const SIZE_MB: u32 = 400;
/// The file that fills it.
const FILLER: &str = "filler";

/// A mounted file system.
pub struct Disk {
    dir: PathBuf,
}

impl Disk {
    /// Creates and mounts it at a new directory.
    pub fn mount(dir: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let (image, at) = (dir.with_extension("image"), dir.display());
        let made = Self { dir: dir.to_owned() };
        sh(&format!(
            "truncate -s {SIZE_MB}M {image} && mkfs.ext4 -q -m 0 {image} && mount -o loop {image} {at}",
            image = image.display()
        ))?;
        Ok(made)
    }

    /// Blocks all writes, and each process that writes, until [`Disk::thaw`].
    pub fn freeze(&self) -> anyhow::Result<()> {
        sh(&format!("fsfreeze -f {}", self.dir.display())).map(drop)
    }

    /// Reverts [`Disk::freeze`], if it is frozen.
    pub fn thaw(&self) {
        let _ = Command::new("fsfreeze").arg("-u").arg(&self.dir).stderr(Stdio::null()).status();
    }

    /// Leaves no room for further writes.
    pub fn fill(&self) -> anyhow::Result<()> {
        let mut filler = File::create(self.dir.join(FILLER))?;
        for bytes in [1 << 20, 4096] {
            let block = vec![0; bytes];
            while filler.write_all(&block).is_ok() {}
        }
        Ok(())
    }

    /// Ends the effect of [`Disk::fill`].
    pub fn empty(&self) {
        let _ = std::fs::remove_file(self.dir.join(FILLER));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.thaw();
        let _ = Command::new("umount").arg("-l").arg(&self.dir).stderr(Stdio::null()).status();
    }
}
