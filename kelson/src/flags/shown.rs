//! The flags of a running process for `/flagz`: each with the value in effect, set or not.
use clap::{ArgMatches, Command};

/// The flag of the configuration file.
const CONFIG: &str = "config";
/// Shown instead of a secret value.
const MASK: &str = "(hidden)";

/// Returns every flag of a command with its value, by name. A flag with several values shows a list.
pub fn shown(command: &Command, matches: &ArgMatches) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = command
        .get_arguments()
        .filter_map(|argument| {
            let name = argument.get_long()?;
            let given = matches.try_get_raw(argument.get_id().as_str()).ok().flatten();
            let values: Vec<String> = given.into_iter().flatten().map(|v| v.to_string_lossy().into_owned()).collect();
            let many = matches!(argument.get_action(), clap::ArgAction::Append);
            let value = if many { format!("[{}]", values.join(",")) } else { values.concat() };
            // The file of the configuration is no secret: it is only not repeated in the help.
            let is_secret = argument.is_hide_env_values_set() && name != CONFIG && !values.is_empty();
            Some((name.to_owned(), if is_secret { MASK.to_owned() } else { value }))
        })
        .collect();
    all.sort();
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Arg, ArgAction};

    #[test]
    fn defaults_lists_and_what_was_not_given() {
        let command = Command::new("x")
            .arg(Arg::new("port").long("port").default_value("6443"))
            .arg(Arg::new("gates").long("gates").action(ArgAction::Append).value_delimiter(','))
            .arg(Arg::new("file").long("file"))
            .arg(Arg::new("deep").long("deep").action(ArgAction::SetTrue))
            .arg(Arg::new("token").long("token").hide_env_values(true))
            .arg(Arg::new("other-token").long("other-token").hide_env_values(true))
            .arg(Arg::new("place"));
        let matches = command.clone().get_matches_from(["x", "--gates=a,b", "--gates=c", "--token=s3cret", "here"]);
        let all: Vec<String> =
            shown(&command, &matches).iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(all, ["deep=false", "file=", "gates=[a,b,c]", "other-token=", "port=6443", "token=(hidden)"]);
    }
}
