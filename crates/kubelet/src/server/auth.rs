//! Who calls the kubelet, by client certificate or by a token that the API server reviews, and whether they may, by the
//! API server's SubjectAccessReview; answers are kept for a while (upstream: `pkg/kubelet/server/auth.go`).
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method, header};
use k8s_openapi::api::authentication::v1::TokenReview;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kelson_pki::{CertInfo, ClientChains};
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use serde_json::json;
use tokio::time::Instant;

use crate::effects::Context;

/// How long a yes is kept.
const ALLOWED_FOR: Duration = Duration::from_secs(300);
/// How long a no is kept.
const DENIED_FOR: Duration = Duration::from_secs(30);
/// How long a reviewed token is kept.
const TOKEN_FOR: Duration = Duration::from_secs(120);
/// Answers kept of each kind.
const KEPT_MAX: usize = 1000;

/// A caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct User {
    /// Name.
    pub name: String,
    /// Groups.
    pub groups: Vec<String>,
}

/// Keeps what was found out.
pub struct Auth {
    ctx: Arc<Context>,
    chains: Option<ClientChains>,
    tokens: Mutex<HashMap<String, (User, Instant)>>,
    decisions: Mutex<HashMap<(User, &'static str, &'static str), (bool, Instant)>>,
}

/// What a request is, for authorization: the verb, and subresources of the node, any of which suffices.
pub fn attributes(method: &Method, path: &str) -> (&'static str, &'static [&'static str]) {
    let under = |root: &str| path == root || path.strip_prefix(root).is_some_and(|r| r.starts_with('/'));
    // By what it does, not by its method: a WebSocket exec is a GET.
    if ["/exec", "/attach", "/portForward", "/run", "/cri"].iter().any(|r| under(r)) {
        return ("create", &["proxy"]);
    }
    let verb = match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    };
    let subresources: &[&str] = match () {
        () if under("/stats") => &["stats"],
        () if under("/metrics") => &["metrics"],
        () if under("/logs") => &["log"],
        () if under("/pods") || under("/runningpods") => &["pods", "proxy"],
        () if under("/healthz") => &["healthz", "proxy"],
        () if under("/configz") => &["configz", "proxy"],
        () => &["proxy"],
    };
    (verb, subresources)
}

impl Auth {
    /// Trusting client certificates of `cas`.
    pub fn new(ctx: Arc<Context>, cas: &[&str]) -> Result<Self, String> {
        let chains = if cas.is_empty() { None } else { Some(ClientChains::new(cas).map_err(|e| e.to_string())?) };
        Ok(Self { ctx, chains, tokens: Mutex::default(), decisions: Mutex::default() })
    }

    /// Who calls; `None`: nobody we know, which is a 401.
    pub async fn authenticate(&self, chain: &[CertificateDer<'static>], headers: &HeaderMap) -> Option<User> {
        if let (Some(chains), Some(leaf)) = (&self.chains, chain.first())
            && chains.verify(chain, self.ctx.clock.now()).is_ok()
        {
            let info = CertInfo::from_der(leaf).ok()?;
            return Some(User { name: info.common_name, groups: with_authenticated(info.organizations) });
        }
        let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
        let token = value.strip_prefix("Bearer ")?.trim();
        self.review(token).await
    }

    async fn review(&self, token: &str) -> Option<User> {
        let kept = self.tokens.lock().get(token).filter(|(_, at)| at.elapsed() < TOKEN_FOR).map(|(u, _)| u.clone());
        if kept.is_some() {
            return kept;
        }
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
        let answer = match self.ctx.client.create::<TokenReview>("", &review).await {
            Ok(a) => a.status?,
            Err(e) => {
                tracing::warn!(error = %e, "token not reviewed");
                return None;
            }
        };
        let user = answer.user.filter(|_| answer.authenticated == Some(true))?;
        let user = User { name: user.username.unwrap_or_default(), groups: user.groups.unwrap_or_default() };
        let mut tokens = self.tokens.lock();
        if tokens.len() >= KEPT_MAX {
            tokens.clear();
        }
        tokens.insert(token.to_owned(), (user.clone(), Instant::now()));
        Some(user)
    }

    /// Whether the caller may; the text says what not.
    pub async fn authorize(&self, user: &User, method: &Method, path: &str) -> Result<(), String> {
        let (verb, subresources) = attributes(method, path);
        if user.groups.iter().any(|g| g == "system:masters") {
            return Ok(());
        }
        for sub in subresources {
            if self.allowed(user, verb, sub).await {
                return Ok(());
            }
        }
        let node = &self.ctx.config.node_name;
        let wanted = subresources.last().copied().unwrap_or("proxy");
        Err(format!("Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{wanted}]) on {node}", user.name))
    }

    async fn allowed(&self, user: &User, verb: &'static str, sub: &'static str) -> bool {
        let key = (user.clone(), verb, sub);
        let kept = self.decisions.lock().get(&key).copied();
        if let Some((answer, _)) = kept.filter(|(a, at)| at.elapsed() < if *a { ALLOWED_FOR } else { DENIED_FOR }) {
            return answer;
        }
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
            "user": user.name, "groups": user.groups, "resourceAttributes": {
                "verb": verb, "version": "v1", "resource": "nodes", "subresource": sub, "name": self.ctx.config.node_name}}});
        let answer = match self.ctx.client.create::<SubjectAccessReview>("", &review).await {
            Ok(r) => r.status.is_some_and(|s| s.allowed),
            Err(e) => {
                // Not kept: the next caller asks again.
                tracing::warn!(error = %e, "access not reviewed");
                return false;
            }
        };
        let mut decisions = self.decisions.lock();
        if decisions.len() >= KEPT_MAX {
            decisions.clear();
        }
        decisions.insert(key, (answer, Instant::now()));
        answer
    }
}

fn with_authenticated(mut groups: Vec<String>) -> Vec<String> {
    groups.push("system:authenticated".into());
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_what_it_does() {
        for (method, path, verb, subs) in [
            (Method::GET, "/exec/n/p/c", "create", &["proxy"][..]),
            (Method::POST, "/exec/n/p/c", "create", &["proxy"]),
            (Method::GET, "/execute", "get", &["proxy"]),
            (Method::GET, "/containerLogs/n/p/c", "get", &["proxy"]),
            (Method::GET, "/pods", "get", &["pods", "proxy"]),
            (Method::GET, "/stats/summary", "get", &["stats"]),
            (Method::GET, "/metrics/cadvisor", "get", &["metrics"]),
            (Method::GET, "/logs/", "get", &["log"]),
        ] {
            assert_eq!(attributes(&method, path), (verb, subs), "{method} {path}");
        }
    }
}
