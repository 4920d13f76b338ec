//! Damages seeds at random, by a fixed number: without knowledge of the code that reads them, for
//! runs that are too short to learn any.

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// No input is longer, unless a seed is.
const LEN_MAX_BYTES: usize = 32 << 10;
/// So many accepted inputs are damaged further, besides the seeds.
const KEPT_MAX: usize = 256;
/// So many damages of one input at most.
const DAMAGES_MAX: usize = 6;
/// A longer piece is not copied or removed at once.
const PIECE_MAX_BYTES: usize = 64;

/// Bytes at which lengths, counts and signs go wrong.
const BYTES: [u8; 8] = [0, 1, 0x7f, 0x80, 0xff, b'\n', b'"', b'{'];
/// The same for longer numbers.
const NUMBERS: [u64; 9] = [
    0,
    1,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 32,
    i64::MAX.cast_unsigned(),
    u64::MAX,
];
/// The same in texts.
const WORDS: [&str; 16] = [
    "0",
    "-1",
    "0.5",
    "1e308",
    "-1e-308",
    "nan",
    "inf",
    "18446744073709551616",
    "9223372036854775807",
    "99999999999999999999999999",
    "true",
    "null",
    "\"\"",
    "[]",
    "{}",
    "\u{e9}",
];

/// Makes inputs from seeds.
#[derive(Debug)]
pub struct Mutator {
    random: ChaCha8Rng,
    seeds: Vec<Vec<u8>>,
    kept: Vec<Vec<u8>>,
    /// Words of the seeds that are text.
    words: Vec<Vec<u8>>,
}

impl Mutator {
    /// The same seeds and number make the same inputs.
    ///
    /// # Panics
    /// There are no seeds.
    #[must_use]
    pub fn new(number: u64, seeds: Vec<Vec<u8>>) -> Self {
        assert!(!seeds.is_empty(), "no seeds");
        let texts = seeds.iter().filter(|seed| is_text(seed));
        let words = texts.flat_map(|seed| words_of(seed)).map(|at| at.to_vec());
        let mut words: Vec<Vec<u8>> = words.collect();
        words.sort_unstable();
        words.dedup();
        words.extend(WORDS.iter().map(|word| word.as_bytes().to_vec()));
        Self {
            random: ChaCha8Rng::seed_from_u64(number),
            seeds,
            kept: Vec::new(),
            words,
        }
    }

    /// The next input.
    pub fn input(&mut self) -> Vec<u8> {
        let mut input = self.any().to_vec();
        for _ in 0..self.random.random_range(1..=DAMAGES_MAX) {
            match is_text(&input) && self.random.random_bool(0.7) {
                true => self.damage_text(&mut input),
                false => self.damage_bytes(&mut input),
            }
        }
        let longest = self.seeds.iter().map(Vec::len).max().unwrap_or(0);
        input.truncate(longest.max(LEN_MAX_BYTES));
        input
    }

    /// Takes an input that was accepted as a seed of further ones.
    pub fn keep(&mut self, input: Vec<u8>) {
        match self.kept.len() < KEPT_MAX {
            true => self.kept.push(input),
            false => {
                let at = self.random.random_range(0..KEPT_MAX);
                self.kept[at] = input;
            }
        }
    }

    fn any(&mut self) -> &[u8] {
        let at = self
            .random
            .random_range(0..self.seeds.len() + self.kept.len());
        match self.seeds.get(at) {
            Some(seed) => seed,
            None => &self.kept[at - self.seeds.len()],
        }
    }

    /// Somewhere in an input, its end included.
    fn place(&mut self, input: &[u8]) -> usize {
        self.random.random_range(0..=input.len())
    }

    /// A piece of an input, as (start, end).
    fn piece(&mut self, input: &[u8]) -> (usize, usize) {
        let start = self.place(input);
        let len = self.random.random_range(1..=PIECE_MAX_BYTES);
        (start, (start + len).min(input.len()))
    }

    fn damage_bytes(&mut self, input: &mut Vec<u8>) {
        let at = self.place(input);
        let kind = self.random.random_range(0..9);
        match kind {
            0..=2 => {
                let bit = 1 << self.random.random_range(0..8);
                let any = self.random.random();
                let special = *BYTES.choose(&mut self.random).unwrap_or(&0);
                if let Some(byte) = input.get_mut(at) {
                    *byte = match kind {
                        0 => *byte ^ bit,
                        1 => any,
                        _ => special,
                    };
                }
            }
            3 => self.overwrite_number(input, at),
            4 => {
                let len = self.random.random_range(1..=8);
                let bytes: Vec<u8> = (0..len).map(|_| self.random.random()).collect();
                input.splice(at..at, bytes);
            }
            5 => {
                let (start, end) = self.piece(input);
                input.drain(start..end);
            }
            6 => {
                let (start, end) = self.piece(input);
                let piece = input[start..end].to_vec();
                input.splice(at..at, piece);
            }
            7 => {
                // The beginning of this input, and the end of another one.
                let other = self.any().to_vec();
                let from = self.place(&other);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            _ => input.truncate(at),
        }
    }

    /// A number of 2, 4 or 8 bytes becomes a special one, or one beside what it was.
    fn overwrite_number(&mut self, input: &mut [u8], at: usize) {
        let len = *[2, 4, 8].choose(&mut self.random).unwrap_or(&4);
        let Some(place) = input.get_mut(at..at + len) else {
            return;
        };
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(place);
        let number = match self.random.random() {
            true => *NUMBERS.choose(&mut self.random).unwrap_or(&0),
            false => {
                let step = self.random.random_range(1..=64);
                match self.random.random() {
                    true => u64::from_le_bytes(bytes).wrapping_add(step),
                    false => u64::from_le_bytes(bytes).wrapping_sub(step),
                }
            }
        };
        place.copy_from_slice(&number.to_le_bytes()[..len]);
        if self.random.random_bool(0.2) {
            place.reverse();
        }
    }

    fn damage_text(&mut self, input: &mut Vec<u8>) {
        if self.random.random_bool(0.6) {
            return self.replace_word(input);
        }
        let other = self.any().to_vec();
        let mut lines: Vec<&[u8]> = input.split_inclusive(|byte| *byte == b'\n').collect();
        if lines.is_empty() {
            return;
        }
        let (one, two) = (
            self.random.random_range(0..lines.len()),
            self.random.random_range(0..lines.len()),
        );
        match self.random.random_range(0..4) {
            0 => lines.swap(one, two),
            1 => drop(lines.remove(one)),
            2 => lines.insert(one, lines[two]),
            _ => {
                let theirs: Vec<&[u8]> = other.split_inclusive(|byte| *byte == b'\n').collect();
                if let Some(line) = theirs.choose(&mut self.random) {
                    lines.insert(one, line);
                }
            }
        }
        *input = lines.concat();
    }

    /// A word, or a number, becomes another one.
    fn replace_word(&mut self, input: &mut Vec<u8>) {
        let words = words_of(input);
        let Some(word) = words.choose(&mut self.random) else {
            return;
        };
        let start = word.as_ptr().addr() - input.as_ptr().addr();
        let end = start + word.len();
        let new = match self.random.random_bool(0.3) {
            true => WORDS
                .choose(&mut self.random)
                .map(|word| word.as_bytes().to_vec()),
            false => self.words.choose(&mut self.random).cloned(),
        };
        input.splice(start..end, new.unwrap_or_default());
    }
}

fn is_text(bytes: &[u8]) -> bool {
    // The first byte may choose a parser.
    bytes
        .get(1..)
        .is_some_and(|text| !text.contains(&0) && std::str::from_utf8(text).is_ok())
}

/// The words and numbers of a text.
fn words_of(text: &[u8]) -> Vec<&[u8]> {
    let is_end = |byte: &u8| !(byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.'));
    text.split(is_end).filter(|word| !word.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_makes_the_same_inputs_and_another_one_others() {
        let seeds = || vec![b"low = 1\nhigh = 64\n".to_vec(), vec![0, 1, 2, 3, 255]];
        let inputs = |number| {
            let mut mutator = Mutator::new(number, seeds());
            let inputs = (0..200).map(|index| {
                let input = mutator.input();
                if index % 5 == 0 {
                    mutator.keep(input.clone());
                }
                input
            });
            inputs.collect::<Vec<_>>()
        };
        assert_eq!(inputs(1), inputs(1));
        assert_ne!(inputs(1), inputs(2));
        let mut seen = inputs(1);
        seen.sort();
        seen.dedup();
        assert!(seen.len() > 150, "{} of 200 differ", seen.len());
    }

    #[test]
    fn words_of_one_seed_come_into_another_one() {
        let seeds = vec![b"low = 1\n".to_vec(), b"deadline = 2\n".to_vec()];
        let mut mutator = Mutator::new(1, seeds);
        let is_it = |input: Vec<u8>| input.starts_with(b"deadline = 1\n");
        assert!((0..20_000).any(|_| is_it(mutator.input())));
    }

    #[test]
    fn no_input_grows_for_ever() {
        let mut mutator = Mutator::new(1, vec![vec![7; LEN_MAX_BYTES - 1]]);
        for _ in 0..500 {
            let input = mutator.input();
            assert!(input.len() <= LEN_MAX_BYTES);
            mutator.keep(input);
        }
    }
}
