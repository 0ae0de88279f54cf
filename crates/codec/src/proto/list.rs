//! Builds a list document from encoded items: header, a prefix before each item, trailer. This builds no tree and encodes no item
//! again.
use super::{encode, envelope::around, wire::RevBuf};
use crate::EncodeError;
use kelson_schema::{Kind, TypeId};
use serde_json::Value;

/// The parts of a list document around its items.
#[derive(Debug)]
pub struct ListEncoder {
    header: Vec<u8>,
    items: u32,
}

impl ListEncoder {
    /// The bytes after the last item.
    pub const TRAILER: [u8; 4] = [0x1a, 0x00, 0x22, 0x00];

    /// Starts a list. `ty` is the list's type (`PodList`) and `metadata` its `ListMeta` as JSON. `lengths` are the lengths of all encoded
    /// items in order, since a protobuf document begins with its length.
    pub fn new(
        ty: TypeId,
        api_version: &str,
        kind: &str,
        metadata: &Value,
        lengths: impl IntoIterator<Item = usize>,
    ) -> Result<Self, EncodeError> {
        let items = ty.field_by_json("items").map(|f| f.number()).ok_or(EncodeError::NoProtobuf)?;
        let meta = ty.field_by_json("metadata").ok_or(EncodeError::NoProtobuf)?;
        let Kind::Struct(meta_type) = meta.ty().kind() else { return Err(EncodeError::NoProtobuf) };
        let mut head = RevBuf::with_capacity(128);
        encode::message(meta_type, Some(metadata), &mut head)?;
        head.close(meta.number(), 0);
        let tag = varint_len(tag(items) as usize);
        let total: usize = lengths.into_iter().map(|n| tag + varint_len(n) + n).sum();
        let (mut header, _) = around(api_version, kind, head.mark() + total);
        header.extend_from_slice(head.as_slice());
        Ok(Self { header, items })
    }

    /// The bytes before the first item.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// Appends the bytes before an item of this length.
    pub fn put_item_prefix(&self, length: usize, out: &mut impl Extend<u8>) {
        put_varint(tag(self.items), out);
        put_varint(length as u64, out);
    }
}

/// The number that begins a field with bytes: its number and its wire type, 2.
fn tag(number: u32) -> u64 {
    u64::from(number) << 3 | 2
}

fn put_varint(mut n: u64, out: &mut impl Extend<u8>) {
    while n > 0x7f {
        out.extend([n as u8 | 0x80]);
        n >>= 7;
    }
    out.extend([n as u8]);
}

fn varint_len(n: usize) -> usize {
    (n as u64 | 1).ilog2() as usize / 7 + 1
}

#[cfg(test)]
mod tests {
    use kelson_schema::Schema;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_header_of_a_long_list_takes_little_memory() {
        let ty = Schema::builtin().by_gvk("", "v1", "PodList").expect("the type");
        let metadata = json!({"resourceVersion": "7"});
        let list = ListEncoder::new(ty, "v1", "PodList", &metadata, [1 << 30]).expect("encodes");
        assert!(list.header.capacity() < 1024, "{}", list.header.capacity());
    }
}
