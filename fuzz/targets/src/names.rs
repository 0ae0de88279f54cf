//! Texts of requests: selectors, quantities, paths with their queries.
use http::Method;
use kelson_apiserver::RequestInfo;
use kelson_meta::{FieldSelector, LabelSelector, Quantity};

fn text(data: &[u8], with: impl FnOnce(&str)) {
    if let Ok(text) = std::str::from_utf8(data) {
        with(text);
    }
}

pub(crate) fn label_selector(data: &[u8]) {
    text(data, |text| {
        if let Ok(selector) = LabelSelector::parse(text) {
            let again = LabelSelector::parse(&selector.to_string());
            let again = again.unwrap_or_else(|e| panic!("{selector} does not read again: {e}"));
            assert_eq!(again.to_string(), selector.to_string());
        }
    });
}

pub(crate) fn field_selector(data: &[u8]) {
    text(data, |text| drop(FieldSelector::parse(text)));
}

pub(crate) fn quantity(data: &[u8]) {
    text(data, |text| {
        if let Ok(quantity) = text.parse::<Quantity>() {
            let canonical = quantity.to_string();
            let again = canonical.parse::<Quantity>();
            let again = again.unwrap_or_else(|e| panic!("{canonical} does not read again: {e}"));
            assert_eq!(again.to_string(), canonical);
        }
    });
}

pub(crate) fn route(data: &[u8]) {
    text(data, |text| {
        for method in [Method::GET, Method::POST, Method::PATCH, Method::DELETE] {
            let info = RequestInfo::of(&method, text);
            // A write is never taken for a read: authorization is by this verb.
            assert!(
                method == Method::GET || !matches!(info.verb, "get" | "list" | "watch"),
                "{method} {text}: {}",
                info.verb
            );
        }
    });
}
