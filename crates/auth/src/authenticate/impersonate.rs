//! Impersonation headers: acting as another user, if that is allowed for each part of the identity, and, with
//! constrained impersonation, if the requested action is allowed as well (KEP-5284).
use std::collections::BTreeMap;

use http::HeaderMap;
use kelson_meta::Status;

use crate::authorize::{Authorizer, forbidden};
use crate::user::{self, service_account_groups, split_service_account};
use crate::{Attributes, UserInfo};

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";
const AUTHENTICATION: &str = "authentication.k8s.io";
/// The extra values that authorizers see for a service account that impersonates its node: their keys.
const ASSOCIATED: &str = "authentication.kubernetes.io/associated-node-keys";
/// The maximum number of impersonated values in one request; each costs a decision.
const VALUES_MAX: usize = 1024;

/// The identity requested by the headers.
struct RequestedIdentity {
    name: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

/// The identity that a request may assume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impersonated {
    /// The user of the request from now on.
    pub user: UserInfo,
    /// The constrained verb that allowed it (`impersonate:user-info`); empty for the legacy verb `impersonate`.
    pub constraint: String,
}

/// Returns the user to act as; `None` when no impersonation is requested. `request` has the requester and the requested
/// action.
///
/// # Errors
/// 403 when no mode of impersonation allows it, with the first mode's message; 400 for a value that is not UTF-8: an
/// unreadable header must never count as absent, or the request would run with all permissions of the requester.
pub async fn impersonate(
    headers: &HeaderMap,
    request: &Attributes<'_>,
    authorizer: &dyn Authorizer,
) -> Result<Option<Impersonated>, Status> {
    let Some(identity) = requested_identity(headers)? else { return Ok(None) };
    let mut refused = None;
    for way in WAYS {
        if !way.applies(&identity, request.user) {
            continue;
        }
        match way.check(&identity, request, authorizer).await {
            Ok(()) => {
                let constraint = if way == Way::Legacy { String::new() } else { way.verb() };
                return Ok(Some(Impersonated { user: way.user(identity), constraint }));
            }
            Err(why) => refused = refused.or(Some(why)),
        }
    }
    // The last mode applies to every user.
    Err(refused.unwrap_or_else(|| Status::bad_request("impersonation is disabled")))
}

/// Reads the headers; `None` when they request no impersonation.
fn requested_identity(headers: &HeaderMap) -> Result<Option<RequestedIdentity>, Status> {
    let text = |v: &http::HeaderValue| {
        let text = std::str::from_utf8(v.as_bytes()).map(str::to_owned);
        text.map_err(|_| Status::bad_request("impersonation headers must be UTF-8"))
    };
    // A second value is another user name: the request is ambiguous.
    let mut names = headers.get_all(USER).iter();
    let name = names.next().map(text).transpose()?.unwrap_or_default();
    if names.next().is_some() {
        return Err(Status::bad_request("several Impersonate-User headers"));
    }
    let groups: Vec<String> = headers.get_all(GROUP).iter().map(text).collect::<Result<_, _>>()?;
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
    Ok(Some(RequestedIdentity { name, uid, groups, extra }))
}

/// Returns the impersonation mode of a verb, as metrics name it; empty for every other verb.
pub fn impersonation_mode(verb: &str) -> &'static str {
    let constrained = verb.strip_prefix("impersonate:");
    let mode = constrained.or_else(|| verb.strip_prefix("impersonate-on:").and_then(|rest| rest.split(':').next()));
    match mode {
        Some(mode) => WAYS.iter().map(|way| way.mode()).find(|known| !known.is_empty() && *known == mode).unwrap_or(""),
        None if verb == "impersonate" => "legacy",
        None => "",
    }
}

/// A mode of impersonation. The constrained modes (KEP-5284) need two permissions: to be that user
/// (`impersonate:MODE`), and to do the requested action as that user (`impersonate-on:MODE:VERB`).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// A service account impersonates the node that its pod runs on.
    AssociatedNode,
    ArbitraryNode,
    ServiceAccount,
    /// Any user that is neither a node nor a service account.
    UserInfo,
    /// The verb `impersonate`, for everything.
    Legacy,
}

/// The modes, narrower ones first.
const WAYS: [Way; 5] = [Way::AssociatedNode, Way::ArbitraryNode, Way::ServiceAccount, Way::UserInfo, Way::Legacy];

/// From this number of values on, permission for all of them is checked first.
const MANY: usize = 4;

/// Returns the node of a user name.
fn node_of(name: &str) -> Option<&str> {
    name.strip_prefix(user::NODE_PREFIX).filter(|node| kelson_meta::is_dns1123_subdomain(node).is_ok())
}

impl Way {
    fn mode(self) -> &'static str {
        match self {
            Self::AssociatedNode => "associated-node",
            Self::ArbitraryNode => "arbitrary-node",
            Self::ServiceAccount => "serviceaccount",
            Self::UserInfo => "user-info",
            Self::Legacy => "",
        }
    }

    fn verb(self) -> String {
        match self {
            Self::Legacy => "impersonate".to_owned(),
            constrained => format!("impersonate:{}", constrained.mode()),
        }
    }

    fn applies(self, identity: &RequestedIdentity, requestor: &UserInfo) -> bool {
        let alone = identity.uid.is_empty() && identity.groups.is_empty() && identity.extra.is_empty();
        let (node, account) = (node_of(&identity.name), split_service_account(&identity.name));
        match self {
            Self::AssociatedNode => {
                let own = requestor.extra_one(user::NODE_NAME);
                alone && node.is_some() && node == own && split_service_account(&requestor.name).is_some()
            }
            Self::ArbitraryNode => alone && node.is_some(),
            Self::ServiceAccount => alone && account.is_some(),
            Self::UserInfo => node.is_none() && account.is_none(),
            Self::Legacy => true,
        }
    }

    async fn check(
        self,
        identity: &RequestedIdentity,
        request: &Attributes<'_>,
        authorizer: &dyn Authorizer,
    ) -> Result<(), Status> {
        // The pod's name in the token does not matter: the node was compared already.
        let keys = BTreeMap::from([(ASSOCIATED.to_owned(), request.user.extra.keys().cloned().collect())]);
        let narrowed = UserInfo { extra: keys, ..request.user.clone() };
        let requestor = if self == Self::AssociatedNode { &narrowed } else { request.user };
        if self != Self::Legacy {
            let verb = format!("impersonate-on:{}:{}", self.mode(), request.verb);
            authorizer.check(&Attributes { user: requestor, verb: &verb, ..*request }).await?;
        }
        let permission = PermissionCheck { way: self, verb: self.verb(), requestor, authorizer };
        permission.name(&identity.name).await?;
        if !identity.uid.is_empty() {
            permission.ask(AUTHENTICATION, "uids", "", "", &identity.uid).await?;
        }
        permission.groups(&identity.groups).await?;
        permission.extra(&identity.extra).await
    }

    /// Returns the impersonated user, with the groups that follow from the name.
    fn user(self, identity: RequestedIdentity) -> UserInfo {
        let RequestedIdentity { name, uid, mut groups, extra } = identity;
        if self != Self::Legacy && node_of(&name).is_some() {
            groups = vec![user::NODES.to_owned()];
        }
        if let (Some((namespace, _)), true) = (split_service_account(&name), groups.is_empty()) {
            groups = service_account_groups(namespace);
        }
        let has = |groups: &[String], group: &str| groups.iter().any(|own| own == group);
        if name == user::ANONYMOUS {
            if !has(&groups, user::UNAUTHENTICATED) {
                groups.push(user::UNAUTHENTICATED.to_owned());
            }
        } else if !has(&groups, user::AUTHENTICATED) && !has(&groups, user::UNAUTHENTICATED) {
            groups.push(user::AUTHENTICATED.to_owned());
        }
        UserInfo { name, uid, groups, extra }
    }
}

/// Checks the permission for each part of an identity.
struct PermissionCheck<'a> {
    way: Way,
    verb: String,
    requestor: &'a UserInfo,
    authorizer: &'a dyn Authorizer,
}

impl PermissionCheck<'_> {
    fn attributes<'a>(
        &'a self,
        group: &'a str,
        resource: &'a str,
        subresource: &'a str,
        namespace: &'a str,
        name: &'a str,
    ) -> Attributes<'a> {
        let a = Attributes::resource(self.requestor, &self.verb, group, resource, namespace, name);
        Attributes { version: "v1", ..a.with_subresource(subresource) }
    }

    async fn ask(&self, group: &str, resource: &str, sub: &str, namespace: &str, name: &str) -> Result<(), Status> {
        self.authorizer.check(&self.attributes(group, resource, sub, namespace, name)).await
    }

    /// Returns the API group of the resources users, groups and accounts: the constrained modes have a separate one.
    fn group(&self) -> &'static str {
        if self.way == Way::Legacy { "" } else { AUTHENTICATION }
    }

    async fn name(&self, name: &str) -> Result<(), Status> {
        let group = self.group();
        match (self.way, node_of(name), split_service_account(name)) {
            (Way::AssociatedNode, Some(_), _) => self.ask(group, "nodes", "", "", "*").await,
            (Way::ArbitraryNode, Some(node), _) => self.ask(group, "nodes", "", "", node).await,
            (_, _, Some((namespace, account))) => self.ask(group, "serviceaccounts", "", namespace, account).await,
            _ => self.ask(group, "users", "", "", name).await,
        }
    }

    async fn groups(&self, groups: &[String]) -> Result<(), Status> {
        let (of, constrained) = (self.group(), self.way != Way::Legacy);
        let bad = groups.iter().find(|g| g.is_empty() || *g == user::MASTERS).filter(|_| constrained);
        if let Some(bad) = bad {
            let what = if bad.is_empty() { "empty string" } else { bad };
            let why = format!("impersonating the {what} group is not allowed");
            return Err(forbidden(&self.attributes(of, "groups", "", "", bad), &why));
        }
        if constrained && groups.len() >= MANY && self.ask(of, "groups", "", "", "*").await.is_ok() {
            return Ok(());
        }
        for group in groups {
            self.ask(of, "groups", "", "", group).await?;
        }
        Ok(())
    }

    async fn extra(&self, extra: &BTreeMap<String, Vec<String>>) -> Result<(), Status> {
        let constrained = self.way != Way::Legacy;
        let bad = extra.iter().find_map(|(key, values)| bad_extra(key, values)).filter(|_| constrained);
        if let Some(why) = bad {
            return Err(forbidden(&self.attributes(AUTHENTICATION, "userextras", "", "", ""), why));
        }
        let many = extra.len() >= MANY || extra.values().map(Vec::len).sum::<usize>() >= MANY;
        if constrained && many && self.ask(AUTHENTICATION, "userextras", "*", "", "*").await.is_ok() {
            return Ok(());
        }
        for (key, values) in extra {
            for value in values {
                self.ask(AUTHENTICATION, "userextras", key, "", value).await?;
            }
        }
        Ok(())
    }
}

/// Returns why a constrained mode rejects extra values.
fn bad_extra(key: &str, values: &[String]) -> Option<&'static str> {
    let domain = key
        .split_once('/')
        .filter(|(domain, path)| !path.is_empty() && kelson_meta::is_dns1123_subdomain(domain).is_ok());
    match () {
        () if key.is_empty() => Some("impersonating the empty string key in extra is not allowed"),
        () if domain.is_none() => Some("impersonating an invalid key in extra is not allowed"),
        () if key.chars().any(char::is_uppercase) => Some("impersonating a non-lowercase key in extra is not allowed"),
        () if values.iter().any(String::is_empty) => {
            Some("impersonating the empty string value in extra is not allowed")
        }
        () => None,
    }
}

/// Returns the message of the 400, which shows the request in Go's value format.
fn without_user(groups: &[String], extra: &BTreeMap<String, Vec<String>>, uid: &str) -> String {
    let quoted = |all: &[String]| all.iter().map(|one| format!("{one:?}")).collect::<Vec<_>>().join(", ");
    let list = |all: &[String]| {
        if all.is_empty() { "[]string(nil)".to_owned() } else { format!("[]string{{{}}}", quoted(all)) }
    };
    let pairs: Vec<String> = extra.iter().map(|(key, values)| format!("{key:?}:{}", list(values))).collect();
    let extra = if pairs.is_empty() { "(nil)".to_owned() } else { format!("{{{}}}", pairs.join(", ")) };
    format!(
        "requested &user.DefaultInfo{{Name:\"\", UID:{uid:?}, Groups:{}, Extra:map[string][]string{extra}}} without \
         impersonating a user name",
        list(groups)
    )
}

/// Removes the headers after they were applied.
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

/// Returns an extra key from a header name: percent-decoded, or unchanged when the encoding is invalid.
pub(crate) fn extra_key(encoded: &str) -> String {
    kelson_meta::url::decode(encoded).unwrap_or_else(|| encoded.to_owned())
}
