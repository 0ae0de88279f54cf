//! The output of `kelson token list`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use serde::Serialize;

/// A token in lists, in the form of kubeadm's `output.kubeadm.k8s.io/v1alpha3`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenRow {
    api_version: &'static str,
    kind: &'static str,
    /// The token, or its ID only.
    pub token: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    description: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    expires: String,
    usages: Vec<&'static str>,
    groups: Vec<String>,
}

impl TokenRow {
    /// Creates the row of a stored token, with its secret half if `whole`.
    pub fn of(secret: &Secret, whole: bool) -> Self {
        let none = BTreeMap::new();
        let data = secret.data.as_ref().unwrap_or(&none);
        let text = |key: &str| data.get(key).map(|v| String::from_utf8_lossy(&v.0).into_owned()).unwrap_or_default();
        let usages = [("usage-bootstrap-authentication", "authentication"), ("usage-bootstrap-signing", "signing")];
        let groups = text("auth-extra-groups");
        Self {
            api_version: "output.kubeadm.k8s.io/v1alpha3",
            kind: "BootstrapToken",
            token: if whole { format!("{}.{}", text("token-id"), text("token-secret")) } else { text("token-id") },
            description: text("description"),
            expires: text("expiration"),
            usages: usages.iter().filter(|(key, _)| text(key) == "true").map(|(_, usage)| *usage).collect(),
            groups: groups.split(',').filter(|group| !group.is_empty()).map(str::to_owned).collect(),
        }
    }
}

/// Formats rows as `text`, `json` or `yaml`.
///
/// # Errors
/// A row cannot be encoded.
pub fn shown(tokens: &[TokenRow], form: &str, now: Timestamp) -> anyhow::Result<String> {
    let mut out = String::new();
    match form {
        "json" => {
            for token in tokens {
                out.push_str(&serde_json::to_string_pretty(token)?);
                out.push('\n');
            }
        }
        "yaml" => {
            for token in tokens {
                out.push_str("---\n");
                out.push_str(&kelson_codec::yaml::to_yaml(&serde_json::to_value(token)?));
            }
        }
        _ => out = table(tokens, now),
    }
    Ok(out)
}

fn table(tokens: &[TokenRow], now: Timestamp) -> String {
    let mut rows = vec![["TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION", "EXTRA GROUPS"].map(str::to_owned)];
    let or = |text: String, none: &str| if text.is_empty() { none.to_owned() } else { text };
    for token in tokens {
        rows.push([
            token.token.clone(),
            time_left(&token.expires, now),
            or(token.expires.clone(), "<never>"),
            or(token.usages.join(","), "<none>"),
            or(token.description.clone(), "<none>"),
            or(token.groups.join(","), "<none>"),
        ]);
    }
    let width = |i: usize| rows.iter().map(|r| r[i].len()).max().unwrap_or(0) + 3;
    let widths: Vec<usize> = (0..5).map(width).collect();
    rows.iter().fold(String::new(), |mut out, row| {
        for (cell, width) in row.iter().zip(&widths) {
            out.push_str(&format!("{cell:<width$}"));
        }
        out + &row[5] + "\n"
    })
}

fn time_left(expires: &str, now: Timestamp) -> String {
    if expires.is_empty() {
        return "<forever>".into();
    }
    let Ok(at) = expires.parse::<Timestamp>() else { return "<invalid>".into() };
    match now.duration_until(at).as_secs() {
        ..=0 => "<expired>".into(),
        s @ 1..60 => format!("{s}s"),
        s @ 60..3600 => format!("{}m", s / 60),
        s => format!("{}h", s / 3600),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_list_shows_no_secrets() {
        let encode = |s: &str| k8s_openapi::ByteString(s.as_bytes().to_vec());
        let secret = |id: &str, expiration: &str| {
            let mut data = BTreeMap::from([
                ("token-id".to_owned(), encode(id)),
                ("token-secret".to_owned(), encode("0123456789abcdef")),
                ("usage-bootstrap-signing".to_owned(), encode("true")),
                ("auth-extra-groups".to_owned(), encode("system:bootstrappers:x")),
            ]);
            if !expiration.is_empty() {
                data.insert("expiration".to_owned(), encode(expiration));
            }
            Secret { data: Some(data), ..Secret::default() }
        };
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let secrets = [secret("aaaaaa", ""), secret("bbbbbb", "2026-01-01T23:30:00Z")];
        let rows: Vec<TokenRow> = secrets.iter().map(|s| TokenRow::of(s, false)).collect();
        let out = shown(&rows, "text", now).unwrap();
        let titles = "TOKEN    TTL         EXPIRES                USAGES    DESCRIPTION   EXTRA GROUPS";
        assert_eq!(out.lines().next(), Some(titles));
        let rows: Vec<Vec<&str>> = out.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["aaaaaa", "<forever>", "<never>", "signing", "<none>", "system:bootstrappers:x"]);
        assert_eq!(rows[2][..4], ["bbbbbb", "23h", "2026-01-01T23:30:00Z", "signing"]);
        let listed = |whole| secrets.iter().map(|s| TokenRow::of(s, whole)).collect::<Vec<_>>();
        for form in ["text", "json", "yaml"] {
            let out = shown(&listed(false), form, now).unwrap();
            assert!(out.contains("bbbbbb") && !out.contains("0123456789abcdef"), "{out}");
            assert!(shown(&listed(true), form, now).unwrap().contains("aaaaaa.0123456789abcdef"));
        }
        let json = shown(&listed(false)[1..], "json", now).unwrap();
        let wanted = json!({"apiVersion": "output.kubeadm.k8s.io/v1alpha3", "kind": "BootstrapToken", "token": "bbbbbb",
            "expires": "2026-01-01T23:30:00Z", "usages": ["signing"], "groups": ["system:bootstrappers:x"]});
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap(), wanted);
    }
}
