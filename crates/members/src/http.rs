//! One GET request over a connection that is then closed, with a bound on the answer.

use std::io;

use bytes::{Bytes, BytesMut};
use http::{Request, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

/// Sends the request and returns the body of a successful answer.
///
/// # Errors
/// The connection fails, the answer is not successful, or it is larger than `bytes_max`.
pub(crate) async fn get<S>(stream: S, host: &str, path: &str, bytes_max: usize) -> io::Result<Bytes>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let request = Request::get(path).header(header::HOST, host).header(header::CONNECTION, "close");
    let request = request.body(Empty::<Bytes>::new()).map_err(io::Error::other)?;
    let answer = async move {
        let answer = sender.send_request(request).await.map_err(io::Error::other)?;
        if !answer.status().is_success() {
            return Err(io::Error::other(format!("answered {}", answer.status())));
        }
        let mut body = Limited::new(answer.into_body(), bytes_max);
        let mut all = BytesMut::new();
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame.map_err(io::Error::other)?.into_data() {
                all.extend_from_slice(&data);
            }
        }
        Ok(all.freeze())
    };
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        biased;
        done = &mut answer => done,
        // The connection ends after the answer; what it has received is read from its buffer.
        _ = connection => answer.await,
    }
}
