//! The token in the data directory of a server with an etcd member, with which other servers join for a day after each start.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use kelson_bundle::join::ServerToken;
use kelson_client::Client;
use kelson_tasks::{FILES, OnPanic, Tasks};

use crate::token::{Purpose, Token, admit_own};

/// The file with the token.
pub const FILE: &str = "server-token";
/// The pause between attempts while the store rejects writes.
const RETRY: Duration = Duration::from_secs(10);

/// Makes the token valid and writes its file; repeats it until that works. `pin` is that of the CA, `sha256:HEX`.
pub fn keep(client: &Client, data_dir: &Path, pin: String, tasks: &Tasks) {
    let (client, file) = (client.clone(), data_dir.join(FILE));
    tasks.spawn("server-token", OnPanic::Contain, async move {
        while let Err(error) = admit(&client, &file, &pin).await {
            tracing::warn!(error = format!("{error:#}"), "storing the token with which servers join failed; retrying");
            tokio::time::sleep(RETRY).await;
        }
    });
}

/// The secret is stored before the file is written: a token in the file is valid.
async fn admit(client: &Client, file: &Path, pin: &str) -> anyhow::Result<()> {
    let path = file.to_owned();
    let present = FILES.run(move || read(&path)).await??;
    let token = match &present {
        Some(present) => Token::parse(&present.bootstrap())?,
        None => Token::random(),
    };
    admit_own(client, &token, Purpose::Server).await?;
    // After a rotation of the CA the pin is another one.
    let next = token.of_servers(pin)?;
    if present.is_none_or(|present| present != next) {
        let path = file.to_owned();
        FILES.run(move || kelson_pki::write_secret(&path, next.reveal().as_bytes(), true)).await??;
    }
    Ok(())
}

/// Reads the token of an earlier start. A file with other content is replaced.
fn read(file: &Path) -> anyhow::Result<Option<ServerToken>> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(ServerToken::parse(&text)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).with_context(|| file.display().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use kelson_apiserver::{ApiServer, Config};
    use kelson_auth::{UserInfo, user};
    use kelson_store::{Store, StoreOptions};

    use super::*;
    use crate::token;

    #[tokio::test]
    async fn the_token_is_kept_and_follows_the_ca() {
        let api = ApiServer::start(Config::new(Store::in_memory(StoreOptions::default()))).await.unwrap();
        api.ready().await;
        let client = Client::new(api.in_process(UserInfo::new(user::API_SERVER, [user::MASTERS])), "server");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        let pin = |word: &str| format!("sha256:{}", word.repeat(32));
        let written = async |pin: &str| {
            admit(&client, &file, pin).await.unwrap();
            read(&file).unwrap().unwrap()
        };
        let first = written(&pin("0a")).await;
        assert_eq!(first.pin(), pin("0a"));
        assert_eq!(kelson_platform::files::open_to_others(&file), None);
        let bootstrap = Token::parse(&first.bootstrap()).unwrap();
        assert_eq!(token::secret(&client, &bootstrap.id).await.unwrap(), bootstrap.secret);
        assert!(written(&pin("0a")).await == first, "the same after a restart");
        let rotated = written(&pin("0b")).await;
        assert_eq!((rotated.pin(), rotated.bootstrap()), (pin("0b"), first.bootstrap()));
        std::fs::write(&file, "damaged").unwrap();
        assert!(written(&pin("0b")).await != rotated, "another token");
        api.shutdown().await;
    }
}
