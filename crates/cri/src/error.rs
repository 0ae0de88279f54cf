//! What a call to the runtime can fail with. The text is gRPC's usual one, because it ends up in pod events and
//! conditions that people and programs read (`rpc error: code = NotFound desc = …`).

use tonic::{Code, Status};

/// A failed call to the container runtime.
#[derive(Debug, Clone, thiserror::Error)]
#[error("rpc error: code = {} desc = {message}", code_name(*code))]
pub struct CriError {
    /// The call that failed, e.g. `RunPodSandbox`.
    pub call: &'static str,
    /// gRPC's code, which tells what was not found from what went wrong.
    pub code: Code,
    /// The runtime's own words.
    pub message: String,
}

/// Result of a call to the runtime.
pub type CriResult<T> = Result<T, CriError>;

impl CriError {
    /// Builds an error of the client's own making.
    pub fn new(call: &'static str, code: Code, message: impl Into<String>) -> Self {
        Self { call, code, message: message.into() }
    }

    pub(crate) fn from_status(call: &'static str, status: &Status) -> Self {
        let mut message = status.message().to_owned();
        let mut code = status.code();
        // A socket that nobody listens on arrives as Unknown or Unavailable "transport error"; the cause says why.
        let mut cause = std::error::Error::source(status);
        let from_transport = cause.is_some();
        while let Some(err) = cause {
            let text = err.to_string();
            if !message.contains(&text) {
                message = if message.is_empty() { text } else { format!("{message}: {text}") };
            }
            cause = err.source();
        }
        if from_transport && code == Code::Unknown {
            code = Code::Unavailable;
        }
        Self { call, code, message }
    }

    /// The code as gRPC's own texts have it, e.g. `NotFound`.
    pub fn code_name(&self) -> &'static str {
        code_name(self.code)
    }

    /// The sandbox, container or image does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code == Code::NotFound
    }

    /// The time limit of the call passed; the work may still have been done.
    pub fn is_deadline_exceeded(&self) -> bool {
        self.code == Code::DeadlineExceeded
    }

    /// The runtime is not there (yet, or any more).
    pub fn is_unavailable(&self) -> bool {
        self.code == Code::Unavailable
    }

    /// The runtime is too old for this call.
    pub fn is_unimplemented(&self) -> bool {
        self.code == Code::Unimplemented
    }

    /// Whether the same call may succeed later with nothing changed.
    pub fn is_retriable(&self) -> bool {
        matches!(
            self.code,
            Code::Unavailable | Code::DeadlineExceeded | Code::Aborted | Code::ResourceExhausted | Code::Unknown
        )
    }
}

fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_as_grpc_errors_do() {
        let err = CriError::from_status("ContainerStatus", &Status::not_found("an error occurred"));
        assert_eq!(err.to_string(), "rpc error: code = NotFound desc = an error occurred");
        assert!(err.is_not_found() && !err.is_retriable());
    }
}
