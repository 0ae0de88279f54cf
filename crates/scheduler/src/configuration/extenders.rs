//! `extenders` of a configuration (`kubescheduler.config.k8s.io/v1` Extender), validated as upstream does.
use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::reader::{Reader, join};
use crate::extender::{Extender, ExtenderTls};
use crate::plugins::node_resources_fit::NodeResourcesFit;
use crate::profile::Profile;
use crate::run::Extenders;

/// The default timeout of a request to an extender.
const TIMEOUT: Duration = Duration::from_secs(5);

/// An extender, with those of its resources that the scheduler ignores.
pub(super) type WithIgnored = (Extender, Vec<String>);

/// Reads all extenders.
pub(super) fn extenders(r: &mut Reader, value: &Value) -> Vec<WithIgnored> {
    let mut out: Vec<WithIgnored> = Vec::new();
    let mut managed: HashSet<String> = HashSet::new();
    for (i, entry) in r.list("extenders", value).iter().enumerate() {
        let at = format!("extenders[{i}]");
        let read = extender(r, &at, entry);
        for (j, name) in read.0.managed.iter().enumerate() {
            let at = format!("{at}.managedResources[{j}].name");
            if !is_extended(name) {
                r.fault(&at, &format!("{name:?} is an invalid extended resource name"));
            }
            if !managed.insert(name.clone()) {
                r.fault(&at, &format!("{name:?}: duplicate extender managed resource name"));
            }
        }
        out.push(read);
    }
    let binders = out.iter().filter(|(e, _)| !e.bind.is_empty()).count();
    if binders > 1 {
        r.fault(
            "extenders",
            &format!("found {binders} extenders implementing bind: only one extender can implement bind"),
        );
    }
    out
}

/// Reports whether a resource name has a domain other than Kubernetes' own.
fn is_extended(name: &str) -> bool {
    let quota = name.starts_with("requests.");
    name.split_once('/').is_some_and(|(domain, rest)| {
        !quota
            && !domain.is_empty()
            && !rest.is_empty()
            && domain != "kubernetes.io"
            && !domain.ends_with(".kubernetes.io")
    })
}

fn extender(r: &mut Reader, at: &str, value: &Value) -> WithIgnored {
    let known = [
        "urlPrefix",
        "filterVerb",
        "preemptVerb",
        "prioritizeVerb",
        "weight",
        "bindVerb",
        "enableHTTPS",
        "tlsConfig",
        "httpTimeout",
        "nodeCacheCapable",
        "managedResources",
        "ignorable",
    ];
    r.fields(at, value, &known);
    let mut text = |name: &str| r.text(&join(at, name), &value[name]).unwrap_or_default().to_owned();
    let (url, filter, prioritize) = (text("urlPrefix"), text("filterVerb"), text("prioritizeVerb"));
    let (preempt, bind) = (text("preemptVerb"), text("bindVerb"));
    let timeout = text("httpTimeout");
    let timeout = if timeout.is_empty() { Ok(0) } else { kelson_meta::parse_nanos(&timeout) };
    if let Err(e) = &timeout {
        r.fault(&join(at, "httpTimeout"), &e.to_string());
    }
    // Zero means the default here as well, as upstream.
    let timeout = timeout.ok().and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0);
    let timeout = timeout.map_or(TIMEOUT, Duration::from_nanos);
    let weight = r.number(&join(at, "weight"), &value["weight"], (i64::MIN, i64::MAX)).unwrap_or(0);
    if !prioritize.is_empty() && weight <= 0 {
        r.fault(&join(at, "weight"), &format!("{weight}: must have a positive weight applied to it"));
    }
    let tls = tls(r, &join(at, "tlsConfig"), &value["tlsConfig"]);
    let (mut managed, mut ignored) = (Vec::new(), Vec::new());
    let at_managed = join(at, "managedResources");
    for (i, entry) in r.list(&at_managed, &value["managedResources"]).iter().enumerate() {
        let at = format!("{at_managed}[{i}]");
        r.fields(&at, entry, &["name", "ignoredByScheduler"]);
        let name = r.text(&join(&at, "name"), &entry["name"]).unwrap_or_default();
        managed.push(name.to_owned());
        if entry["ignoredByScheduler"] == true {
            ignored.push(name.to_owned());
        }
    }
    let knows_nodes = value["nodeCacheCapable"] == true;
    let ignorable = value["ignorable"] == true;
    let extender =
        Extender { url, filter, prioritize, preempt, bind, weight, timeout, knows_nodes, managed, ignorable, tls };
    (extender, ignored)
}

fn tls(r: &mut Reader, at: &str, value: &Value) -> ExtenderTls {
    let known = ["insecure", "serverName", "certFile", "keyFile", "caFile", "certData", "keyData", "caData"];
    r.fields(at, value, &known);
    let mut text = |name: &str| r.text(&join(at, name), &value[name]).unwrap_or_default().to_owned();
    let file = |path: String| Some(path).filter(|path| !path.is_empty()).map(PathBuf::from);
    let (server_name, cert_file, key_file) = (text("serverName"), file(text("certFile")), file(text("keyFile")));
    let ca_file = file(text("caFile"));
    let mut data = |name: &str| {
        let at = join(at, name);
        let text = r.text(&at, &value[name]).unwrap_or_default();
        STANDARD.decode(text).unwrap_or_else(|e| {
            r.fault(&at, &e.to_string());
            Vec::new()
        })
    };
    let (cert, key, ca) = (data("certData"), data("keyData"), data("caData"));
    let insecure = value["insecure"] == true;
    ExtenderTls { insecure, server_name, ca, ca_file, cert, cert_file, key, key_file }
}

/// Makes NodeResourcesFit ignore the resources that extenders manage. As upstream, this replaces the resources ignored
/// by the plugin's arguments.
pub(super) fn ignore(extenders: &[WithIgnored], profiles: &mut [Profile]) {
    let names: Vec<&'static str> =
        extenders.iter().flat_map(|(_, ignored)| ignored).map(|name| &*String::leak(name.clone())).collect();
    if names.is_empty() {
        return;
    }
    // A configuration is read once, and what plugins hold has the lifetime of the process.
    let names: &'static [&'static str] = Vec::leak(names);
    for profile in profiles {
        profile.fit.ignored = names;
        let plugin: &'static NodeResourcesFit = Box::leak(Box::new(profile.fit));
        for row in profile.rows.iter_mut().filter(|row| row.plugin.name() == "NodeResourcesFit") {
            row.plugin = plugin;
        }
    }
}

/// Connects each extender's URL and certificates.
pub(super) fn reach(r: &mut Reader, extenders: Vec<WithIgnored>) -> Extenders {
    Extenders::new(extenders.into_iter().map(|(e, _)| e).collect()).unwrap_or_else(|(i, why)| {
        r.fault(&format!("extenders[{i}]"), &why);
        Extenders::default()
    })
}
