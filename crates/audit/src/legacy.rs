//! The legacy format of an event, one line (`--audit-log-format=legacy`).
use std::fmt::Write as _;

use crate::event::Event;

/// Formats an event as a line. Strings are quoted, so that a client cannot inject another line.
pub fn line(event: &Event) -> String {
    let user = &event.user;
    let known = !user.name.is_empty();
    let name = if known { user.name.as_str() } else { "<none>" };
    let groups = if known && !user.groups.is_empty() { quoted(&user.groups) } else { "<none>".to_owned() };
    let other = event.impersonated_user.as_deref();
    let as_user = other.map_or("<self>", |other| other.name.as_str());
    let as_groups = other.filter(|o| !o.groups.is_empty()).map_or("<lookup>".to_owned(), |o| quoted(&o.groups));
    let namespace = event.object_ref.as_ref().map_or("", |o| o.namespace.as_str());
    let namespace = if namespace.is_empty() { "<none>" } else { namespace };
    let ip = event.source_ips.first().map_or("<unknown>".to_owned(), ToString::to_string);
    let response = event.response_status.as_ref().map_or("<deferred>".to_owned(), |s| s["code"].to_string());
    let mut out = String::with_capacity(256);
    // Writing to memory cannot fail.
    let _ = writeln!(
        out,
        "{} AUDIT: id={:?} stage={:?} ip={ip:?} method={:?} user={name:?} groups={groups:?} as={as_user:?} \
         asgroups={as_groups:?} user-agent={:?} namespace={namespace:?} uri={:?} response=\"{response}\"",
        event.received_at,
        event.audit_id,
        event.stage.as_str(),
        event.verb,
        event.user_agent,
        event.request_uri,
    );
    out
}

fn quoted(list: &[String]) -> String {
    list.iter().map(|text| format!("{text:?}")).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::sample;

    #[test]
    fn lines() {
        let mut event = sample::full();
        assert_eq!(
            line(&event),
            "2026-01-02T03:04:05.678901Z AUDIT: id=\"id-1\" stage=\"ResponseComplete\" ip=\"192.0.2.1\" \
             method=\"create\" user=\"jane\" groups=\"\\\"dev\\\",\\\"ops\\\"\" as=\"bot\" \
             asgroups=\"\\\"robots\\\"\" user-agent=\"kubectl/v1.2\" namespace=\"a\" \
             uri=\"/api/v1/namespaces/a/secrets?x=1\" response=\"201\"\n"
        );
        event.impersonated_user = None;
        event.object_ref = None;
        event.response_status = None;
        event.source_ips.clear();
        event.user_agent = "two\nlines".into();
        let text = line(&event);
        assert_eq!(text.lines().count(), 1);
        for part in [
            "ip=\"<unknown>\"",
            "as=\"<self>\"",
            "asgroups=\"<lookup>\"",
            "namespace=\"<none>\"",
            "response=\"<deferred>\"",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
