//! The order in which a type declares its fields, which is that of JSON, and the way to it from names that are sorted.
use std::cmp::Ordering;

use crate::generated::types::NAMES;
use crate::table::{TypeId, bytes};

impl TypeId {
    /// Returns the rank in the declaration of the field at a position of [`TypeId::json_fields`]. Upstream's JSON has
    /// fields in this order.
    pub fn rank(self, position: usize) -> u8 {
        NAMES[self.row().4 as usize + position].3
    }

    /// Searches for a JSON name at `from` or after it, for callers with a sorted list of names, who begin each search
    /// where the last one ended. If there is no such field, the error is the position at which it would be inserted.
    pub fn position_from(self, from: usize, name: &str) -> Result<usize, usize> {
        let row = self.row();
        let names = &NAMES[row.4 as usize..(row.4 + row.5) as usize];
        for (at, n) in names.iter().enumerate().skip(from) {
            match bytes(n.0).cmp(name.as_bytes()) {
                Ordering::Less => {}
                Ordering::Equal => return Ok(at),
                Ordering::Greater => return Err(at),
            }
        }
        Err(names.len())
    }
}
