//! The result of an exec, as the error stream carries it. `exec` and `exec_client` handle the streams. Upstream:
//! `client-go/tools/remotecommand/v4.go`, `cri-streaming/pkg/streaming/remotecommand/status.go`.

use serde_json::{Value, json};

/// The reason of a `Status` that carries an exit code.
pub const NON_ZERO_EXIT_CODE: &str = "NonZeroExitCode";
/// The reason of the cause with the exit code.
pub const EXIT_CODE_CAUSE: &str = "ExitCode";

/// The result of an exec or attach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecResult {
    /// The command ended with exit code zero.
    Success,
    /// The command ended with another exit code.
    ExitCode(i32),
    /// The command did not run, or its end is unknown. The message is for the user.
    Failed(String),
    /// A complete `metav1.Status` as JSON.
    Status(Value),
}

impl ExecResult {
    /// Makes an `InternalError` with upstream's message for commands that could not be run.
    pub fn internal_error(error: impl std::fmt::Display) -> Self {
        Self::Status(json!({
            "status": "Failure",
            "reason": "InternalError",
            "message": format!("Internal error occurred: {error}"),
            "code": 500,
        }))
    }

    /// The `metav1.Status` that protocol versions 4 and 5 carry.
    pub fn to_status(&self) -> Value {
        match self {
            ExecResult::Success => json!({ "metadata": {}, "status": "Success" }),
            ExecResult::ExitCode(0) => json!({ "metadata": {}, "status": "Success" }),
            ExecResult::ExitCode(code) => json!({
                "metadata": {},
                "status": "Failure",
                "message": self.message(),
                "reason": NON_ZERO_EXIT_CODE,
                "details": { "causes": [{ "reason": EXIT_CODE_CAUSE, "message": code.to_string() }] },
            }),
            ExecResult::Failed(message) => json!({ "metadata": {}, "status": "Failure", "message": message }),
            ExecResult::Status(status) => status.clone(),
        }
    }

    /// Returns the payload of the error stream: JSON from version 4 on, a plain message before, and nothing for
    /// success.
    pub(crate) fn payload(&self, json_status: bool) -> Vec<u8> {
        if json_status {
            return self.to_status().to_string().into_bytes();
        }
        if self.is_success() { Vec::new() } else { self.message().into_bytes() }
    }

    /// Reports whether the command ran and succeeded.
    pub fn is_success(&self) -> bool {
        match self {
            ExecResult::Success | ExecResult::ExitCode(0) => true,
            ExecResult::Status(status) => status["status"] == "Success",
            _ => false,
        }
    }

    /// The exit code, if the command's end is known.
    pub fn exit_code(&self) -> Option<i32> {
        match self {
            ExecResult::ExitCode(code) => Some(*code),
            _ => self.is_success().then_some(0),
        }
    }

    /// The message for people.
    pub fn message(&self) -> String {
        match self {
            ExecResult::Success => String::new(),
            ExecResult::ExitCode(code) => {
                format!("command terminated with non-zero exit code: command terminated with exit code {code}")
            }
            ExecResult::Failed(message) => message.clone(),
            ExecResult::Status(status) => status["message"].as_str().unwrap_or_default().to_owned(),
        }
    }

    /// Decodes the content of an error stream that has ended. Empty content means success.
    pub fn decode(payload: &[u8], json_status: bool) -> Self {
        if payload.is_empty() {
            return ExecResult::Success;
        }
        let text = String::from_utf8_lossy(payload);
        if !json_status {
            return ExecResult::Failed(format!("error executing remote command: {text}"));
        }
        let status: Value = match serde_json::from_slice(payload) {
            Ok(status) => status,
            Err(error) => return ExecResult::Failed(format!("error stream protocol error: {error} in {text:?}")),
        };
        if status["status"] == "Success" {
            return ExecResult::Success;
        }
        if status["status"] != "Failure" {
            return ExecResult::Failed("error stream protocol error: unknown error".into());
        }
        if status["reason"] != NON_ZERO_EXIT_CODE {
            return ExecResult::Status(status);
        }
        let causes = status["details"]["causes"].as_array().map(Vec::as_slice).unwrap_or_default();
        match causes.iter().find(|cause| cause["reason"] == EXIT_CODE_CAUSE) {
            None => ExecResult::Failed(format!("error stream protocol error: no {EXIT_CODE_CAUSE} cause given")),
            Some(cause) => match cause["message"].as_str().and_then(|code| code.parse::<u8>().ok()) {
                Some(code) => ExecResult::ExitCode(code.into()),
                None => ExecResult::Failed(format!(
                    "error stream protocol error: invalid exit code value {}",
                    cause["message"]
                )),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_back_as_they_went() {
        for result in [ExecResult::Success, ExecResult::ExitCode(7), ExecResult::internal_error("no such container")] {
            assert_eq!(ExecResult::decode(&result.payload(true), true), result);
        }
        assert_eq!(ExecResult::decode(b"", false), ExecResult::Success);
        let legacy = ExecResult::decode(&ExecResult::ExitCode(3).payload(false), false);
        assert!(legacy.message().starts_with("error executing remote command: command terminated"), "{legacy:?}");
    }

    #[test]
    fn broken_statuses_say_what_is_wrong() {
        let cases: [(&[u8], &str); 4] = [
            (b"nonsense", "error stream protocol error: expected"),
            (br#"{"status":"Odd"}"#, "unknown error"),
            (br#"{"status":"Failure","reason":"NonZeroExitCode"}"#, "no ExitCode cause given"),
            (
                br#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"x"}]}}"#,
                "invalid exit code value",
            ),
        ];
        for (payload, expected) in cases {
            let message = ExecResult::decode(payload, true).message();
            assert!(message.contains(expected), "{message}");
        }
    }
}
