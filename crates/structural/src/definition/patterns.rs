//! Validates that `pattern` is a regular expression.
use kelson_meta::path::{Errors, Path};

use crate::schema::pattern;

pub(super) fn check(written: &str, path: &Path<'_>, e: &mut Errors) {
    if written.is_empty() {
        return;
    }
    if let Err(why) = pattern::compile(written) {
        let why = format!("must be a valid regular expression, but isn't: error parsing regexp: {why}");
        e.invalid(&path.child("pattern"), written, why);
    }
}
