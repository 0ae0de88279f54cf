//! Impersonation: `Impersonate-*` headers make a request somebody else's, if its sender may.
use std::sync::Arc;

use http::HeaderMap;
use kelson_auth::{Attributes, UserInfo, user};
use kelson_meta::{GroupResource, Status};

use crate::query::decode;
use crate::server::Server;

const EXTRA_PREFIX: &str = "impersonate-extra-";

/// Who the request is to be taken as.
///
/// # Errors
/// 403 when the sender may not, 500 when groups or the like come without a user (as upstream).
pub fn impersonate(server: &Server, headers: &HeaderMap, from: Arc<UserInfo>) -> Result<Arc<UserInfo>, Status> {
    let text = |v: &http::HeaderValue| v.to_str().unwrap_or("").to_owned();
    let name = headers.get("impersonate-user").map(text).unwrap_or_default();
    let groups: Vec<String> = headers.get_all("impersonate-group").iter().map(text).collect();
    let uid = headers.get("impersonate-uid").map(text).unwrap_or_default();
    let extra: Vec<(String, String)> = headers
        .iter()
        .filter_map(|(k, v)| Some((decode(k.as_str().strip_prefix(EXTRA_PREFIX)?, false)?, text(v))))
        .collect();
    if name.is_empty() {
        if groups.is_empty() && uid.is_empty() && extra.is_empty() {
            return Ok(from);
        }
        let why = "requested [groups/uid/extra] without impersonating a user";
        return Err(Status::internal(why));
    }
    let may = |group: &str, resource: &str, sub: &str, namespace: &str, name: &str| {
        let attributes =
            Attributes::resource(&from, "impersonate", group, resource, namespace, name).with_subresource(sub);
        if server.authorizer.authorize(&attributes).is_allow() {
            return Ok(());
        }
        let place =
            if namespace.is_empty() { " at the cluster scope".into() } else { format!(" in the namespace {namespace:?}") };
        let why = format!(
            "User {:?} cannot impersonate resource {resource:?} in API group {group:?}{place}",
            from.name
        );
        Err(Status::forbidden(&GroupResource::new(group, resource), name, &why))
    };
    const AUTHENTICATION: &str = "authentication.k8s.io";
    let mut to = UserInfo::new(name.clone(), groups.clone());
    match user::split_service_account(&name) {
        Some((namespace, account)) => {
            may("", "serviceaccounts", "", namespace, account)?;
            if to.groups.is_empty() {
                to.groups = user::service_account_groups(namespace);
            }
        }
        None => may("", "users", "", "", &name)?,
    }
    for group in &groups {
        may("", "groups", "", "", group)?;
    }
    if !uid.is_empty() {
        may(AUTHENTICATION, "uids", "", "", &uid)?;
        to.uid = uid;
    }
    for (key, value) in extra {
        may(AUTHENTICATION, "userextras", &key, "", &value)?;
        to.extra.entry(key).or_default().push(value);
    }
    if name == user::ANONYMOUS {
        if !to.in_group(user::UNAUTHENTICATED) {
            to.groups.push(user::UNAUTHENTICATED.into());
        }
    } else if !to.in_group(user::AUTHENTICATED) {
        to.groups.push(user::AUTHENTICATED.into());
    }
    Ok(Arc::new(to))
}
