//! The indexes of the shared informers, in addition to the objects' names.
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use kelson_client::Object;
use kelson_meta::ObjectKey;

/// A bucket of the index.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum IndexKey {
    /// All objects of a namespace.
    Namespace(String),
    /// All objects whose controller has this UID.
    Controller(u128),
    /// Objects of a namespace without a controller.
    Orphans(String),
    /// Objects bound to a node.
    Node(String),
    /// Pods that use this claim for devices.
    DeviceClaim(ObjectKey),
    /// Pods that have a claim made from this template.
    DeviceTemplate(ObjectKey),
}

/// A UID as a number: UIDs are UUIDs; anything else is hashed.
pub fn uid_number(uid: &str) -> u128 {
    let mut n: u128 = 0;
    let mut digits = 0;
    for b in uid.bytes().filter(|b| *b != b'-') {
        match char::from(b).to_digit(16) {
            Some(d) if digits < 32 => {
                n = (n << 4) | u128::from(d);
                digits += 1;
            }
            _ => {
                digits = 0;
                break;
            }
        }
    }
    if digits == 32 {
        return n;
    }
    let mut h = DefaultHasher::new();
    uid.hash(&mut h);
    u128::from(h.finish())
}

/// An object with index keys.
pub trait Indexed: Object {
    /// Adds the buckets of this object to `into`.
    fn index(&self, into: &mut Vec<IndexKey>) {
        let _ = into;
    }
}

/// Adds the buckets of a namespaced object that may have a controller.
pub(crate) fn index_owned(meta: &kelson_meta::ObjectMeta, into: &mut Vec<IndexKey>) {
    into.push(match meta.controller() {
        Some(owner) => IndexKey::Controller(uid_number(&owner.uid)),
        None => IndexKey::Orphans(meta.namespace.clone()),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uid_numbers_differ_and_hold() {
        let a = uid_number("123e4567-e89b-12d3-a456-426614174000");
        assert_eq!(a, 0x123e_4567_e89b_12d3_a456_4266_1417_4000);
        assert_ne!(uid_number("u1"), uid_number("u2"));
        assert_eq!(uid_number("u1"), uid_number("u1"));
        assert_ne!(uid_number("123e4567-e89b-12d3-a456-42661417400g"), a);
    }
}
