//! Impersonation headers: acting as somebody else, if allowed to impersonate each part of them.
use std::collections::BTreeMap;

use http::HeaderMap;
use kelson_meta::Status;

use crate::authorize::Authorizer;
use crate::user::{self, service_account_groups, split_service_account};
use crate::{Attributes, UserInfo};

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";
const AUTHENTICATION: &str = "authentication.k8s.io";
/// Impersonated values in one request; each costs a decision.
const VALUES_MAX: usize = 1024;

/// The user to act as; `None` when no impersonation is asked for.
///
/// # Errors
/// 403 when a part of it is not allowed; 400 for a value that is not UTF-8: what cannot be read must never count as absent,
/// or the request would run with all the rights of whoever sent it.
pub async fn impersonate(
    headers: &HeaderMap,
    requestor: &UserInfo,
    authorizer: &dyn Authorizer,
) -> Result<Option<UserInfo>, Status> {
    let text = |v: &http::HeaderValue| {
        let text = std::str::from_utf8(v.as_bytes()).map(str::to_owned);
        text.map_err(|_| Status::bad_request("impersonation headers must be UTF-8"))
    };
    let name = headers.get(USER).map(text).transpose()?.unwrap_or_default();
    let mut groups: Vec<String> = headers.get_all(GROUP).iter().map(text).collect::<Result<_, _>>()?;
    let uid = headers.get(UID).map(text).transpose()?.unwrap_or_default();
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (header, value) in headers {
        if let Some(key) = header.as_str().strip_prefix(EXTRA) {
            extra.entry(extra_key(key)).or_default().push(text(value)?);
        }
    }
    if name.is_empty() {
        if groups.is_empty() && uid.is_empty() && extra.is_empty() {
            return Ok(None);
        }
        return Err(Status::bad_request(without_user(&groups, &extra, &uid)));
    }
    if groups.len() + extra.values().map(Vec::len).sum::<usize>() > VALUES_MAX {
        return Err(Status::bad_request("too many impersonation headers"));
    }
    let ask = async |group, resource, subresource, namespace, name| {
        let a = Attributes::resource(requestor, "impersonate", group, resource, namespace, name);
        authorizer.check(&Attributes { version: "v1", ..a.with_subresource(subresource) }).await
    };
    let account = split_service_account(&name);
    match account {
        Some((namespace, account)) => ask("", "serviceaccounts", "", namespace, account).await?,
        None => ask("", "users", "", "", &name).await?,
    }
    for group in &groups {
        ask("", "groups", "", "", group).await?;
    }
    for (key, values) in &extra {
        for value in values {
            ask(AUTHENTICATION, "userextras", key, "", value).await?;
        }
    }
    if !uid.is_empty() {
        ask(AUTHENTICATION, "uids", "", "", &uid).await?;
    }
    if let (Some((namespace, _)), true) = (account, groups.is_empty()) {
        groups = service_account_groups(namespace);
    }
    let has = |g: &[String], wanted: &str| g.iter().any(|x| x == wanted);
    if name == user::ANONYMOUS {
        if !has(&groups, user::UNAUTHENTICATED) {
            groups.push(user::UNAUTHENTICATED.to_owned());
        }
    } else if !has(&groups, user::AUTHENTICATED) && !has(&groups, user::UNAUTHENTICATED) {
        groups.push(user::AUTHENTICATED.to_owned());
    }
    Ok(Some(UserInfo { name, uid, groups, extra }))
}

/// The 400's text, which shows each request in the form of Go's ObjectReference.
fn without_user(groups: &[String], extra: &BTreeMap<String, Vec<String>>, uid: &str) -> String {
    let mut asked: Vec<String> = groups.iter().map(|g| format!("{{Group  {g}    }}")).collect();
    for (key, values) in extra {
        asked.extend(values.iter().map(|v| format!("{{UserExtra  {v}  {AUTHENTICATION}/v1  {key}}}")));
    }
    if !uid.is_empty() {
        asked.push(format!("{{UID  {uid}  {AUTHENTICATION}/v1  }}"));
    }
    format!("requested [{}] without impersonating a user", asked.join(" "))
}

/// Removes the headers once they are honoured.
pub fn strip_impersonation(headers: &mut HeaderMap) {
    let names: Vec<_> = headers
        .keys()
        .filter(|k| matches!(k.as_str(), USER | GROUP | UID) || k.as_str().starts_with(EXTRA))
        .cloned()
        .collect();
    for name in names {
        headers.remove(name);
    }
}

/// An extra key from a header name: percent-decoded; as it is when the encoding is broken.
pub(crate) fn extra_key(encoded: &str) -> String {
    kelson_meta::url::decode(encoded).unwrap_or_else(|| encoded.to_owned())
}
