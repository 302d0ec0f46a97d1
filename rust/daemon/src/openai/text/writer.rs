//! The text of one output, token by token, and how it ends.

use super::Model;
use super::decoder::Decoder;
use super::stops::Stops;

/// How an output ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    /// At a token or a text that ends it.
    Stop,
    /// At its cap.
    Length,
}

/// What one token adds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Piece {
    /// The text; often none.
    pub(crate) text: String,
    /// It is the last.
    pub(crate) finish: Option<Finish>,
}

/// Makes pieces of the tokens of one output. A piece depends on the tokens up to it alone.
#[derive(Debug, Clone)]
pub(crate) struct Writer {
    decoder: Decoder,
    stops: Stops,
    stop_ids: Vec<u32>,
    /// Tokens before the output may end at one that ends it, or at a text.
    least: u32,
    most: u32,
    taken: u32,
    finish: Option<Finish>,
    /// It ended at a text: whoever draws the tokens knows nothing of it.
    early: bool,
}

impl Writer {
    /// For an output of at most `most` tokens behind `prompt`, which does not end by itself in the first `least`.
    pub(crate) fn new(
        model: &Model,
        prompt: &[u32],
        (least, most): (u32, u32),
        stop: &[String],
        stop_ids: &[u32],
    ) -> Self {
        Self {
            decoder: Decoder::behind(model, prompt),
            stops: Stops::new(stop),
            stop_ids: stop_ids.to_vec(),
            least,
            most,
            taken: 0,
            finish: None,
            early: false,
        }
    }

    /// Tokens so far.
    pub(crate) fn taken(&self) -> u32 {
        self.taken
    }

    /// How it has ended.
    pub(crate) fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// Whether more tokens may be drawn, though it has ended.
    pub(crate) fn runs_on(&self) -> bool {
        self.early
    }

    /// The next token. Behind the last there is nothing.
    pub(crate) fn take(&mut self, model: &Model, id: u32) -> Piece {
        if self.finish.is_some() {
            return Piece::default();
        }
        self.taken += 1;
        // A token that ends the output is not part of its text.
        let may_stop = self.taken > self.least;
        let stops = may_stop && self.stop_ids.contains(&id);
        let text = if stops { String::new() } else { self.decoder.push(model, id) };
        if stops {
            return self.last(model, text, Finish::Stop);
        }
        if self.taken >= self.most {
            return self.last(model, text, Finish::Length);
        }
        if !may_stop {
            return Piece { text, finish: None };
        }
        let freed = self.stops.push(&text);
        self.early = freed.stopped;
        self.finish = freed.stopped.then_some(Finish::Stop);
        Piece { text: freed.text, finish: self.finish }
    }

    /// The last piece, where the output has ended without a token of its own for that.
    pub(crate) fn end(&mut self, model: &Model) -> Piece {
        if self.finish.is_some() {
            return Piece::default();
        }
        self.last(model, String::new(), Finish::Stop)
    }

    fn last(&mut self, model: &Model, mut text: String, finish: Finish) -> Piece {
        text.push_str(&self.decoder.rest(model));
        if self.taken <= self.least {
            self.finish = Some(finish);
            return Piece { text, finish: self.finish };
        }
        let mut freed = self.stops.push(&text);
        let finish = if freed.stopped {
            Finish::Stop
        } else {
            freed.text.push_str(&self.stops.rest());
            finish
        };
        self.finish = Some(finish);
        Piece { text: freed.text, finish: self.finish }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::bytes_model;
    use super::*;

    fn pieces(most: u32, stop: &[&str], stop_ids: &[u32], text: &[u8]) -> Vec<(String, Option<Finish>)> {
        let model = bytes_model();
        let stop: Vec<String> = stop.iter().map(|&stop| stop.to_owned()).collect();
        let mut writer = Writer::new(model, &[], (0, most), &stop, stop_ids);
        let pieces = text.iter().map(|&byte| writer.take(model, u32::from(byte)));
        pieces.map(|piece| (piece.text, piece.finish)).collect()
    }

    fn piece(text: &str, finish: Option<Finish>) -> (String, Option<Finish>) {
        (text.to_owned(), finish)
    }

    #[test]
    fn a_stop_text_is_found_across_tokens_and_not_given() {
        let given = pieces(9, &["lo w"], &[], b"hello wor");
        let quiet = || piece("", None);
        let tail = [piece("l", None), quiet(), quiet(), piece("", Some(Finish::Stop)), quiet(), quiet()];
        assert_eq!(given[..2], [piece("h", None), piece("e", None)]);
        // The first l may begin the stop; the second shows that it did not.
        assert_eq!(given[2], quiet());
        assert_eq!(given[3..], tail);
    }

    #[test]
    fn nothing_ends_an_output_before_its_least_number_of_tokens() {
        let stop = ["b".to_owned(), "cd".to_owned()];
        let mut writer = Writer::new(bytes_model(), &[], (3, 9), &stop, &[u32::from(b'.')]);
        let mut take = |byte: u8| {
            let piece = writer.take(bytes_model(), u32::from(byte));
            (piece.text, piece.finish)
        };
        // A stop that began before counts as little as one that was whole.
        assert_eq!(
            [take(b'b'), take(b'.'), take(b'c')],
            [piece("b", None), piece(".", None), piece("c", None)]
        );
        assert_eq!([take(b'd'), take(b'.')], [piece("d", None), piece("", Some(Finish::Stop))]);
    }

    #[test]
    fn what_was_held_back_for_a_stop_comes_with_the_last_token() {
        assert_eq!(pieces(2, &["abc"], &[], b"ab"), [piece("", None), piece("ab", Some(Finish::Length))]);
        assert_eq!(
            pieces(9, &["abc"], &[u32::from(b'.')], b"ab."),
            [piece("", None), piece("", None), piece("ab", Some(Finish::Stop))]
        );
    }

    #[test]
    fn a_stop_at_the_cap_is_a_stop() {
        assert_eq!(pieces(2, &["b"], &[], b"ab")[1], piece("", Some(Finish::Stop)));
        assert_eq!(pieces(2, &[], &[u32::from(b'b')], b"ab")[1], piece("", Some(Finish::Stop)));
        assert_eq!(pieces(2, &[], &[], b"ab")[1], piece("b", Some(Finish::Length)));
    }

    #[test]
    fn a_character_that_never_became_whole_is_shown_as_such() {
        assert_eq!(pieces(2, &[], &[], b"a\xe2")[1], piece("\u{fffd}", Some(Finish::Length)));
        assert_eq!(pieces(3, &["\u{fffd}"], &[], b"a\xe2\x82")[2], piece("", Some(Finish::Stop)));
    }
}
