//! Tokens to text, one after another.

use super::Model;

/// What stands for bytes that are no text, or not yet.
const REPLACEMENT: char = '\u{fffd}';
/// Tokens of the prompt that are decoded with the first ones of the output: some tokenizers write a token at the
/// beginning differently.
const CONTEXT: usize = 6;
/// The same where the prompt would begin within a character.
const CONTEXT_MAX: usize = 10;
/// Tokens without text at most; a model that writes bytes at random could otherwise hold back everything.
const HELD_MAX: usize = 16;
/// Of these, what may still become a character: it has at most four bytes.
const HELD_KEPT: usize = 8;

/// The decoder of one output. What it gives for a token depends on the tokens up to it alone.
#[derive(Debug, Clone)]
pub(super) struct Decoder {
    /// The last tokens: those whose text has been given, from the one before the last on, and those that wait.
    window: Vec<u32>,
    /// How many of the window have been given.
    given: usize,
    /// What has been given of the window's text.
    said: String,
}

/// The part of `text` behind what it has in common with `said`, which is most often all of `said`.
fn beyond<'a>(said: &str, text: &'a str) -> &'a str {
    if let Some(rest) = text.strip_prefix(said) {
        return rest;
    }
    let common = said.char_indices().zip(text.chars()).find(|((_, one), other)| one != other);
    let at = common.map_or(said.len().min(text.len()), |((at, _), _)| at);
    &text[at..]
}

impl Decoder {
    /// For an output behind a prompt.
    pub(super) fn behind(model: &Model, prompt: &[u32]) -> Self {
        let mut window: Vec<u32> =
            prompt.iter().rev().copied().filter(|&id| !model.is_special(id)).take(CONTEXT_MAX).collect();
        window.reverse();
        let mut shown = window.split_off(window.len().saturating_sub(CONTEXT));
        let mut said = model.decode(&shown);
        while said.starts_with(REPLACEMENT)
            && let Some(earlier) = window.pop()
        {
            shown.insert(0, earlier);
            said = model.decode(&shown);
        }
        Self { given: shown.len(), window: shown, said }
    }

    /// What the next token adds.
    pub(super) fn push(&mut self, model: &Model, id: u32) -> String {
        if model.is_special(id) {
            return String::new();
        }
        self.window.push(id);
        let text = model.decode(&self.window);
        let (waits, full) = (text.ends_with(REPLACEMENT), self.window.len() - self.given > HELD_MAX);
        if waits && !full {
            return String::new();
        }
        let settled = if waits { &text[..text.len() - REPLACEMENT.len_utf8()] } else { &text };
        let new = beyond(&self.said, settled).to_owned();
        if full {
            self.window.drain(..self.window.len() - HELD_KEPT);
        } else if new.is_empty() {
            return new;
        } else {
            self.window.drain(..self.given);
        }
        self.said = model.decode(&self.window);
        if waits {
            self.given = 0;
            self.said.pop();
        } else {
            self.given = self.window.len();
        }
        new
    }

    /// What was held back, when nothing comes any more.
    pub(super) fn rest(&mut self, model: &Model) -> String {
        let text = model.decode(&self.window);
        let new = beyond(&self.said, &text).to_owned();
        self.given = self.window.len();
        self.said = text;
        new
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{bytes_model, real_model, spaced_model};
    use super::*;

    fn all_at_once(model: &Model, prompt: &[u32], output: &[u32]) -> String {
        let whole = model.decode(&[prompt, output].concat());
        beyond(&model.decode(prompt), &whole).to_owned()
    }

    fn one_by_one(model: &Model, prompt: &[u32], output: &[u32]) -> String {
        let mut decoder = Decoder::behind(model, prompt);
        let mut text: String = output.iter().map(|&id| decoder.push(model, id)).collect();
        text.push_str(&decoder.rest(model));
        text
    }

    /// A byte as the token of it, in a model whose first tokens are the bytes.
    fn bytes(text: &[u8]) -> Vec<u32> {
        text.iter().map(|&byte| u32::from(byte)).collect()
    }

    proptest! {
        #[test]
        fn any_bytes_one_by_one_are_the_text_of_them_all(
            prompt in "\\PC{0,4}", output in prop::collection::vec(0_u32..258, 0..80)
        ) {
            let (model, prompt) = (bytes_model(), bytes(prompt.as_bytes()));
            prop_assert_eq!(one_by_one(model, &prompt, &output), all_at_once(model, &prompt, &output));
        }

        #[test]
        fn any_text_in_bytes_comes_back(text in "\\PC{0,40}") {
            let model = bytes_model();
            prop_assert_eq!(one_by_one(model, &[], &bytes(text.as_bytes())), text);
        }

        #[test]
        fn no_half_character_is_ever_given(text in "\\PC{0,40}") {
            prop_assume!(!text.contains(REPLACEMENT));
            let model = bytes_model();
            let mut decoder = Decoder::behind(model, &[]);
            let mut given = String::new();
            for id in bytes(text.as_bytes()) {
                given.push_str(&decoder.push(model, id));
                prop_assert!(text.starts_with(&given));
            }
            prop_assert_eq!(given, text);
        }

        #[test]
        fn a_tokenizer_that_falls_back_to_bytes_gives_every_text_back(text in "[a-c ]{1,5}\\PC{0,20}[a-c ]{0,5}") {
            prop_assume!(!text.contains(['\u{fffd}', '\u{2581}']));
            let model = spaced_model();
            let (prompt, output) = (model.encode("a", false).unwrap(), model.encode(&text, false).unwrap());
            // The tokenizer puts a space before every text.
            prop_assert_eq!(one_by_one(model, &prompt, &output), format!(" {text}"));
        }

        #[test]
        fn tokens_of_a_real_model_one_by_one_are_the_text_of_them_all(
            prompt in "\\PC{0,8}", output in prop::collection::vec(0_u32..49_152, 0..40)
        ) {
            let Some(model) = real_model() else { return Ok(()) };
            let prompt = model.encode(&prompt, false).unwrap();
            prop_assert_eq!(one_by_one(model, &prompt, &output), all_at_once(model, &prompt, &output));
        }
    }

    #[test]
    fn a_character_comes_with_its_last_token() {
        let model = bytes_model();
        let mut decoder = Decoder::behind(model, &bytes(b"go: "));
        let given: Vec<String> =
            bytes("a\u{20ac}b".as_bytes()).iter().map(|&id| decoder.push(model, id)).collect();
        assert_eq!(given, ["a", "", "", "\u{20ac}", "b"]);
    }

    #[test]
    fn a_character_that_the_prompt_has_begun_is_whole() {
        let model = bytes_model();
        let (prompt, output) = (bytes(b"x\xe2\x82"), bytes(b"\xacy"));
        assert_eq!(one_by_one(model, &prompt, &output), "\u{20ac}y");
    }

    #[test]
    fn bytes_without_end_that_are_no_text_are_not_all_held_back() {
        let model = bytes_model();
        let mut decoder = Decoder::behind(model, &[]);
        let mut given = String::new();
        for _ in 0..1000 {
            given.push_str(&decoder.push(model, 0xff));
            assert!(decoder.window.len() <= HELD_MAX + HELD_KEPT + 1);
        }
        assert!(given.chars().count() >= 1000 - HELD_MAX - 1);
        given.push_str(&decoder.rest(model));
        assert_eq!(given.chars().count(), 1000);
    }
}
