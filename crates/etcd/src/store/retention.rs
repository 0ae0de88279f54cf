//! How much history to keep (`--auto-compaction-mode`, `--auto-compaction-retention`).

use std::time::Duration;

/// The history to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoCompaction {
    /// Changes of this duration.
    Time(Duration),
    /// This number of revisions.
    Revisions(i64),
}

impl AutoCompaction {
    /// Parses the two flags: in the mode `periodic` a number of hours or a duration in Go's format; in `revision` a
    /// number. `None` keeps everything.
    ///
    /// # Errors
    /// The problem with the flags.
    pub fn parse(mode: &str, retention: &str) -> Result<Option<Self>, String> {
        let wrong =
            || format!("auto-compaction-retention must be a number or a duration in mode {mode}, got {retention:?}");
        match mode {
            "periodic" | "" => {
                let time = match retention.parse::<u64>() {
                    Ok(hours) => Duration::from_secs(hours.checked_mul(3600).ok_or_else(wrong)?),
                    Err(_) => kelson_meta::parse_duration(retention).map_err(|_| wrong())?,
                };
                Ok((!time.is_zero()).then_some(Self::Time(time)))
            }
            "revision" => {
                let revisions = retention.parse::<i64>().ok().filter(|n| *n >= 0).ok_or_else(wrong)?;
                Ok((revisions > 0).then_some(Self::Revisions(revisions)))
            }
            _ => Err(format!("auto-compaction-mode must be periodic or revision, got {mode:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_as_etcd_reads_them() {
        let check = |mode, retention, wanted: Result<Option<AutoCompaction>, ()>| {
            assert_eq!(AutoCompaction::parse(mode, retention).map_err(drop), wanted, "{mode} {retention}");
        };
        let time = |s| Ok(Some(AutoCompaction::Time(Duration::from_secs(s))));
        check("periodic", "0", Ok(None));
        check("periodic", "1", time(3600));
        check("periodic", "5m", time(300));
        check("periodic", "1h30m", time(5400));
        check("periodic", "1.5s", Ok(Some(AutoCompaction::Time(Duration::from_millis(1500)))));
        check("periodic", "soon", Err(()));
        check("periodic", "5x", Err(()));
        check("revision", "1000", Ok(Some(AutoCompaction::Revisions(1000))));
        check("revision", "0", Ok(None));
        check("revision", "5m", Err(()));
        check("never", "1", Err(()));
    }
}
