//! Strings in properties of kinds: constants for built-in kinds, owned for kinds created at run time.
use std::borrow::Cow;

/// A constant or owned string.
pub type Text = Cow<'static, str>;
/// A constant or owned list of strings.
pub type Texts = Cow<'static, [Text]>;
