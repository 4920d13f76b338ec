//! Characters of texts that people read.

/// Whether a text with this character looks like another text, or cannot be kept: NUL, and the
/// characters that turn the direction of writing (Unicode annex 9, explicit formatting).
#[must_use]
pub fn is_deceptive(it: char) -> bool {
    matches!(it, '\0' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
