//! The generated table's row formats. Strings are packed as `offset << 10 | length` into one pool; types of fields are
//! indices into `REFS`. No row holds a pointer, so that the table is mapped, not relocated, at start-up.

/// A struct: package, name, first field, field count, first JSON name, JSON name count, flags.
pub(crate) struct TypeRow(pub u32, pub u32, pub u16, pub u16, pub u16, pub u16, pub u8);
/// A field: name, protobuf number, flags, type, list map keys, patch merge key, default.
pub(crate) struct FieldRow(pub u32, pub u16, pub u16, pub u16, pub u32, pub u32, pub u32);
/// A JSON name of a struct (inlined structs flattened): name, field, inline field it comes through (or `u16::MAX`), place in
/// the declaration.
pub(crate) struct NameRow(pub u32, pub u16, pub u16, pub u8);
/// The allowed values of a field, or of each of its elements: field, values separated by commas. Sorted by field.
pub(crate) struct EnumRow(pub u16, pub u32);
/// A struct with exactly one member set: type, the member that names it, `member=Name` separated by commas. Sorted by type.
pub(crate) struct UnionRow(pub u16, pub u32, pub u32);
/// A type reference: tag, argument (a type or another reference).
pub(crate) struct RefRow(pub u8, pub u16);
/// A kind: group, version, kind, type.
pub(crate) struct KindRow(pub u32, pub u32, pub u32, pub u16);

/// Type flag: the type has a protobuf message.
pub(crate) const T_PROTO: u8 = 1;
/// Type flag: apply treats the whole struct as one value.
pub(crate) const T_ATOMIC: u8 = 1 << 1;

/// Field flags, in the order the generator writes them.
pub(crate) const F_POINTER: u16 = 1;
pub(crate) const F_OMITEMPTY: u16 = 1 << 1;
pub(crate) const F_OMITZERO: u16 = 1 << 2;
pub(crate) const F_INLINE: u16 = 1 << 3;
pub(crate) const F_REQUIRED: u16 = 1 << 4;
pub(crate) const F_MAP_ATOMIC: u16 = 1 << 5;
pub(crate) const F_MAP_GRANULAR: u16 = 1 << 6;
pub(crate) const F_LIST_SHIFT: u16 = 7;
pub(crate) const F_PATCH_MERGE: u16 = 1 << 9;
pub(crate) const F_PATCH_REPLACE: u16 = 1 << 10;
pub(crate) const F_PATCH_RETAIN_KEYS: u16 = 1 << 11;
pub(crate) const F_SHOWN: u16 = 1 << 12;
