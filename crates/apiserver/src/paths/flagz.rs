//! `/flagz`: the process's flags with their effective values (KEP-4828, `component-base/zpages/flagz`).
use kelson_meta::Status;
use serde_json::{Value, json};

use crate::paths::zpage::Zpage;
use crate::request::answer::Answer;
use crate::shared::context::RequestContext;

const PAGE: Zpage = Zpage { name: "flagz", kind: "Flagz" };

/// Answers in the first supported form in `Accept`.
///
/// # Errors
/// 406 if none is supported.
pub fn serve(cx: &RequestContext) -> Result<Answer, Status> {
    let flags = &cx.server.config.flags;
    let text = || flags.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    let all = || flags.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str()))).collect::<Value>();
    PAGE.serve(cx, text, || json!({"flags": all()}))
}
