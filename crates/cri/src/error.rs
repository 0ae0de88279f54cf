//! Errors of calls to the runtime. The message has gRPC's usual format, because it is shown in pod events and conditions
//! that people and programs read (`rpc error: code = NotFound desc = …`).

use tonic::{Code, Status};

/// A failed call to the container runtime.
#[derive(Debug, Clone, thiserror::Error)]
#[error("rpc error: code = {} desc = {message}", code_name(*code))]
pub struct CriError {
    /// The call that failed, e.g. `RunPodSandbox`.
    pub call: &'static str,
    /// The gRPC code, for instance to distinguish a missing object from a failure.
    pub code: Code,
    /// The runtime's message.
    pub message: String,
}

/// The result of a call to the runtime.
pub type CriResult<T> = Result<T, CriError>;

impl CriError {
    /// Creates an error of the client itself.
    pub fn new(call: &'static str, code: Code, message: impl Into<String>) -> Self {
        Self { call, code, message: message.into() }
    }

    pub(crate) fn from_status(call: &'static str, status: &Status) -> Self {
        let mut message = status.message().to_owned();
        let mut code = status.code();
        // A socket without a listener results in Unknown or Unavailable "transport error"; the cause has the reason.
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

    /// Returns the code's name in gRPC, e.g. `NotFound`.
    pub fn code_name(&self) -> &'static str {
        code_name(self.code)
    }

    /// Reports that the sandbox, container or image does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code == Code::NotFound
    }

    /// Reports that the time limit passed; the work may still have been done.
    pub fn is_deadline_exceeded(&self) -> bool {
        self.code == Code::DeadlineExceeded
    }

    /// Reports that the runtime is not available (yet, or any more).
    pub fn is_unavailable(&self) -> bool {
        self.code == Code::Unavailable
    }

    /// Reports that the runtime is too old for this call.
    pub fn is_unimplemented(&self) -> bool {
        self.code == Code::Unimplemented
    }

    /// Reports whether the same call may succeed later.
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
