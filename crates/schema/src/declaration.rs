//! The order in which a type declares its fields, which is that of JSON, and the way to it from names that are sorted.
use std::cmp::Ordering;

use crate::generated::types::NAMES;
use crate::table::{TypeId, bytes};

impl TypeId {
    /// Where the field at a place of [`TypeId::json_fields`] stands in the declaration: JSON of the reference is in this order.
    pub fn rank(self, position: usize) -> u8 {
        NAMES[self.row().4 as usize + position].3
    }

    /// The place of a JSON name that stands at `from` or after it: for whoever has a list of names that is sorted as well, and begins each
    /// search where the last one ended. Where there is no such field, the place before which it would stand is the error.
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
