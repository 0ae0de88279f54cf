//! Typed access to the generated table: types, fields, kinds. Everything here is `Copy` and borrows static data only.
use crate::{
    generated::types::{ENUMS, FIELDS, KINDS, NAMES, POOL, REFS, TYPES, UNIONS},
    rows::*,
};

fn text(packed: u32) -> &'static str {
    let (start, len) = ((packed >> 10) as usize, (packed & 0x3ff) as usize);
    &POOL[start..start + len]
}

/// Returns the string's bytes without the checks of slicing, for comparisons on hot paths.
pub(crate) fn bytes(packed: u32) -> &'static [u8] {
    let (start, len) = ((packed >> 10) as usize, (packed & 0x3ff) as usize);
    &POOL.as_bytes()[start..start + len]
}

/// All built-in types of this Kubernetes version, generated from the published definitions: structs with their fields
/// in the order of their declaration, JSON and protobuf names, patch and list rules. [`Schema::builtin`] is the only
/// value. Types are small indices ([`TypeId`], [`FieldType`]) into static tables, so lookups neither allocate nor lock.
/// Codec, patch, validation and discovery read this table instead of code for each kind.
#[derive(Debug, Clone, Copy)]
pub struct Schema(());

/// A built-in struct type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TypeId(u16);

/// The type of a field, element or value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FieldType(u16);

/// The kind of a [`FieldType`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// 32-bit signed integer.
    Int32,
    /// 64-bit signed integer.
    Int64,
    /// A 64-bit floating point number.
    Double,
    /// A string, or one of a named set of strings.
    String,
    /// Bytes; base64 in JSON.
    Bytes,
    /// `meta/v1.Time`: RFC 3339, whole seconds, UTC; null when zero.
    Time,
    /// `meta/v1.MicroTime`: RFC 3339 with six digits.
    MicroTime,
    /// A `meta/v1.Duration` such as `1h2m3s`.
    Duration,
    /// `resource.Quantity`: a string in canonical form.
    Quantity,
    /// `intstr.IntOrString`.
    IntOrString,
    /// `runtime.RawExtension`: any object, carried as it is.
    RawExtension,
    /// `meta/v1.FieldsV1`: a set of field paths, as JSON.
    FieldsV1,
    /// `apiextensions.JSON`: any JSON value.
    Json,
    /// Any JSON value, with no protobuf form (table cells).
    Any,
    /// A struct, described by its own row.
    Struct(TypeId),
    /// `JSONSchemaPropsOrBool` around the schema type.
    SchemaOrBool(TypeId),
    /// `JSONSchemaPropsOrArray` around the schema type.
    SchemaOrArray(TypeId),
    /// `JSONSchemaPropsOrStringArray` around the schema type.
    SchemaOrStringArray(TypeId),
    /// A list of elements.
    List(FieldType),
    /// A map from strings.
    Map(FieldType),
    /// A list that protobuf wraps in a message (field 1, repeated), such as `ExtraValue`.
    WrappedList(FieldType),
}

/// The treatment of a list by apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ListType {
    /// Replaced as a whole; the meaning of a list with no `x-kubernetes-list-type` too.
    Atomic,
    /// A set of scalars.
    Set,
    /// Elements are identified by their map keys.
    Map,
}

/// The ownership of a struct or map by appliers, as declared by the field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapType {
    /// One value that is replaced whole.
    Atomic,
    /// Field by field.
    Granular,
}

/// Strategic merge patch's rule for a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PatchStrategy {
    /// `merge`: merge list elements (by key, or as a set of scalars) instead of replacing the list.
    pub merge: bool,
    /// `replace`: replace a map or struct instead of merging it.
    pub replace: bool,
    /// `retainKeys`: honour `$retainKeys` lists.
    pub retain_keys: bool,
}

/// One field of a struct.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Field(u16);

impl Schema {
    /// The table compiled into this program.
    pub fn builtin() -> &'static Schema {
        static BUILTIN: Schema = Schema(());
        &BUILTIN
    }

    /// The type of a kind. Kinds that every group version has (options, `Status`, `WatchEvent`, …) are found for any group.
    pub fn by_gvk(&self, group: &str, version: &str, kind: &str) -> Option<TypeId> {
        let find = |group: &str, version: &str| {
            KINDS
                .binary_search_by(|row| {
                    text(row.0).cmp(group).then_with(|| text(row.1).cmp(version)).then_with(|| text(row.2).cmp(kind))
                })
                .ok()
                .map(|at| TypeId(KINDS[at].3))
        };
        find(group, version).or_else(|| COMMON_KINDS.contains(&kind).then(|| find("meta.k8s.io", "v1"))?)
    }

    /// Like [`Schema::by_gvk`], from `apiVersion` (`v1`, `apps/v1`) and `kind`.
    pub fn by_api_version(&self, api_version: &str, kind: &str) -> Option<TypeId> {
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        self.by_gvk(group, version, kind)
    }

    /// All kinds as (group, version, kind, type), sorted.
    pub fn kinds(&self) -> impl Iterator<Item = (&'static str, &'static str, &'static str, TypeId)> {
        KINDS.iter().map(|row| (text(row.0), text(row.1), text(row.2), TypeId(row.3)))
    }

    /// Every type, in the table's order.
    pub fn types(&self) -> impl Iterator<Item = TypeId> {
        (0..TYPES.len() as u16).map(TypeId)
    }

    /// A type by package and name, such as `k8s.io/api/core/v1` and `PodSpec`.
    pub fn by_name(&self, package: &str, name: &str) -> Option<TypeId> {
        self.types().find(|t| t.name() == name && t.package() == package)
    }
}

/// Kinds of `meta/v1` that are registered in every group version.
const COMMON_KINDS: &[&str] = &[
    "APIGroup",
    "APIGroupList",
    "APIResourceList",
    "APIVersions",
    "ApplyOptions",
    "CreateOptions",
    "DeleteOptions",
    "GetOptions",
    "ListOptions",
    "PartialObjectMetadata",
    "PartialObjectMetadataList",
    "PatchOptions",
    "Status",
    "Table",
    "TableOptions",
    "UpdateOptions",
    "WatchEvent",
];

impl TypeId {
    pub(crate) fn row(self) -> &'static TypeRow {
        &TYPES[self.0 as usize]
    }

    /// The type's own name, such as `PodSpec`.
    pub fn name(self) -> &'static str {
        text(self.row().1)
    }

    /// `k8s.io/api/core/v1`.
    pub fn package(self) -> &'static str {
        text(self.row().0)
    }

    /// `io.k8s.api.core.v1.PodSpec`, the name in the published OpenAPI.
    pub fn openapi_name(self) -> String {
        let package = self.package().strip_prefix("k8s.io/").unwrap_or(self.package());
        format!("io.k8s.{}.{}", package.replace('/', "."), self.name())
    }

    /// `k8s.io.api.core.v1.PodSpec`, the protobuf message; `None` for types without one.
    pub fn proto_name(self) -> Option<String> {
        (self.row().6 & T_PROTO != 0).then(|| format!("{}.{}", self.package().replace('/', "."), self.name()))
    }

    /// Whether the type has a protobuf message.
    pub fn has_proto(self) -> bool {
        self.row().6 & T_PROTO != 0
    }

    /// Whether apply owns the struct as one value.
    pub fn atomic(self) -> bool {
        self.row().6 & T_ATOMIC != 0
    }

    /// The declared fields in order of protobuf number (those without one first); inlined structs are one field each.
    pub fn fields(self) -> impl DoubleEndedIterator<Item = Field> + ExactSizeIterator {
        let row = self.row();
        (row.2..row.2 + row.3).map(Field)
    }

    /// The fields as they are seen in JSON: inlined structs flattened, sorted by name.
    pub fn json_fields(self) -> impl DoubleEndedIterator<Item = Field> + ExactSizeIterator {
        let row = self.row();
        NAMES[row.4 as usize..(row.4 + row.5) as usize].iter().map(|n| Field(n.1))
    }

    /// The field of a JSON name, looked up through inlined structs; names are case-sensitive.
    pub fn field_by_json(self, name: &str) -> Option<Field> {
        self.position(name).map(|at| self.json_field(at))
    }

    /// The place of a JSON name in [`TypeId::json_fields`].
    pub fn position(self, name: &str) -> Option<usize> {
        let row = self.row();
        let names = &NAMES[row.4 as usize..(row.4 + row.5) as usize];
        names.binary_search_by(|n| bytes(n.0).cmp(name.as_bytes())).ok()
    }

    /// The field at a place of [`TypeId::json_fields`].
    pub fn json_field(self, position: usize) -> Field {
        let row = self.row();
        Field(NAMES[row.4 as usize + position].1)
    }

    /// Returns the member that names the one that is set (empty where none does), and the other members with the values that
    /// it has for them; for structs of which exactly one member must be set.
    pub fn union(self) -> Option<(&'static str, impl Iterator<Item = (&'static str, &'static str)>)> {
        let at = UNIONS.binary_search_by_key(&self.0, |row| row.0).ok()?;
        Some((text(UNIONS[at].1), text(UNIONS[at].2).split(',').filter_map(|member| member.split_once('='))))
    }

    /// The struct that declares a JSON field: the type itself or one inlined into it.
    pub fn declaring_type(self, position: usize) -> TypeId {
        let via = NAMES[self.row().4 as usize + position].2;
        if via == u16::MAX {
            return self;
        }
        match Field(via).ty().kind() {
            Kind::Struct(inner) => {
                let name = self.json_field(position).json();
                inner.position(name).map_or(inner, |at| inner.declaring_type(at))
            }
            _ => self,
        }
    }

    /// The declared field with this protobuf number.
    pub fn field_by_number(self, number: u32) -> Option<Field> {
        let row = self.row();
        let fields = &FIELDS[row.2 as usize..(row.2 + row.3) as usize];
        // Most messages number their fields without gaps.
        let guess = (number as usize).wrapping_sub(1);
        let at = match fields.get(guess) {
            Some(f) if u32::from(f.1) == number => guess,
            _ => fields.binary_search_by(|f| u32::from(f.1).cmp(&number)).ok()?,
        };
        (number != 0).then_some(Field(row.2 + at as u16))
    }

    /// Whether the struct carries `apiVersion` and `kind`.
    pub fn is_kind(self) -> bool {
        self.fields().any(|f| f.is_inline() && f.number() == 0)
    }
}

impl std::fmt::Debug for TypeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.package(), self.name())
    }
}

impl FieldType {
    /// Returns the kind of the type.
    pub fn kind(self) -> Kind {
        let RefRow(tag, arg) = REFS[self.0 as usize];
        match tag {
            0 => Kind::Bool,
            1 => Kind::Int32,
            2 => Kind::Int64,
            3 => Kind::Double,
            4 => Kind::String,
            5 => Kind::Bytes,
            6 => Kind::Time,
            7 => Kind::MicroTime,
            8 => Kind::Duration,
            9 => Kind::Quantity,
            10 => Kind::IntOrString,
            11 => Kind::RawExtension,
            12 => Kind::FieldsV1,
            13 => Kind::Json,
            20 => Kind::Struct(TypeId(arg)),
            21 => Kind::SchemaOrBool(TypeId(arg)),
            22 => Kind::SchemaOrArray(TypeId(arg)),
            23 => Kind::SchemaOrStringArray(TypeId(arg)),
            24 => Kind::List(FieldType(arg)),
            25 => Kind::Map(FieldType(arg)),
            26 => Kind::WrappedList(FieldType(arg)),
            _ => Kind::Any,
        }
    }
}

impl std::fmt::Debug for FieldType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.kind().fmt(f)
    }
}

impl Field {
    fn row(self) -> &'static FieldRow {
        &FIELDS[self.0 as usize]
    }

    fn flag(self, flag: u16) -> bool {
        self.row().2 & flag != 0
    }

    /// The JSON name; empty for an inlined struct.
    pub fn json(self) -> &'static str {
        text(self.row().0)
    }

    /// The protobuf number; 0 when the field does not travel in protobuf.
    pub fn number(self) -> u32 {
        u32::from(self.row().1)
    }

    /// Returns the type of the field's value.
    pub fn ty(self) -> FieldType {
        FieldType(self.row().3)
    }

    /// Whether absent and zero differ (a pointer upstream).
    pub fn is_pointer(self) -> bool {
        self.flag(F_POINTER)
    }

    /// Whether JSON leaves out the empty value (never a struct's).
    pub fn omit_empty(self) -> bool {
        self.flag(F_OMITEMPTY)
    }

    /// Whether JSON leaves out a zero struct or time.
    pub fn omit_zero(self) -> bool {
        self.flag(F_OMITZERO)
    }

    /// Whether canonical JSON shows the field when nothing is set (an empty struct, a zero, null).
    pub fn shown_when_absent(self) -> bool {
        self.flag(F_SHOWN)
    }

    /// Whether the struct's fields appear in JSON as the outer struct's own.
    pub fn is_inline(self) -> bool {
        self.flag(F_INLINE)
    }

    /// Whether the published OpenAPI lists the field as required.
    pub fn is_required(self) -> bool {
        self.flag(F_REQUIRED)
    }

    /// Returns the treatment of the list by apply. `None` if none is published, which means atomic.
    pub fn list_type(self) -> Option<ListType> {
        match self.row().2 >> F_LIST_SHIFT & 3 {
            1 => Some(ListType::Atomic),
            2 => Some(ListType::Set),
            3 => Some(ListType::Map),
            _ => None,
        }
    }

    /// The fields that identify an element of a [`ListType::Map`] list.
    pub fn map_keys(self) -> impl Iterator<Item = &'static str> {
        text(self.row().4).split(',').filter(|k| !k.is_empty())
    }

    /// Returns the ownership of the map or struct that the field declares. `None` leaves it to the type.
    pub fn map_type(self) -> Option<MapType> {
        if self.flag(F_MAP_ATOMIC) {
            Some(MapType::Atomic)
        } else if self.flag(F_MAP_GRANULAR) {
            Some(MapType::Granular)
        } else {
            None
        }
    }

    /// Strategic merge patch's rule.
    pub fn patch_strategy(self) -> PatchStrategy {
        PatchStrategy {
            merge: self.flag(F_PATCH_MERGE),
            replace: self.flag(F_PATCH_REPLACE),
            retain_keys: self.flag(F_PATCH_RETAIN_KEYS),
        }
    }

    /// The field that identifies an element to a strategic merge patch; empty for lists of scalars.
    pub fn patch_merge_key(self) -> &'static str {
        text(self.row().5)
    }

    /// The values that it, or each of its elements, may have, sorted; `None` where they are not listed.
    pub fn values(self) -> Option<impl Iterator<Item = &'static str>> {
        let at = ENUMS.binary_search_by_key(&self.0, |row| row.0).ok()?;
        Some(text(ENUMS[at].1).split(','))
    }

    /// The published default as JSON, if there is one.
    pub fn default(self) -> Option<&'static str> {
        Some(text(self.row().6)).filter(|d| !d.is_empty())
    }
}

impl std::fmt::Debug for Field {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} = {}: {:?}", self.json(), self.number(), self.ty())
    }
}
