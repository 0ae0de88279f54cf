//! Children that end with their test.
use std::ops::{Deref, DerefMut};
use std::process::Child;

/// A child process that is killed and waited for when the guard is dropped, so that a test that fails half-way leaves nothing behind.
#[derive(Debug)]
pub struct ChildGuard(pub Child);

impl Deref for ChildGuard {
    type Target = Child;
    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for ChildGuard {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        // Both succeed for a child that has ended, and that was waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
