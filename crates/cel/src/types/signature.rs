//! Overloads are declared as text, one per line: `<string>.charAt(int) -> string` is a member function, and
//! `sets.contains(list(T), list(T)) -> bool` a global one. Single capital letters are type parameters.
use super::ty::Type;

/// The signature of an overload.
#[derive(Debug, PartialEq)]
pub(crate) struct Signature {
    pub function: String,
    pub member: bool,
    /// The types of the arguments. The first one of a member function is the receiver's.
    pub args: Vec<Type>,
    pub result: Type,
}

/// Parses a signature.
///
/// # Panics
/// Panics on an invalid line. All lines are constants of this crate, and a test parses every one.
pub(crate) fn parse(line: &str) -> Signature {
    let (left, result) = line.split_once(" -> ").expect("a signature has a result");
    let (member, receiver, call) = match left.strip_prefix('<') {
        Some(rest) => {
            let (receiver, call) = rest.split_once(">.").expect("a receiver ends with >.");
            (true, Some(ty(receiver)), call)
        }
        None => (false, None, left),
    };
    let open = call.find('(').expect("a signature has arguments");
    let inner = &call[open + 1..call.len() - 1];
    let args = receiver.into_iter().chain(split(inner).into_iter().map(ty)).collect();
    Signature { function: call[..open].to_owned(), member, args, result: ty(result) }
}

/// Splits at commas outside of brackets.
fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (i, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..i].trim());
                start = i + 1;
            }
            _ => {}
        }
    }
    if !text.trim().is_empty() {
        parts.push(text[start..].trim());
    }
    parts
}

/// Parses the name of a type.
pub(crate) fn ty(text: &str) -> Type {
    if let Some((name, inner)) = text.strip_suffix(')').and_then(|t| t.split_once('(')) {
        let mut params = split(inner).into_iter().map(ty);
        let mut next = || params.next().expect("a parameter for each place");
        return match name {
            "list" => Type::list(next()),
            "map" => {
                let key = next();
                Type::map(key, next())
            }
            "optional" => Type::optional(next()),
            _ => Type::Type(Some(std::sync::Arc::new(next()))),
        };
    }
    match text {
        "dyn" => Type::Dyn,
        "null" => Type::Null,
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "timestamp" => Type::Timestamp,
        "duration" => Type::Duration,
        "net.IP" | "net.CIDR" => Type::Opaque(text.into()),
        letter if letter.len() == 1 => Type::Param(letter.as_bytes()[0]),
        name => Type::object(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let s = parse("<map(K, V)>.pick(list(K), optional(int)) -> type(V)");
        assert_eq!((s.function.as_str(), s.member, s.args.len()), ("pick", true, 3));
        assert_eq!(s.args[0], Type::map(Type::Param(b'K'), Type::Param(b'V')));
        assert_eq!(s.args[2], Type::optional(Type::Int));
        assert_eq!(s.result.to_string(), "type(V)");
        let s = parse("optional.none() -> optional(V)");
        assert_eq!((s.function.as_str(), s.member, s.args.len()), ("optional.none", false, 0));
    }
}
