//! A 64-bit digest of everything that happened in a run, in order.
//!
//! Two runs with the same digest took the same decisions. It is not cryptographic; it has to cost about a nanosecond
//! a word, because it is fed at every event.

use std::fmt;

/// Odd, with well spread bits (the golden ratio in 64 bits).
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
/// Any start but zero, so that leading zero words count.
const START: u64 = 0x2545_F491_4F6C_DD1D;

/// A running digest. Sensitive to the order, the values and the number of words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest {
    state: u64,
    words: u64,
}

impl Digest {
    /// The digest of nothing.
    pub fn new() -> Self {
        Self { state: START, words: 0 }
    }

    /// Takes in one word.
    ///
    /// Each step is reversible, so two logs that differ in one word differ ever after, until another word makes up
    /// for it by chance.
    #[inline]
    pub fn fold(&mut self, word: u64) {
        self.state = (self.state ^ word).wrapping_mul(STEP).rotate_left(29);
        self.words += 1;
    }

    /// Takes in several words, one after the other.
    #[inline]
    pub fn fold_all(&mut self, words: &[u64]) {
        for &word in words {
            self.fold(word);
        }
    }

    /// The digest of all words so far, every bit depending on every word.
    pub fn finish(&self) -> u64 {
        // The finaliser of splitmix64.
        let mut mixed = self.state ^ self.words.wrapping_mul(STEP);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

impl Default for Digest {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for Digest {
    /// Sixteen hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(words: &[u64]) -> u64 {
        let mut digest = Digest::new();
        digest.fold_all(words);
        digest.finish()
    }

    #[test]
    fn order_values_and_count_matter() {
        let mut seen = vec![
            digest(&[]),
            digest(&[0]),
            digest(&[0, 0]),
            digest(&[1, 2, 3]),
            digest(&[1, 3, 2]),
            digest(&[2, 1, 3]),
            digest(&[1, 2]),
            digest(&[1, 2, 3, 0]),
            digest(&[0, 1, 2, 3]),
            digest(&[1, 2, u64::MAX]),
            digest(&[START]),
        ];
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 11);
    }

    #[test]
    fn one_flipped_bit_flips_about_half() {
        let words: Vec<u64> = (0..100).collect();
        for at in [0, 50, 99] {
            for bit in 0..64 {
                let mut changed = words.clone();
                changed[at] ^= 1 << bit;
                let flipped = (digest(&words) ^ digest(&changed)).count_ones();
                assert!((12..=52).contains(&flipped), "word {at}, bit {bit}: {flipped} bits flipped");
            }
        }
    }

    #[test]
    fn folding_all_is_folding_each() {
        let mut one_by_one = Digest::new();
        for word in [7, 8, 9] {
            one_by_one.fold(word);
        }
        assert_eq!(one_by_one.finish(), digest(&[7, 8, 9]));
    }

    #[test]
    fn prints_sixteen_digits_that_do_not_change_between_versions() {
        assert_eq!(Digest::new().to_string().len(), 16);
        let mut digest = Digest::new();
        digest.fold_all(&[1, 2, 3]);
        assert_eq!(digest.to_string(), "820d4b1ac94f9f17");
    }
}
