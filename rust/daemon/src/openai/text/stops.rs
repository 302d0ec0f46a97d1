//! Texts that end an output, wherever the borders of its tokens are.

/// Looks for the stops of one output. What may still become one is held back.
#[derive(Debug, Clone)]
pub(super) struct Stops {
    stops: Vec<String>,
    held: String,
}

/// What may be given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Freed {
    /// The text.
    pub(super) text: String,
    /// A stop came behind it.
    pub(super) stopped: bool,
}

/// How many bytes at the end of `text` may become `stop`.
fn begins(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len().saturating_sub(1));
    let from = (text.len() - longest..text.len()).filter(|&at| text.is_char_boundary(at));
    from.map(|at| &text[at..]).find(|end| stop.starts_with(end)).map_or(0, str::len)
}

impl Stops {
    /// None of them may be empty.
    pub(super) fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new() }
    }

    /// Takes the next text. The first stop that is whole counts; of two that end together, the one that began first.
    pub(super) fn push(&mut self, text: &str) -> Freed {
        self.held.push_str(text);
        let found = self.stops.iter().filter_map(|stop| {
            let at = self.held.find(stop.as_str())?;
            Some((at + stop.len(), at))
        });
        if let Some((_, at)) = found.min() {
            self.held.truncate(at);
            return Freed { text: std::mem::take(&mut self.held), stopped: true };
        }
        let kept = self.stops.iter().map(|stop| begins(&self.held, stop)).max().unwrap_or(0);
        let held = self.held.split_off(self.held.len() - kept);
        Freed { text: std::mem::replace(&mut self.held, held), stopped: false }
    }

    /// What was held back, when nothing comes any more.
    pub(super) fn rest(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What the stops leave of a text that comes in pieces.
    fn left(stops: &[String], pieces: &[String]) -> (String, bool) {
        let (mut watch, mut text) = (Stops::new(stops.to_vec()), String::new());
        for piece in pieces {
            let freed = watch.push(piece);
            text.push_str(&freed.text);
            if freed.stopped {
                return (text, true);
            }
        }
        text.push_str(&watch.rest());
        (text, false)
    }

    /// The same by its meaning: character for character, until the text ends in a stop.
    fn meant(stops: &[String], text: &str) -> (String, bool) {
        for end in text.char_indices().map(|(at, char)| at + char.len_utf8()) {
            let begun = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str()));
            if let Some(stop) = begun.max_by_key(|stop| stop.len()) {
                return (text[..end - stop.len()].to_owned(), true);
            }
        }
        (text.to_owned(), false)
    }

    proptest! {
        #[test]
        fn the_pieces_do_not_matter(
            stops in prop::collection::vec("[ab\u{e9}]{1,4}", 0..4),
            pieces in prop::collection::vec("[ab\u{e9}]{0,3}", 0..12),
        ) {
            prop_assert_eq!(left(&stops, &pieces), meant(&stops, &pieces.concat()));
        }

        #[test]
        fn nothing_is_held_back_that_cannot_become_a_stop(text in "[ab]{0,6}", stop in "[ab]{1,4}") {
            let mut watch = Stops::new(vec![stop.clone()]);
            let freed = watch.push(&text);
            prop_assert!(freed.stopped || watch.held.is_empty() || stop.starts_with(&watch.held));
        }
    }

    #[test]
    fn of_two_stops_the_one_that_is_whole_first_counts() {
        let stops = ["abcd".to_owned(), "bc".to_owned()];
        assert_eq!(left(&stops, &["xabcd".to_owned()]), ("xa".to_owned(), true));
        let stops = ["bc".to_owned(), "abc".to_owned()];
        assert_eq!(left(&stops, &["xab".to_owned(), "c".to_owned()]), ("x".to_owned(), true));
    }
}
