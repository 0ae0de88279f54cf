//! Chooses the manifest of an image that a machine runs, as containerd does (its `platforms` package): the machine's
//! own architecture, then older ones that it also runs. Microarchitecture levels of amd64 above the first are never
//! chosen.

use super::Platform;

/// Returns the platforms that this machine runs, the best first, in normalized form.
pub(super) fn accepted() -> Vec<Platform> {
    accepted_by(super::architecture(), &machine())
}

/// Returns the kernel's name of the machine, such as `armv7l`.
fn machine() -> String {
    rustix::system::uname().machine().to_string_lossy().into_owned()
}

fn accepted_by(architecture: &str, machine: &str) -> Vec<Platform> {
    let linux = |architecture: &str, variant: &str| Platform {
        architecture: architecture.to_owned(),
        os: "linux".to_owned(),
        variant: Some(variant.to_owned()).filter(|v| !v.is_empty()),
    };
    let arm_up_to = |newest: u8| (5..=newest).rev().map(|v| linux("arm", &format!("v{v}"))).collect::<Vec<_>>();
    match architecture {
        "amd64" => vec![linux("amd64", ""), linux("386", "")],
        "arm64" => [vec![linux("arm64", "")], arm_up_to(8)].concat(),
        "arm" => {
            let version = machine.strip_prefix("armv").and_then(|v| v.chars().next()).and_then(|c| c.to_digit(10));
            arm_up_to(match version {
                Some(5) => 5,
                Some(6) => 6,
                Some(8) => 8,
                // The baseline of most distributions.
                _ => 7,
            })
        }
        other => vec![linux(other, "")],
    }
}

/// Returns the rank of a platform, 0 for the best; `None` when this machine does not run it.
pub(super) fn rank(platform: &Platform, accepted: &[Platform]) -> Option<usize> {
    let usual = usual(platform);
    accepted.iter().position(|a| *a == usual)
}

/// Returns the normalized form of a platform.
fn usual(platform: &Platform) -> Platform {
    let variant = platform.variant.as_deref().unwrap_or_default().to_ascii_lowercase();
    let (architecture, variant) = match platform.architecture.to_ascii_lowercase().as_str() {
        "i386" => ("386".to_owned(), String::new()),
        "x86_64" | "x86-64" | "amd64" => ("amd64".to_owned(), if variant == "v1" { String::new() } else { variant }),
        "aarch64" | "arm64" => {
            let is_first = matches!(variant.as_str(), "8" | "v8" | "v8.0");
            ("arm64".to_owned(), if is_first { String::new() } else { variant })
        }
        "armhf" => ("arm".to_owned(), "v7".to_owned()),
        "armel" => ("arm".to_owned(), "v6".to_owned()),
        "arm" => {
            let variant = match variant.as_str() {
                "" => "v7".to_owned(),
                "5" | "6" | "7" | "8" => format!("v{variant}"),
                other => other.to_owned(),
            };
            ("arm".to_owned(), variant)
        }
        other => (other.to_owned(), variant),
    };
    Platform { architecture, os: platform.os.to_ascii_lowercase(), variant: Some(variant).filter(|v| !v.is_empty()) }
}

impl std::fmt::Display for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.iter().filter(|v| !v.is_empty()).try_for_each(|v| write!(f, "/{v}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(text: &str) -> Platform {
        let mut parts = text.split('/').map(str::to_owned);
        let (os, architecture) = (parts.next().unwrap(), parts.next().unwrap());
        Platform { architecture, os, variant: parts.next() }
    }

    #[test]
    fn what_a_machine_runs_and_in_which_order() {
        for (architecture, machine, text, rank_of) in [
            ("amd64", "x86_64", "linux/amd64", Some(0)),
            ("amd64", "x86_64", "linux/x86_64/v1", Some(0)),
            ("amd64", "x86_64", "linux/386", Some(1)),
            ("amd64", "x86_64", "linux/amd64/v2", None),
            ("amd64", "x86_64", "linux/amd64/v4", None),
            ("amd64", "x86_64", "windows/amd64", None),
            ("amd64", "x86_64", "unknown/unknown", None),
            ("amd64", "x86_64", "linux/arm64", None),
            ("arm64", "aarch64", "linux/arm64/v8", Some(0)),
            ("arm64", "aarch64", "linux/aarch64", Some(0)),
            ("arm64", "aarch64", "linux/arm64/v9", None),
            ("arm64", "aarch64", "linux/arm/v7", Some(2)),
            ("arm64", "aarch64", "linux/arm", Some(2)),
            ("arm", "armv7l", "linux/arm/v7", Some(0)),
            ("arm", "armv7l", "linux/arm/6", Some(1)),
            ("arm", "armv6l", "linux/arm/v7", None),
            ("arm", "armv6l", "linux/armel", Some(0)),
            ("riscv64", "riscv64", "linux/riscv64", Some(0)),
        ] {
            let accepted = accepted_by(architecture, machine);
            assert_eq!(rank(&platform(text), &accepted), rank_of, "{text} on {machine}");
        }
    }
}
