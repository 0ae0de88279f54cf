//! RuntimeClasses whose containers were found below their pods' cgroups.
use std::collections::BTreeSet;

use parking_lot::Mutex;

/// Maximum number of RuntimeClasses whose result is remembered.
const CLASSES_MAX: usize = 64;

/// The names of the RuntimeClasses; the empty one is that of pods without a class.
#[derive(Debug, Default)]
pub(super) struct CheckedClasses(Mutex<BTreeSet<String>>);

impl CheckedClasses {
    /// Returns whether the containers of this class were found below their pods' cgroups.
    pub fn contains(&self, class: &str) -> bool {
        self.0.lock().contains(class)
    }

    /// Remembers the class, if there is room.
    pub fn add(&self, class: &str) {
        let mut checked = self.0.lock();
        if checked.len() < CLASSES_MAX {
            checked.insert(class.to_owned());
        }
    }
}
