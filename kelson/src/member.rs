//! `kelson member`: lists, removes and replaces the etcd members of a cluster of servers, through the member of this server.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use kelson_members::{Cluster, MemberRow};

/// The server whose etcd member is asked.
#[derive(Args, Debug)]
pub struct MemberServer {
    /// Data directory of a running server.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
    pub data_dir: PathBuf,
}

#[derive(Subcommand, Debug)]
pub enum MemberCommand {
    /// List the etcd members with role, state, version and size.
    List {
        /// Output format: `text` or `json`.
        #[arg(long, short, value_name = "FORM", default_value = "text", value_parser = ["text", "json"])]
        output: String,
        #[command(flatten)]
        of: MemberServer,
    },
    /// Remove a member. Its server must be stopped, and cannot return with its data.
    Remove {
        /// Name or ID of the member.
        #[arg(value_name = "NAME")]
        name: String,
        /// Remove the member even if fewer than a quorum of the others are running.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        of: MemberServer,
    },
    /// Remove a lost member, so that a new server can join under its name.
    Replace {
        /// Name or ID of the member.
        #[arg(value_name = "NAME")]
        name: String,
        /// Remove the member even if it is running, or fewer than a quorum of the others are.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        of: MemberServer,
    },
}

/// Runs the subcommand.
pub async fn run(command: MemberCommand) -> anyhow::Result<()> {
    match command {
        MemberCommand::List { output, of } => {
            let rows = Cluster::open(&of.data_dir).await?.list().await?;
            match output.as_str() {
                "json" => outln!("{}", serde_json::to_string_pretty(&rows)?),
                _ => out!("{}", table(&rows)),
            }
        }
        MemberCommand::Remove { name, force, of } => {
            Cluster::open(&of.data_dir).await?.remove(&name, force).await?;
            outln!("removed the member {name}");
        }
        MemberCommand::Replace { name, force, of } => {
            Cluster::open(&of.data_dir).await?.replace(&name, force).await?;
            outln!("removed the member {name}; a new server can join with `--node-name {name}`");
        }
    }
    Ok(())
}

fn table(rows: &[MemberRow]) -> String {
    const MB: i64 = 1 << 20;
    let mut out = String::new();
    let mut line = |cells: [&str; 8]| {
        let [name, id, role, state, version, size, lag, urls] = cells;
        // Writing to a string does not fail.
        let _ = writeln!(out, "{name:<20} {id:<17} {role:<8} {state:<8} {version:<9} {size:<10} {lag:<6} {urls}");
    };
    line(["NAME", "ID", "ROLE", "STATE", "VERSION", "SIZE", "LAG", "PEER URLS"]);
    for row in rows {
        let role = row.role.to_string();
        let state = if row.is_running { "running" } else { "down" };
        let status = row.status.as_ref();
        let version = status.map_or("-", |status| status.version.as_str());
        let size = status.map_or("-".to_owned(), |status| format!("{} MiB", (status.size_bytes + MB / 2) / MB));
        let lag = row.lag.map_or("-".to_owned(), |lag| lag.to_string());
        line([&row.name, &row.id, &role, state, version, &size, &lag, &row.peer_urls.join(",")]);
    }
    out
}

#[cfg(test)]
mod tests {
    use kelson_members::{MemberStatus, Role};

    use super::*;

    #[test]
    fn members_are_a_table() {
        let status = MemberStatus { version: "3.5.30".into(), size_bytes: 3 << 20, ..MemberStatus::default() };
        let row = MemberRow {
            name: "a".into(),
            id: "8e9e05c52164694d".into(),
            role: Role::Leader,
            is_running: true,
            peer_urls: vec!["https://10.0.0.1:2380".into()],
            lag: Some(0),
            status: Some(status),
        };
        let down = MemberRow {
            name: "b".into(),
            is_running: false,
            role: Role::Voter,
            lag: None,
            status: None,
            ..row.clone()
        };
        let text = table(&[row, down]);
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            words[1],
            ["a", "8e9e05c52164694d", "leader", "running", "3.5.30", "3", "MiB", "0", "https://10.0.0.1:2380"]
        );
        assert_eq!(words[2][2..7], ["voter", "down", "-", "-", "-"]);
    }
}
