//! Validates strings by their format (upstream `kube-openapi/pkg/validation/strfmt`).
mod codes;
mod net;
mod time;

use crate::schema::Format;

/// Reports whether a string has a format. Formats of numbers accept every string.
pub fn is_valid(format: Format, text: &str) -> bool {
    match format {
        Format::Int32 | Format::Int64 | Format::Float | Format::Double | Format::Password => true,
        Format::BsonObjectId => text.len() == 24 && text.bytes().all(|c| c.is_ascii_hexdigit()),
        Format::Uri => net::is_request_uri(text),
        Format::Email => net::is_email(text),
        Format::Hostname => net::is_hostname(text),
        Format::Ipv4 => net::is_ipv4(text),
        Format::Ipv6 => text.parse::<std::net::Ipv6Addr>().is_ok(),
        Format::Cidr => net::is_cidr(text),
        Format::Mac => net::is_mac(text),
        Format::Uuid => codes::is_uuid(text, None),
        Format::Uuid3 => codes::is_uuid(text, Some(b'3')),
        Format::Uuid4 => codes::is_uuid(text, Some(b'4')),
        Format::Uuid5 => codes::is_uuid(text, Some(b'5')),
        Format::Isbn => codes::is_isbn10(text) || codes::is_isbn13(text),
        Format::Isbn10 => codes::is_isbn10(text),
        Format::Isbn13 => codes::is_isbn13(text),
        Format::CreditCard => codes::is_credit_card(text),
        Format::Ssn => codes::is_ssn(text),
        Format::HexColor => codes::is_hex_color(text),
        Format::RgbColor => codes::is_rgb_color(text),
        Format::Byte => codes::is_base64(text),
        Format::Date => time::is_date(text),
        Format::Duration => time::is_duration(text),
        Format::DateTime => time::is_date_time(text),
        Format::K8sShortName => codes::is_short_name(text),
        Format::K8sLongName => codes::is_long_name(text),
    }
}

#[cfg(test)]
mod tests;
