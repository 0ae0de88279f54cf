//! Strings of requests: selectors, quantities, paths with their queries.
use http::Method;
use kelson_apiserver::RequestInfo;
use kelson_meta::url::{Query, append_query, decode};
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

/// A query is read as pairs, and what they are written as again is read as the same.
pub(crate) fn query(data: &[u8]) {
    text(data, |text| {
        let query = Query::parse(Some(text));
        let mut again = String::from("/?");
        append_query(&mut again, query.pairs());
        let again = Query::parse(again.split_once('?').map(|(_, query)| query));
        assert!(query.pairs().eq(again.pairs()), "{text} is not {again:?}");
        for (name, _) in query.pairs().take(8) {
            let _values = (query.flag(name), query.is_on(name), query.integer(name).is_ok());
        }
    });
}

/// A path at a kubelet. Whatever runs commands needs the verb `create`, however it is spelled.
pub(crate) fn kubelet_path(data: &[u8]) {
    text(data, |text| {
        for method in [Method::GET, Method::POST] {
            let judged = kelson_kubelet::server::judged(&method, text);
            let plain = text.trim_start_matches('/').split('/').next().unwrap_or_default();
            let acts = decode(plain).is_some_and(|root| matches!(&*root, "exec" | "attach" | "portForward" | "run"));
            assert!(!acts || judged.is_none_or(|(verb, _)| verb == "create"), "{method} {text}: {judged:?}");
        }
    });
}
