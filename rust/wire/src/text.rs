//! Texts of others: what of them may stand in a log or an error.

/// Characters of a text of others that are shown.
const SHOWN_MAX: usize = 300;

/// A text that somebody else has written, as people may be shown it: on one line, without anything that a terminal obeys,
/// and not all of it.
pub fn plain(text: &str) -> String {
    let mut shown = String::new();
    for (at, letter) in text.chars().enumerate() {
        if at == SHOWN_MAX {
            shown.push_str("...");
            break;
        }
        if is_plain(letter) { shown.push(letter) } else { shown.extend(letter.escape_unicode()) }
    }
    shown
}

/// Whether a character only stands for itself: a control character moves the cursor, and a mark of direction moves the
/// text around it.
pub fn is_plain(letter: char) -> bool {
    let turns = matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    !letter.is_control() && !turns && letter != '\u{feff}'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_written_out() {
        assert_eq!(plain("token-0 größer"), "token-0 größer");
        assert_eq!(plain("a\x1b[2J\r\nb\u{9b}c"), "a\\u{1b}[2J\\u{d}\\u{a}b\\u{9b}c");
        assert_eq!(plain("a\u{202e}b"), "a\\u{202e}b");
    }

    #[test]
    fn a_long_text_is_cut() {
        assert_eq!(plain(&"x".repeat(SHOWN_MAX)), "x".repeat(SHOWN_MAX));
        assert_eq!(plain(&"x".repeat(10_000)), format!("{}...", "x".repeat(SHOWN_MAX)));
    }
}
