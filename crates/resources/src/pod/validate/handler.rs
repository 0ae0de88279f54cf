//! Validates probes and lifecycle hooks.
use serde_json::Value;

use super::context::Pod;
use crate::path::{Errors, Path};
use crate::rules;
use crate::tree::{int, int0, items, present, text};

/// Validates lifecycle and the three probes of a container that may have them.
pub fn lifecycle_and_probes(c: &Value, pod: &Pod<'_>, p: &Path<'_>, e: &mut Errors) {
    let life = &c["lifecycle"];
    let at = p.child("lifecycle");
    for hook in ["postStart", "preStop"] {
        if present(&life[hook]) {
            handler(&life[hook], pod, &at.child(hook), e);
        }
    }
    if let Some(signal) = life["stopSignal"].as_str() {
        stop_signal(signal, pod.os, &at.child("stopSignal"), e);
    }
    for kind in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let probe = &c[kind];
        if !present(probe) {
            continue;
        }
        let at = p.child(kind);
        check_probe(probe, pod, &at, e);
        if kind == "readinessProbe" {
            if present(&probe["terminationGracePeriodSeconds"]) {
                e.invalid(
                    &at.child("terminationGracePeriodSeconds"),
                    &probe["terminationGracePeriodSeconds"],
                    "must not be set for readinessProbes",
                );
            }
        } else if int0(&probe["successThreshold"]) != 1 {
            e.invalid(&at.child("successThreshold"), int0(&probe["successThreshold"]), "must be 1");
        }
    }
}

fn check_probe(probe: &Value, pod: &Pod<'_>, p: &Path<'_>, e: &mut Errors) {
    handler(probe, pod, p, e);
    for f in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"] {
        rules::not_negative(&probe[f], &p.child(f), e);
    }
    if let Some(n) = int(&probe["terminationGracePeriodSeconds"])
        && n <= 0
    {
        e.invalid(&p.child("terminationGracePeriodSeconds"), n, "must be greater than 0");
    }
}

/// Validates a handler: exactly one action.
fn handler(h: &Value, pod: &Pod<'_>, p: &Path<'_>, e: &mut Errors) {
    let mut handlers = 0;
    for kind in ["exec", "httpGet", "tcpSocket", "grpc", "sleep"] {
        let action = &h[kind];
        if !present(action) {
            continue;
        }
        let at = p.child(kind);
        handlers += 1;
        if handlers > 1 {
            e.forbidden(&at, "may not specify more than 1 handler type");
            continue;
        }
        match kind {
            "exec" => {
                if items(&action["command"]).is_empty() {
                    e.required(&at.child("command"), "");
                }
            }
            "httpGet" => http_get(action, &at, e),
            "tcpSocket" => rules::port_or_name(&action["port"], &at.child("port"), e),
            "grpc" => rules::port(&action["port"], &at.child("port"), e),
            _ => {
                let seconds = int0(&action["seconds"]);
                if let Some(grace) = pod.grace
                    && (seconds < 0 || seconds > grace)
                {
                    let why = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
                    e.invalid(&at, seconds, why);
                }
            }
        }
    }
    if handlers == 0 {
        e.required(p, "must specify a handler type");
    }
}

fn http_get(h: &Value, p: &Path<'_>, e: &mut Errors) {
    rules::required(&h["path"], &p.child("path"), e);
    rules::port_or_name(&h["port"], &p.child("port"), e);
    let scheme = text(&h["scheme"]);
    if !matches!(scheme, "HTTP" | "HTTPS") {
        e.not_supported(&p.child("scheme"), scheme, &["HTTP", "HTTPS"]);
    }
    for header in items(&h["httpHeaders"]) {
        let name = text(&header["name"]);
        if name.is_empty() || !name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-') {
            e.invalid(
                &p.child("httpHeaders"),
                name,
                "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')",
            );
        }
    }
}

fn stop_signal(signal: &str, os: &str, p: &Path<'_>, e: &mut Errors) {
    const NAMED: &str = " ABRT ALRM BUS CHLD CLD CONT FPE HUP ILL INT IO IOT KILL PIPE POLL PROF PWR QUIT SEGV STKFLT STOP SYS TERM TRAP TSTP TTIN TTOU URG USR1 USR2 VTALRM WINCH XCPU XFSZ RTMIN RTMAX ";
    let known = |s: &str| {
        let in_range = |n: &str, max: u8| n.parse::<u8>().is_ok_and(|n| (1..=max).contains(&n));
        s.strip_prefix("SIG").is_some_and(|n| {
            NAMED.contains(&format!(" {n} "))
                || n.strip_prefix("RTMIN+").is_some_and(|n| in_range(n, 15))
                || n.strip_prefix("RTMAX-").is_some_and(|n| in_range(n, 14))
        })
    };
    match os {
        "" => e.forbidden(p, "may not be set for containers with empty `spec.os.name`"),
        "windows" if !matches!(signal, "SIGKILL" | "SIGTERM") => {
            e.not_supported(p, signal, &["SIGKILL", "SIGTERM"]);
        }
        "linux" if !known(signal) => e.not_supported(p, signal, &[]),
        _ => {}
    }
}
