//! Lines with their numbers.

use std::io::{self, BufRead, Read};

/// The lines of a file that are not blank, with the number of the last one given.
///
/// As a [`Read`] it gives at most one line per call. A CSV reader that stops at line ends then never reads ahead, and
/// the number is that of its current row; its own count is off after blank lines and under `\r\n`.
pub(super) struct Lines<R> {
    input: R,
    number: u64,
    line: Vec<u8>,
    /// Bytes of `line` that were read.
    given: usize,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, number: 0, line: Vec::new(), given: 0 }
    }

    /// The current line, and what has not been read.
    pub(super) fn into_parts(self) -> (Vec<u8>, R) {
        (self.line, self.input)
    }

    /// Line number from 1; 0 before the first.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The current line, which ends in one `\n`.
    pub(super) fn line(&self) -> &[u8] {
        &self.line
    }

    /// Goes to the next line; false at the end of the file.
    pub(super) fn advance(&mut self) -> io::Result<bool> {
        loop {
            self.line.clear();
            if self.input.read_until(b'\n', &mut self.line)? == 0 {
                return Ok(false);
            }
            self.number += 1;
            let length = self.line.trim_ascii_end().len();
            if length > 0 {
                self.line.truncate(length);
                self.line.push(b'\n');
                return Ok(true);
            }
        }
    }
}

impl<R: BufRead> Read for Lines<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.given == self.line.len() {
            self.given = 0;
            self.advance()?;
        }
        let rest = &self.line[self.given..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.given += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_lines_are_counted_and_not_given() {
        let mut lines = Lines::new(&b"\r\n a \r\n\n\nb"[..]);
        for (want, number) in [(&b" a\n"[..], 2), (b"b\n", 5)] {
            assert!(lines.advance().unwrap());
            assert_eq!((lines.line(), lines.number()), (want, number));
        }
        assert!(!lines.advance().unwrap());
    }

    #[test]
    fn reading_gives_one_line_at_a_time() {
        let mut lines = Lines::new(&b"abc\n\nd"[..]);
        let mut buffer = [0; 3];
        for (want, number) in [(&b"abc"[..], 1), (b"\n", 1), (b"d\n", 3), (b"", 3), (b"", 3)] {
            let count = lines.read(&mut buffer).unwrap();
            assert_eq!((&buffer[..count], lines.number()), (want, number));
        }
    }
}
