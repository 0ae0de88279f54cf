//! The message of a failed rule for clients.
use kelson_cel::{Activation, Budget, EvalError, Program};
use kelson_meta::{FieldError, FieldErrorKind};
use serde_json::Value;

use crate::schema::Rule;

/// The size limit of a message from an expression, in bytes.
const MESSAGE_BYTES_MAX: usize = 5 * 1024;

/// Returns the name of the rule in messages: its author's message, or else the rule itself.
pub(super) fn name_of(rule: &Rule) -> &str {
    if rule.message.is_empty() { rule.rule.trim() } else { rule.message.trim() }
}

/// Returns the message without a message expression.
pub(super) fn plain(rule: &Rule) -> String {
    if rule.message.is_empty() { format!("failed rule: {}", rule.rule.trim()) } else { rule.message.trim().to_owned() }
}

/// The result of a message expression.
pub(super) enum RuleMessage {
    /// The message for the client.
    Message(String),
    /// The message cannot be shown; the plain message is used.
    Unusable,
    /// The message costs too much; no further rules are evaluated.
    TooDear(String),
}

/// Evaluates the expression for a message. `left` is the request's remaining budget.
pub(super) fn evaluate<'a>(
    program: &'a Program,
    source: &str,
    activation: &Activation<'a>,
    budget: &mut Budget,
    left: u64,
) -> RuleMessage {
    let before = budget.spent();
    let value = program.eval(activation, budget);
    if budget.spent() - before > left {
        let why = "messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run";
        return RuleMessage::TooDear(why.to_owned());
    }
    let text = match value {
        Ok(value) => value.as_text().map(|text| text.trim().to_owned()),
        Err(EvalError::CostLimit) => {
            return RuleMessage::TooDear(format!(
                "no further validation rules will be run due to call cost exceeds limit for messageExpression: {source:?}"
            ));
        }
        Err(_) => None,
    };
    let usable = |text: &String| !text.is_empty() && text.len() <= MESSAGE_BYTES_MAX && !text.contains('\n');
    text.filter(usable).map_or(RuleMessage::Unusable, RuleMessage::Message)
}

/// Makes the error of a failed rule with the reason of its author. Values of objects and lists are not shown.
pub(super) fn error(path: String, value: &Value, detail: String, reason: &str) -> FieldError {
    let shown = (!value.is_object() && !value.is_array()).then(|| value.to_string());
    match reason {
        "FieldValueForbidden" => FieldError { kind: FieldErrorKind::Forbidden, path, value: None, detail },
        "FieldValueRequired" => FieldError { kind: FieldErrorKind::Required, path, value: None, detail },
        "FieldValueDuplicate" => {
            FieldError { kind: FieldErrorKind::Duplicate, path, value: shown, detail: String::new() }
        }
        _ => FieldError { kind: FieldErrorKind::Invalid, path, value: shown, detail },
    }
}
