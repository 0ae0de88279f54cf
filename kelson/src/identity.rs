//! Flags of the API server for authentication and authorization: token issuers, webhooks, and configuration files.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use kelson_apiserver::{AuthorizationMode, Config, TokenWebhook};
use kelson_auth::authenticate::jwt::{AuthenticationConfiguration, Issuer, OidcFlags};
use kelson_auth::authorize::Mode;
use kelson_auth::authorize::config::{self as authorization, Configured, WebhookConfig};
use kelson_auth::authorize::webhook::{FailurePolicy, WebhookOptions};
use kelson_meta::parse_duration;

/// Upstream's timeout of a call to a webhook configured by flags.
const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Args, Debug, Clone)]
pub struct IdentityArgs {
    /// AuthenticationConfiguration file: token issuers and anonymous authentication.
    #[arg(long, value_name = "FILE", conflicts_with = "oidc_issuer_url")]
    pub authentication_config: Option<PathBuf>,
    /// Issuer of OpenID Connect tokens.
    #[arg(long, value_name = "URL", requires = "oidc_client_id")]
    pub oidc_issuer_url: Option<String>,
    /// Client ID for which tokens must be issued (audience).
    #[arg(long, value_name = "ID", requires = "oidc_issuer_url")]
    pub oidc_client_id: Option<String>,
    /// CA bundle for the issuer's server [default: the system's CAs]
    #[arg(long, value_name = "FILE")]
    pub oidc_ca_file: Option<PathBuf>,
    /// Claim with the user's name.
    #[arg(long, value_name = "CLAIM", default_value = "sub")]
    pub oidc_username_claim: String,
    /// Prefix of user names; `-` for none [default: the issuer and `#`, or none for the claim `email`]
    #[arg(long, value_name = "PREFIX", default_value = "")]
    pub oidc_username_prefix: String,
    /// Claim with the user's groups.
    #[arg(long, value_name = "CLAIM", default_value = "")]
    pub oidc_groups_claim: String,
    /// Prefix of group names.
    #[arg(long, value_name = "PREFIX", default_value = "")]
    pub oidc_groups_prefix: String,
    /// Allowed signing algorithms of the issuer.
    #[arg(long, value_name = "ALGS", value_delimiter = ',', default_value = "RS256")]
    pub oidc_signing_algs: Vec<String>,
    /// Claim that every token must have with this value. Repeatable.
    #[arg(long, value_name = "CLAIM=VALUE", value_delimiter = ',', value_parser = crate::args::pair)]
    pub oidc_required_claim: Vec<(String, String)>,
    /// Kubeconfig of the token review webhook.
    #[arg(long, value_name = "FILE")]
    pub authentication_token_webhook_config_file: Option<PathBuf>,
    /// API version of the reviews sent to the webhook.
    #[arg(long, value_name = "VERSION", default_value = "v1beta1", value_parser = ["v1", "v1beta1"])]
    pub authentication_token_webhook_version: String,
    /// Time to cache the webhook's responses.
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = parse_duration)]
    pub authentication_token_webhook_cache_ttl: Duration,
    /// AuthorizationConfiguration file: the ordered authorizers. Replaces --authorization-mode.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["authorization_mode", "authorization_webhook_config_file"])]
    pub authorization_config: Option<PathBuf>,
    /// Kubeconfig of the webhook for --authorization-mode=Webhook.
    #[arg(long, value_name = "FILE")]
    pub authorization_webhook_config_file: Option<PathBuf>,
    /// API version of the reviews sent to the webhook.
    #[arg(long, value_name = "VERSION", default_value = "v1beta1", value_parser = ["v1", "v1beta1"])]
    pub authorization_webhook_version: String,
    /// Time to cache allowed requests.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    pub authorization_webhook_cache_authorized_ttl: Duration,
    /// Time to cache denied requests.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    pub authorization_webhook_cache_unauthorized_ttl: Duration,
    /// Time after its expiry in which a node's certificate may be used to request a new one for the same node, unless
    /// that node is up; 0 disables this.
    #[arg(long, value_name = "TIME", default_value = "72h", value_parser = crate::args::parse_ttl)]
    pub node_return_grace: Duration,
}

fn version(text: &str) -> &'static str {
    if text == "v1" { "v1" } else { "v1beta1" }
}

/// Reads a file.
///
/// # Errors
/// The file cannot be read; the message names the flag.
pub fn read(flag: &str, file: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("{flag} {}", file.display()))
}

/// Joins all errors of a file or of flags.
fn sound<T>(what: &str, judged: Result<T, Vec<String>>) -> anyhow::Result<T> {
    judged.map_err(|faults| anyhow::anyhow!("{what} is invalid:\n  {}", faults.join("\n  ")))
}

/// Returns the authorizers in their order; a webhook is identified by its index among the webhooks.
fn in_order(configured: Vec<Configured>) -> (Vec<AuthorizationMode>, Vec<WebhookConfig>) {
    let (mut modes, mut webhooks) = (Vec::new(), Vec::new());
    for one in configured {
        modes.push(match one {
            Configured::Mode(Mode::Node) => AuthorizationMode::Node,
            Configured::Mode(Mode::Rbac) => AuthorizationMode::Rbac,
            Configured::Mode(Mode::AlwaysAllow) => AuthorizationMode::AlwaysAllow,
            Configured::Mode(Mode::AlwaysDeny) => AuthorizationMode::AlwaysDeny,
            Configured::Webhook(webhook) => {
                webhooks.push(webhook);
                AuthorizationMode::Webhook(webhooks.len() - 1)
            }
        });
    }
    (modes, webhooks)
}

impl IdentityArgs {
    /// Applies the flags and their files to the server's configuration; `modes` is `--authorization-mode`.
    ///
    /// # Errors
    /// An unreadable file, and all errors of a file.
    pub fn apply(&self, modes: &[String], config: &mut Config) -> anyhow::Result<()> {
        config.node_return = Some(self.node_return_grace).filter(|grace| !grace.is_zero());
        if let Some(file) = &self.authentication_config {
            let parsed = self.authentication(&read("--authentication-config", file)?)?;
            config.issuers = parsed.issuers;
            config.anonymous = parsed.anonymous;
            config.issuers_may_change = true;
        }
        if let Some(url) = &self.oidc_issuer_url {
            config.issuers = vec![Arc::new(sound("--oidc-*", Issuer::of_flags(&self.oidc(url)?))?)];
        }
        config.token_webhook = self.authentication_token_webhook_config_file.clone().map(|kubeconfig| TokenWebhook {
            kubeconfig,
            version: version(&self.authentication_token_webhook_version),
            kept_for: self.authentication_token_webhook_cache_ttl,
            timeout: WEBHOOK_TIMEOUT,
        });
        (config.authorization, config.authorization_webhooks) = match &self.authorization_config {
            Some(file) => self.authorization(&read("--authorization-config", file)?)?,
            None => in_order(modes.iter().map(|mode| self.configured(mode)).collect::<anyhow::Result<_>>()?),
        };
        config.authorization_may_change = self.authorization_config.is_some();
        Ok(())
    }

    /// Reads an AuthenticationConfiguration.
    ///
    /// # Errors
    /// All errors in it.
    pub fn authentication(&self, data: &[u8]) -> anyhow::Result<AuthenticationConfiguration> {
        let file = self.authentication_config.as_deref().unwrap_or(Path::new(""));
        sound(&format!("--authentication-config {}", file.display()), AuthenticationConfiguration::parse(data))
    }

    /// Reads an AuthorizationConfiguration: the authorizers in their order, and the webhooks among them.
    ///
    /// # Errors
    /// All errors in it.
    pub fn authorization(&self, data: &[u8]) -> anyhow::Result<(Vec<AuthorizationMode>, Vec<WebhookConfig>)> {
        let file = self.authorization_config.as_deref().unwrap_or(Path::new(""));
        let parsed = authorization::parse(data, |text: &str| parse_duration(text).ok());
        Ok(in_order(sound(&format!("--authorization-config {}", file.display()), parsed)?))
    }

    fn oidc(&self, url: &str) -> anyhow::Result<OidcFlags> {
        let ca = match &self.oidc_ca_file {
            Some(file) => String::from_utf8_lossy(&read("--oidc-ca-file", file)?).into_owned(),
            None => String::new(),
        };
        Ok(OidcFlags {
            issuer_url: url.to_owned(),
            client_id: self.oidc_client_id.clone().unwrap_or_default(),
            ca_pem: ca,
            username_claim: self.oidc_username_claim.clone(),
            username_prefix: self.oidc_username_prefix.clone(),
            groups_claim: self.oidc_groups_claim.clone(),
            groups_prefix: self.oidc_groups_prefix.clone(),
            signing_algs: self.oidc_signing_algs.clone(),
            required_claims: self.oidc_required_claim.clone(),
        })
    }

    fn configured(&self, mode: &str) -> anyhow::Result<Configured> {
        if mode != "Webhook" {
            let Ok(mode) = mode.parse() else {
                bail!("--authorization-mode: {mode:?} is none of Node, RBAC, Webhook, AlwaysAllow, AlwaysDeny");
            };
            return Ok(Configured::Mode(mode));
        }
        let Some(kubeconfig) = self.authorization_webhook_config_file.clone() else {
            bail!("--authorization-mode=Webhook needs --authorization-webhook-config-file");
        };
        let options = WebhookOptions {
            name: "default".into(),
            version: version(&self.authorization_webhook_version),
            authorized_ttl: self.authorization_webhook_cache_authorized_ttl,
            unauthorized_ttl: self.authorization_webhook_cache_unauthorized_ttl,
            failure_policy: FailurePolicy::NoOpinion,
            match_conditions: Vec::new(),
        };
        Ok(Configured::Webhook(WebhookConfig { options, kubeconfig, timeout: WEBHOOK_TIMEOUT }))
    }
}
