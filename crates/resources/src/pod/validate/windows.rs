//! Validates Windows options: accounts, group managed service accounts, and host process containers.
use kelson_meta::is_dns1123_subdomain;
use serde_json::Value;

use crate::path::{Errors, Path};
use crate::tree::{flag, items, present};

const CREDENTIAL_SPEC_MAX: usize = 64 * 1024;
/// The length of a domain must be below this.
const DOMAIN_END: usize = 256;
const USER_MAX: usize = 104;

/// Validates `windowsOptions` of a pod or a container.
pub fn options(o: &Value, p: &Path<'_>, e: &mut Errors) {
    if !present(o) {
        return;
    }
    if let Some(name) = o["gmsaCredentialSpecName"].as_str() {
        e.invalid_each(&p.child("gmsaCredentialSpecName"), name, is_dns1123_subdomain(name));
    }
    let at = p.child("gmsaCredentialSpec");
    match o["gmsaCredentialSpec"].as_str() {
        Some("") => e.invalid(&at, "", "gmsaCredentialSpec cannot be an empty string"),
        Some(spec) if spec.len() > CREDENTIAL_SPEC_MAX => {
            e.invalid(&at, spec, "gmsaCredentialSpec size must be under 64 KiB");
        }
        _ => {}
    }
    if let Some(name) = o["runAsUserName"].as_str() {
        account(name, &p.child("runAsUserName"), e);
    }
}

/// Validates `USER` or `DOMAIN\USER`.
fn account(name: &str, p: &Path<'_>, e: &mut Errors) {
    if name.is_empty() {
        return e.invalid(p, name, "runAsUserName cannot be an empty string");
    }
    if name.bytes().any(|c| c.is_ascii_control()) {
        return e.invalid(p, name, "runAsUserName cannot contain control characters");
    }
    let parts: Vec<&str> = name.split('\\').collect();
    let (domain, user) = match parts.as_slice() {
        [user] => (None, *user),
        [domain, user] => (Some(*domain), *user),
        _ => return e.invalid(p, name, "runAsUserName cannot contain more than one backslash"),
    };
    if let Some(domain) = domain {
        if domain.len() >= DOMAIN_END {
            e.invalid(p, name, "runAsUserName's Domain length must be under 256 characters");
        }
        if !is_net_bios(domain) && !is_domain(domain) {
            e.invalid(p, name, "runAsUserName's Domain doesn't match the NetBios nor the DNS format");
        }
    }
    if user.is_empty() {
        e.invalid(p, name, "runAsUserName's User cannot be empty");
    } else if user.len() > USER_MAX {
        e.invalid(p, name, "runAsUserName's User length must not be longer than 104 characters");
    }
    if !user.is_empty() && user.chars().all(|c| matches!(c, '.' | ' ')) {
        e.invalid(p, name, "runAsUserName's User cannot contain only periods or spaces");
    }
    if user.contains(['"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']']) {
        let why = "runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]";
        e.invalid(p, name, why);
    }
}

/// Reports whether this is a NetBIOS name: at most 15 characters, the first of which is not a period.
fn is_net_bios(name: &str) -> bool {
    let fits = |c: char| !matches!(c, '\\' | '/' | ':' | '*' | '?' | '"' | '<' | '>' | '|');
    (1..=15).contains(&name.chars().count()) && !name.starts_with('.') && name.chars().all(fits)
}

/// Reports whether this is a domain: labels of letters, digits and inner dashes, in any case.
fn is_domain(name: &str) -> bool {
    name.split('.').all(|label| {
        let bytes = label.as_bytes();
        let ends = |c: Option<&u8>| c.is_some_and(u8::is_ascii_alphanumeric);
        ends(bytes.first()) && ends(bytes.last()) && bytes.iter().all(|c| c.is_ascii_alphanumeric() || *c == b'-')
    })
}

/// Validates host process containers: all containers of a pod or none, with the host network.
pub fn host_process(spec: &Value, p: &Path<'_>, e: &mut Errors) {
    let of = |context: &Value| context["windowsOptions"]["hostProcess"].as_bool();
    let whole = of(&spec["securityContext"]);
    let (mut all, mut of_host) = (0, 0);
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        let at = p.child(list);
        for (i, c) in items(&spec[list]).iter().enumerate() {
            all += 1;
            let own = of(&c["securityContext"]);
            if let (Some(whole), Some(own)) = (whole, own)
                && whole != own
            {
                let at = at.index(i);
                let context = at.child("securityContext");
                let options = context.child("windowsOptions");
                let why = format!("pod hostProcess value must be identical if both are specified, was {whole}");
                e.invalid(&options.child("hostProcess"), own, why);
            }
            of_host += usize::from(own.or(whole).unwrap_or(false));
        }
    }
    if of_host == 0 {
        return;
    }
    if of_host != all {
        let why = "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        e.invalid(p, "", why);
    }
    if !flag(&spec["hostNetwork"]) {
        let why = "hostNetwork must be true if pod contains any hostProcess containers";
        e.invalid(&p.child("hostNetwork"), false, why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn faults(look: impl Fn(&mut Errors)) -> Vec<String> {
        let mut e = Errors::new();
        look(&mut e);
        e.finish().0.into_iter().map(|f| f.path).collect()
    }

    #[test]
    fn accounts() {
        let p = Path::new("u");
        for good in ["ContainerUser", "NT AUTHORITY\\NETWORK SERVICE", "a.b\\u", "d\\u"] {
            assert!(faults(|e| account(good, &p, e)).is_empty(), "{good}");
        }
        for bad in ["", "a\\b\\c", "\\u", "d\\", "..", "a@b", "a\u{1}", ".d\\u"] {
            assert!(!faults(|e| account(bad, &p, e)).is_empty(), "{bad}");
        }
    }

    #[test]
    fn processes_of_the_host_are_all_of_a_pods_containers() {
        let of = |own: Value| json!({"securityContext": {"windowsOptions": {"hostProcess": own}}});
        let p = Path::new("spec");
        let whole = json!({"hostNetwork": true, "securityContext": {"windowsOptions": {"hostProcess": true}}, "containers": [{}]});
        assert!(faults(|e| host_process(&whole, &p, e)).is_empty());
        let one = json!({"containers": [of(json!(true)), {}]});
        assert_eq!(faults(|e| host_process(&one, &p, e)), ["spec", "spec.hostNetwork"]);
        let against =
            json!({"hostNetwork": true, "securityContext": whole["securityContext"], "containers": [of(json!(false))]});
        assert_eq!(
            faults(|e| host_process(&against, &p, e)),
            ["spec.containers[0].securityContext.windowsOptions.hostProcess"]
        );
    }
}
