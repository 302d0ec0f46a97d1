//! Texts that end an output, wherever the borders of its tokens are.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// The beginnings of all stops, each a node: what a byte leads to costs the same for one stop and for hundreds (Aho and
/// Corasick, 1975).
#[derive(Debug, Default)]
struct Trie {
    next: HashMap<(u32, u8), u32>,
    nodes: Vec<Node>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Node {
    /// Bytes from the root.
    depth: usize,
    /// The longest other beginning that this one ends in.
    link: u32,
    /// Bytes of the longest stop that this beginning ends in; 0: of none.
    stop: usize,
}

impl Trie {
    fn new(stops: &[String]) -> Self {
        let mut trie = Self { next: HashMap::new(), nodes: vec![Node::default()] };
        let mut edges: Vec<Vec<(u8, u32)>> = vec![Vec::new()];
        for stop in stops {
            let mut at = 0;
            for &byte in stop.as_bytes() {
                let fresh = trie.nodes.len() as u32;
                let child = *trie.next.entry((at, byte)).or_insert(fresh);
                if child == fresh {
                    let depth = trie.nodes[at as usize].depth + 1;
                    trie.nodes.push(Node { depth, ..Node::default() });
                    edges.push(Vec::new());
                    edges[at as usize].push((byte, child));
                }
                at = child;
            }
            trie.nodes[at as usize].stop = stop.len();
        }
        // By depth, so that whatever a link leads to is done.
        let mut queue = VecDeque::from([0_u32]);
        while let Some(at) = queue.pop_front() {
            for &(byte, child) in &edges[at as usize] {
                let link = if at == 0 { 0 } else { trie.step(trie.nodes[at as usize].link, byte) };
                let of_link = trie.nodes[link as usize].stop;
                let node = &mut trie.nodes[child as usize];
                (node.link, node.stop) = (link, node.stop.max(of_link));
                queue.push_back(child);
            }
        }
        trie
    }

    /// The longest beginning that the text ends in now.
    fn step(&self, mut at: u32, byte: u8) -> u32 {
        loop {
            match self.next.get(&(at, byte)) {
                Some(&child) => return child,
                None if at == 0 => return 0,
                None => at = self.nodes[at as usize].link,
            }
        }
    }
}

/// Looks for the stops of one output. What may still become one is held back.
#[derive(Debug, Clone)]
pub(super) struct Stops {
    trie: Arc<Trie>,
    at: u32,
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

impl Stops {
    /// None of them may be empty.
    pub(super) fn new(stops: &[String]) -> Self {
        Self { trie: Arc::new(Trie::new(stops)), at: 0, held: String::new() }
    }

    /// Takes the next text. The first stop that is whole counts; of two that end together, the one that began first.
    pub(super) fn push(&mut self, text: &str) -> Freed {
        let before = self.held.len();
        self.held.push_str(text);
        for (more, &byte) in (1..).zip(text.as_bytes()) {
            self.at = self.trie.step(self.at, byte);
            let stop = self.trie.nodes[self.at as usize].stop;
            if stop > 0 {
                self.held.truncate(before + more - stop);
                self.at = 0;
                return Freed { text: std::mem::take(&mut self.held), stopped: true };
            }
        }
        let kept = self.trie.nodes[self.at as usize].depth;
        let held = self.held.split_off(self.held.len() - kept);
        Freed { text: std::mem::replace(&mut self.held, held), stopped: false }
    }

    /// What was held back, when nothing comes any more.
    pub(super) fn rest(&mut self) -> String {
        self.at = 0;
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What the stops leave of a text that comes in pieces.
    fn left(stops: &[String], pieces: &[String]) -> (String, bool) {
        let (mut watch, mut text) = (Stops::new(stops), String::new());
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
            let mut watch = Stops::new(std::slice::from_ref(&stop));
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
