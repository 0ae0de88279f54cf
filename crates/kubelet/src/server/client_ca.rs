//! CA certificates of clients, read again when their file changes (upstream: the dynamic `clientCAFile`).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::path::PathBuf;
use std::time::Duration;

use kelson_tasks::FILES;

/// Interval at which the file is read.
const LOOK: Duration = Duration::from_secs(10);

/// Calls `trust` with the content of the file when it changed; `known` is the initial content.
pub(super) async fn follow(file: PathBuf, mut known: Vec<u8>, trust: impl Fn(&str) -> Result<(), String>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let path = file.clone();
        let Ok(Ok(read)) = FILES.run(move || std::fs::read(path)).await else { continue };
        if read == known {
            continue;
        }
        match trust(&String::from_utf8_lossy(&read)) {
            Ok(()) => tracing::info!(file = %file.display(), "reloaded the CA certificates of clients"),
            Err(error) => {
                tracing::warn!(file = %file.display(), error, "cannot use the changed CA file; keeping the previous CA certificates")
            }
        }
        known = read;
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_changed_ca_file_is_reloaded_and_a_missing_one_is_ignored() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("ca.crt");
        std::fs::write(&file, "one").expect("written");
        // Replaced atomically, as tools do that change such files.
        let put = |text: &str| {
            std::fs::write(dir.path().join("new"), text).expect("written");
            std::fs::rename(dir.path().join("new"), &file).expect("renamed");
        };
        let received = std::sync::Arc::new(Mutex::new(Vec::new()));
        let hears = std::sync::Arc::clone(&received);
        let trust = move |pem: &str| {
            hears.lock().push(pem.to_owned());
            if pem == "bad" { Err("no certificate".to_owned()) } else { Ok(()) }
        };
        let following = tokio::spawn(follow(file.clone(), b"one".to_vec(), trust));
        // The lane for files is another thread, for which the paused clock does not wait, so wait for the result.
        let after = async |change: &dyn Fn(), wanted: usize| {
            change();
            for round in 0..100_000 {
                tokio::time::sleep(LOOK * 2).await;
                FILES.run(|| ()).await.expect("the lane works");
                if round > 3 && received.lock().len() >= wanted {
                    break;
                }
            }
            received.lock().clone()
        };
        assert!(after(&|| (), 0).await.is_empty());
        assert!(after(&|| std::fs::remove_file(&file).expect("removed"), 0).await.is_empty());
        assert_eq!(after(&|| put("two"), 1).await, ["two"]);
        assert_eq!(after(&|| put("bad"), 2).await, ["two", "bad"]);
        assert_eq!(after(&|| put("three"), 3).await, ["two", "bad", "three"]);
        following.abort();
    }
}
