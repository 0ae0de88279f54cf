//! The supported formats, and their types; other formats are ignored (upstream `pkg/apiserver/validation/formats.go`).
//! `object/formats` has their rules.

/// A format that is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is named as the format it is")]
pub enum Format {
    Int32,
    Int64,
    Float,
    Double,
    BsonObjectId,
    Uri,
    Email,
    Hostname,
    Ipv4,
    Ipv6,
    Cidr,
    Mac,
    Uuid,
    Uuid3,
    Uuid4,
    Uuid5,
    Isbn,
    Isbn10,
    Isbn13,
    CreditCard,
    Ssn,
    HexColor,
    RgbColor,
    Byte,
    Password,
    Date,
    Duration,
    DateTime,
    K8sShortName,
    K8sLongName,
}

/// The formats of strings by name. Dashes in a name are ignored.
const STRINGS: &[(&str, Format)] = &[
    ("bsonobjectid", Format::BsonObjectId),
    ("uri", Format::Uri),
    ("email", Format::Email),
    ("hostname", Format::Hostname),
    ("ipv4", Format::Ipv4),
    ("ipv6", Format::Ipv6),
    ("cidr", Format::Cidr),
    ("mac", Format::Mac),
    ("uuid", Format::Uuid),
    ("uuid3", Format::Uuid3),
    ("uuid4", Format::Uuid4),
    ("uuid5", Format::Uuid5),
    ("isbn", Format::Isbn),
    ("isbn10", Format::Isbn10),
    ("isbn13", Format::Isbn13),
    ("creditcard", Format::CreditCard),
    ("ssn", Format::Ssn),
    ("hexcolor", Format::HexColor),
    ("rgbcolor", Format::RgbColor),
    ("byte", Format::Byte),
    ("password", Format::Password),
    ("date", Format::Date),
    ("duration", Format::Duration),
    ("datetime", Format::DateTime),
    ("k8sshortname", Format::K8sShortName),
    ("k8slongname", Format::K8sLongName),
];

impl Format {
    /// Returns the format with this name at a node of this type (`integer`, `string`, or empty, also for
    /// int-or-strings). Returns `None` if it is not checked there.
    pub fn at(ty: &str, name: &str) -> Option<Self> {
        match (ty, name) {
            ("integer", "int32") => Some(Self::Int32),
            ("integer", "int64") => Some(Self::Int64),
            ("number", "float") => Some(Self::Float),
            ("number", "double") => Some(Self::Double),
            ("" | "string", _) => {
                let plain = name.replace('-', "");
                STRINGS.iter().find(|(n, _)| *n == plain).map(|(_, f)| *f)
            }
            _ => None,
        }
    }
}
