//! Words that give nothing away, and words that look like secrets.

/// Words that give nothing away behind the name of a secret.
const PLAIN_WORDS: [&str; 36] = [
    "a", "an", "and", "are", "as", "at", "be", "been", "by", "can", "cannot", "comes", "does",
    "for", "from", "given", "has", "in", "is", "must", "needs", "no", "not", "of", "off", "on",
    "or", "random", "should", "that", "the", "to", "was", "which", "will", "with",
];

/// Fewer characters are no secret, unless the comment says nothing else.
const SECRET_CHARS_MIN: usize = 5;

/// A word that gives nothing away.
pub(super) fn is_plain_word(word: &str) -> bool {
    PLAIN_WORDS.contains(&word.to_ascii_lowercase().as_str())
}

/// It is no word of a language: it has a digit, or a sign that stands in no word.
pub(super) fn looks_secret(word: &str) -> bool {
    let word = word.trim_matches(['"', '\'', '.', ',', ';', ':', '(', ')']);
    let is_sign = |it: char| it.is_ascii_digit() || "!@#$%^&*+=~?".contains(it);
    word.chars().count() >= SECRET_CHARS_MIN
        && word.contains(is_sign)
        && word.contains(char::is_alphabetic)
}
