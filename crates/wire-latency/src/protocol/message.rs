//! Messages of a protocol as their headers say, and where they begin in a segment.

/// Marks of one segment at most; further ones count as hidden.
pub(super) const MARKS_MAX: usize = 16;

/// Something in a segment. Numbers tell multiplexed messages apart; they are 0 where messages come
/// in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// A request or an answer begins.
    Start(u32),
    /// A request begins whose answer is meant to take long.
    Excluded(u32),
    /// A later part of a request or an answer.
    More(u32),
    /// A request is given up.
    Cancel(u32),
}

/// What can be seen of a segment. Neither a mark nor `is_hidden`: bytes that belong to no request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks {
    pub(super) list: [Mark; MARKS_MAX],
    pub(super) count: usize,
    /// Messages may begin in the part that was not captured.
    pub(crate) is_hidden: bool,
}

impl Marks {
    pub(crate) const NONE: Self = Self {
        list: [Mark::More(0); MARKS_MAX],
        count: 0,
        is_hidden: false,
    };

    pub(super) fn one(mark: Mark) -> Self {
        let mut marks = Self::NONE;
        marks.push(mark);
        marks
    }

    pub(super) fn push(&mut self, mark: Mark) {
        match self.list.get_mut(self.count) {
            Some(place) => {
                *place = mark;
                self.count += 1;
            }
            None => self.is_hidden = true,
        }
    }

    pub(crate) fn list(&self) -> &[Mark] {
        &self.list[..self.count]
    }
}

/// One message as its header says.
pub(super) struct Message {
    pub(super) mark: Option<Mark>,
    /// Its length with its header, where that is known.
    pub(super) length: Option<usize>,
}

impl Message {
    pub(super) fn new(mark: impl Into<Option<Mark>>, length: impl Into<Option<usize>>) -> Self {
        Self {
            mark: mark.into(),
            length: length.into(),
        }
    }
}

/// Bytes of one direction as they come.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<'a> {
    pub(crate) sequence: u32,
    /// Length on the wire.
    pub(crate) length: u32,
    /// The part that was captured.
    pub(crate) seen: &'a [u8],
    /// Of the client's: no request waits. Of the server's: a request has arrived and waits.
    pub(crate) is_turn: bool,
}

/// The number in decimal digits at the beginning, and how many bytes it takes.
pub(super) fn decimal(bytes: &[u8]) -> Option<(usize, usize)> {
    let digits = bytes
        .iter()
        .take(10)
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let text = std::str::from_utf8(bytes.get(..digits)?).ok()?;
    Some((text.parse().ok()?, digits))
}

/// Length of the line that begins here, with its end.
pub(super) fn line(bytes: &[u8]) -> Option<usize> {
    Some(bytes.windows(2).position(|two| two == b"\r\n")? + 2)
}
