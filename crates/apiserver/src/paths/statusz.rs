//! `/statusz`: version and uptime of the server (KEP-4827, `component-base/zpages/statusz`).
use kelson_meta::version::{GIT_VERSION, MAJOR, MINOR};
use kelson_meta::{Status, format_seconds};
use serde_json::json;

use crate::paths::zpage::Zpage;
use crate::request::answer::Answer;
use crate::shared::context::RequestContext;

const PAGE: Zpage = Zpage { name: "statusz", kind: "Statusz" };
/// Paths of a component outside its API.
const PATHS: [&str; 7] = ["/flagz", "/healthz", "/livez", "/metrics", "/readyz", "/statusz", "/version"];

/// Answers in the first supported form in `Accept`.
///
/// # Errors
/// 406 if none is supported.
pub fn serve(cx: &RequestContext) -> Result<Answer, Status> {
    let (started, now) = (cx.server.started_at, cx.server.clock.now());
    let up_s = now.duration_since(started).as_secs().max(0);
    let binary = GIT_VERSION.split('+').next().unwrap_or_default().trim_start_matches('v');
    let emulated = format!("{MAJOR}.{MINOR}");
    let text = || {
        let (hours, minutes, seconds) = (up_s / 3600, up_s / 60 % 60, up_s % 60);
        let started = started.strftime("%a %b %e %H:%M:%S UTC %Y");
        format!(
            "\nStarted: {started}\nUp: {hours} hr {minutes:02} min {seconds:02} sec\nGo version: none\nBinary version: \
             {binary}\nEmulation version: {emulated}\nPaths: {}\n",
            PATHS.join(" ")
        )
    };
    let fields = || {
        json!({
            "startTime": format_seconds(started),
            "uptimeSeconds": up_s,
            "goVersion": "none",
            "binaryVersion": binary,
            "emulationVersion": emulated,
            "paths": PATHS,
        })
    };
    PAGE.serve(cx, text, fields)
}
