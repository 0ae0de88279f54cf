//! Impersonation headers (client-go `transport.NewImpersonatingRoundTripper`).
use http::{HeaderMap, HeaderName, HeaderValue};
use kelson_pki::kubeconfig::Impersonation;

/// A value of a kubeconfig that no header may hold.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {value:?} is not valid in a header")]
pub(super) struct ImpersonationError {
    field: &'static str,
    value: String,
}

/// The headers of every request.
///
/// # Errors
/// For what no header may hold, named by its field.
pub(super) fn headers(of: Option<&Impersonation>) -> Result<HeaderMap, ImpersonationError> {
    let mut headers = HeaderMap::new();
    let Some(of) = of else { return Ok(headers) };
    let unfit = |field, value: &str| ImpersonationError { field, value: value.to_owned() };
    let mut put = |field, name: HeaderName, value: &str| {
        let value = HeaderValue::from_str(value).map_err(|_| unfit(field, value))?;
        headers.append(name, value);
        Ok(())
    };
    put("as", HeaderName::from_static("impersonate-user"), &of.user)?;
    if !of.uid.is_empty() {
        put("as-uid", HeaderName::from_static("impersonate-uid"), &of.uid)?;
    }
    for group in &of.groups {
        put("as-groups", HeaderName::from_static("impersonate-group"), group)?;
    }
    for (key, values) in &of.extra {
        let name = format!("impersonate-extra-{}", escaped(key));
        let name = HeaderName::try_from(name).map_err(|_| unfit("as-user-extra", key))?;
        for value in values {
            put("as-user-extra", name.clone(), value)?;
        }
    }
    Ok(headers)
}

/// A key with what no name of a header may hold as `%XX`.
fn escaped(key: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte);
    key.bytes().map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_of_a_user_is_sent() {
        let of = Impersonation {
            user: "jane".into(),
            uid: "7".into(),
            groups: vec!["a".into(), "b".into()],
            extra: [("example.com/k%".to_owned(), vec!["v".to_owned(), "w".to_owned()])].into(),
        };
        let headers = headers(Some(&of)).unwrap();
        let all = |name: &str| headers.get_all(name).iter().map(|v| v.to_str().unwrap()).collect::<Vec<_>>();
        assert_eq!((all("impersonate-user"), all("impersonate-uid")), (vec!["jane"], vec!["7"]));
        assert_eq!(all("impersonate-group"), ["a", "b"]);
        assert_eq!(all("impersonate-extra-example.com%2fk%25"), ["v", "w"]);
        assert!(super::headers(None).unwrap().is_empty());
        let bad = Impersonation { user: "a\nb".into(), ..Impersonation::default() };
        let error = super::headers(Some(&bad)).unwrap_err();
        assert_eq!(error.to_string(), "as: \"a\\nb\" is not valid in a header");
    }
}
