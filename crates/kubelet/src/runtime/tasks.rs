//! Client of containerd's task API for running an exec process in a container. CRI's Exec streaming is not used, because its server treats
//! the end of a command's output as the end of its input (containerd#12734, #13934).
use http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

/// Namespace in which containerd's CRI plugin keeps its containers.
const NAMESPACE: &str = "k8s.io";
/// Type URL of a process specification.
const PROCESS_TYPE: &str = "types.containerd.io/opencontainers/runtime-spec/1/Process";

#[derive(Clone, PartialEq, prost::Message)]
struct AnyMessage {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ExecProcessRequest {
    #[prost(string, tag = "1")]
    container_id: String,
    #[prost(string, tag = "2")]
    stdin: String,
    #[prost(string, tag = "3")]
    stdout: String,
    #[prost(string, tag = "4")]
    stderr: String,
    #[prost(bool, tag = "5")]
    terminal: bool,
    #[prost(message, optional, tag = "6")]
    spec: Option<AnyMessage>,
    #[prost(string, tag = "7")]
    exec_id: String,
}

/// Shared form of `StartRequest`, `WaitRequest` and `DeleteProcessRequest`.
#[derive(Clone, PartialEq, prost::Message)]
struct ProcessRequest {
    #[prost(string, tag = "1")]
    container_id: String,
    #[prost(string, tag = "2")]
    exec_id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct CloseIoRequest {
    #[prost(string, tag = "1")]
    container_id: String,
    #[prost(string, tag = "2")]
    exec_id: String,
    #[prost(bool, tag = "3")]
    stdin: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct WaitResponse {
    #[prost(uint32, tag = "1")]
    exit_status: u32,
}

/// A response whose fields are not read.
#[derive(Clone, PartialEq, prost::Message)]
struct Nothing {}

/// Paths of the process's named pipes; an empty path means not connected.
#[derive(Clone, Debug, Default)]
pub struct Pipes {
    /// Standard input of the process.
    pub stdin: String,
    /// Standard output of the process.
    pub stdout: String,
    /// Standard error of the process.
    pub stderr: String,
}

/// An exec process of a container.
#[derive(Clone)]
pub struct Process {
    channel: Channel,
    container: String,
    /// ID of the process within the container.
    pub id: String,
}

impl Process {
    /// Connects to the runtime at `endpoint`; the process is not created yet.
    pub async fn new(endpoint: &str, container: &str, id: &str) -> Result<Self, String> {
        let path = endpoint.trim_start_matches("unix://");
        let endpoint = Endpoint::from_shared(format!("unix://{path}")).map_err(|e| e.to_string())?;
        let channel = endpoint.connect().await.map_err(|e| e.to_string())?;
        Ok(Self { channel, container: container.to_owned(), id: id.to_owned() })
    }

    async fn call<Q, A>(&self, path: &'static str, body: Q) -> Result<A, String>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(|e| e.to_string())?;
        let mut request = tonic::Request::new(body);
        let namespace = tonic::metadata::MetadataValue::from_static(NAMESPACE);
        request.metadata_mut().insert("containerd-namespace", namespace);
        let codec = ProstCodec::<Q, A>::default();
        let answer = grpc.unary(request, PathAndQuery::from_static(path), codec).await;
        answer.map(tonic::Response::into_inner).map_err(|s| s.message().to_owned())
    }

    fn named(&self) -> ProcessRequest {
        ProcessRequest { container_id: self.container.clone(), exec_id: self.id.clone() }
    }

    /// Creates the process. `spec` is the JSON of `process` of the OCI runtime specification.
    pub async fn create(&self, spec: Vec<u8>, pipes: &Pipes) -> Result<(), String> {
        let request = ExecProcessRequest {
            container_id: self.container.clone(),
            stdin: pipes.stdin.clone(),
            stdout: pipes.stdout.clone(),
            stderr: pipes.stderr.clone(),
            terminal: false,
            spec: Some(AnyMessage { type_url: PROCESS_TYPE.into(), value: spec }),
            exec_id: self.id.clone(),
        };
        self.call::<_, Nothing>("/containerd.services.tasks.v1.Tasks/Exec", request).await.map(drop)
    }
    /// Starts the process. It has opened its ends of the pipes when this returns.
    pub async fn start(&self) -> Result<(), String> {
        self.call::<_, Nothing>("/containerd.services.tasks.v1.Tasks/Start", self.named()).await.map(drop)
    }
    /// Waits for the end of the process and returns its exit code.
    pub async fn wait(&self) -> Result<u32, String> {
        let answer: WaitResponse = self.call("/containerd.services.tasks.v1.Tasks/Wait", self.named()).await?;
        Ok(answer.exit_status)
    }
    /// Closes the runtime's end of the process's standard input.
    pub async fn close_stdin(&self) -> Result<(), String> {
        let ProcessRequest { container_id, exec_id } = self.named();
        let request = CloseIoRequest { container_id, exec_id, stdin: true };
        self.call::<_, Nothing>("/containerd.services.tasks.v1.Tasks/CloseIO", request).await.map(drop)
    }
    /// Deletes the process after it ended.
    pub async fn delete(&self) -> Result<(), String> {
        self.call::<_, Nothing>("/containerd.services.tasks.v1.Tasks/DeleteProcess", self.named()).await.map(drop)
    }
}
