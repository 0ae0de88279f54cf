//! The counterparts of k3s' flags: one row for each flag, which is also a key of its configuration file. The rows are
//! in `table`.

/// The commands that have a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Both `k3s server` and `k3s agent`.
    Both,
    /// Only `k3s server`.
    Server,
    /// Only `k3s agent`.
    Agent,
}

/// A value in Kelson's form: flags with their values, or why there is none.
pub type Converted = Result<Vec<(&'static str, String)>, String>;

/// The counterpart of a flag in Kelson.
#[derive(Debug, Clone, Copy)]
pub enum Counterpart {
    /// A flag of the same name and meaning.
    Same,
    /// A flag with another name and the same meaning.
    Flag(&'static str),
    /// A flag whose value has another form.
    Converts(&'static str, fn(&str) -> Converted),
    /// Values that are flags of a component: `NAME=VALUE`, of which those that Kelson's command has are used.
    Arguments,
    /// Parts to disable, of which those that Kelson has are used.
    Parts,
    /// No setting is needed: Kelson always does so.
    Unneeded,
    /// Kelson has no counterpart.
    Refused,
}

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Alias {
    /// The flag, without dashes.
    pub flag: &'static str,
    /// Its letter, if it has one.
    pub letter: Option<char>,
    /// The environment variable with the same meaning; empty for none.
    pub variable: &'static str,
    /// The commands that have it.
    pub scope: Scope,
    /// The value that changes nothing; empty for none.
    pub default: &'static str,
    /// Whether the value is never printed in reports.
    pub is_secret: bool,
    /// Whether it is a boolean, so that the next word is not its value.
    pub is_truth: bool,
    /// The counterpart in Kelson.
    pub to: Counterpart,
    /// A note for readers: differences, or why it has no counterpart and what to do instead.
    pub note: &'static str,
}

const fn alias(flag: &'static str, to: Counterpart, note: &'static str) -> Alias {
    Alias {
        flag,
        letter: None,
        variable: "",
        scope: Scope::Both,
        default: "",
        is_secret: false,
        is_truth: false,
        to,
        note,
    }
}

/// Creates a row for a flag with the same name.
pub const fn same(flag: &'static str) -> Alias {
    alias(flag, Counterpart::Same, "")
}

/// Creates a row for a flag with another name.
pub const fn named(flag: &'static str, here: &'static str) -> Alias {
    alias(flag, Counterpart::Flag(here), "")
}

/// Creates a row for a flag whose value is converted.
pub const fn converts(flag: &'static str, here: &'static str, convert: fn(&str) -> Converted) -> Alias {
    alias(flag, Counterpart::Converts(here, convert), "")
}

/// Creates a row for a flag whose values are flags of a component.
pub const fn arguments(flag: &'static str) -> Alias {
    alias(flag, Counterpart::Arguments, "flags that Kelson's command has under the same name")
}

/// Creates a row for a flag whose values are parts to disable.
pub const fn parts(flag: &'static str) -> Alias {
    alias(flag, Counterpart::Parts, "parts that Kelson has; what it does not have needs no mention")
}

/// Creates a row for a flag that is not needed.
pub const fn unneeded(flag: &'static str, why: &'static str) -> Alias {
    alias(flag, Counterpart::Unneeded, why)
}

/// Creates a row for a flag without a counterpart.
pub const fn refused(flag: &'static str, why: &'static str) -> Alias {
    alias(flag, Counterpart::Refused, why)
}

impl Alias {
    /// Sets the environment variable with the same meaning.
    pub const fn variable(mut self, name: &'static str) -> Self {
        self.variable = name;
        self
    }

    /// Sets the letter of its short form.
    pub const fn letter(mut self, letter: char) -> Self {
        self.letter = Some(letter);
        self
    }

    /// Limits the row to `k3s server`.
    pub const fn server(mut self) -> Self {
        self.scope = Scope::Server;
        self
    }

    /// Limits the row to `k3s agent`.
    pub const fn agent(mut self) -> Self {
        self.scope = Scope::Agent;
        self
    }

    /// Sets the value that changes nothing.
    pub const fn unless(mut self, default: &'static str) -> Self {
        self.default = default;
        self
    }

    /// Marks the value as secret.
    pub const fn secret(mut self) -> Self {
        self.is_secret = true;
        self
    }

    /// Marks the flag as a boolean.
    pub const fn truth(mut self) -> Self {
        self.is_truth = true;
        self
    }

    /// Sets the note for readers.
    pub const fn note(mut self, note: &'static str) -> Self {
        self.note = note;
        self
    }

    /// Reports whether the command of this name has the flag.
    pub fn is_of(&self, command: &str) -> bool {
        match self.scope {
            Scope::Both => true,
            Scope::Server => command == "server",
            Scope::Agent => command == "agent",
        }
    }
}
