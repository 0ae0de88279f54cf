//! Text of facts about kinds: compiled in for the built-in ones, owned for those made at run time.
use std::borrow::Cow;

/// Text that is compiled in or owned.
pub type Text = Cow<'static, str>;
/// A list of texts that is compiled in or owned.
pub type Texts = Cow<'static, [Text]>;
